"""Cores that the study lends to a trial while no other trial uses them: a knob that the study offers and takes back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from onefold.processes import lent_cores
from onefold.training.contention_knobs import THREADS_KNOB
from onefold.training.knob_search import Setting
from onefold.training.knobs import KnobUnavailable, TrainingContext
from onefold.training.knobs.processor import pinned
from onefold.vocabulary.records import Value


class BorrowedCores:
    """The number of lent cores that are used besides the trial's own, with a thread each.

    It is no knob of the catalog, since its options change while a trial trains.
    """

    name, reduces_precision, may_fail, setup_s = "lent_cores", False, False, 0.0

    def __init__(self) -> None:
        self._threads = torch.get_num_threads()  # of a trial that has no choice of them
        self.cores: tuple[int, ...] = ()  # in use

    def options(self, context: TrainingContext) -> Sequence[Value]:  # noqa: ARG002 - the study decides
        if not lent_cores():
            raise KnobUnavailable("no core is lent")
        return tuple(range(len(lent_cores()) + 1))

    @property
    def were_taken_back(self) -> bool:
        """Return whether a core that is in use is not lent any more."""
        return not set(self.cores) <= set(lent_cores())

    def added_to(self, setting: Mapping[str, Any], count: int) -> Setting:
        """Return a setting with so many lent cores and their threads; without them unless so many are lent."""
        if not 0 < count <= len(lent_cores()):
            return dict(setting)
        threads = int(setting.get(THREADS_KNOB, self._threads)) + count
        return {**setting, THREADS_KNOB: threads, self.name: count}

    @contextmanager
    def applied(self, value: Value, context: TrainingContext) -> Iterator[None]:
        cores = lent_cores()[: int(value or 0)]
        with pinned({*context.cores, *cores}):
            self.cores = cores
            try:
                yield
            finally:
                self.cores = ()
