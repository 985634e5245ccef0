"""Knobs that are not tuned: the defaults, and knobs that the configuration sets. Both act like a `KnobSession`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from onefold.training.knob_search import Setting
from onefold.training.knobs import TrainingContext, applied, available_knobs, narrowed, why_nothing_acts
from onefold.training.knobs.catalog import PRECISION_KNOBS
from onefold.vocabulary.errors import SpaceError
from onefold.vocabulary.knobs import KnobRecord, SettledKnobs
from onefold.vocabulary.records import Epoch, Value


class DefaultKnobs:
    """Changes no knob. Has the interface of `KnobSession`."""

    settled: SettledKnobs | None = None

    def may_have_caused(self, error: Exception) -> bool:  # noqa: ARG002 - same for all errors
        """Return False: no knob is changed on trial."""
        return False

    def without_suspect(self, error: Exception) -> tuple[SettledKnobs, str]:
        """Raise the error: no knob may have caused it."""
        raise error

    def tuned(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return the batches unchanged."""
        return batches

    def for_evaluation(self) -> AbstractContextManager[None]:
        """Change nothing."""
        return nullcontext()

    def return_lent_cores(self) -> None:
        """Do nothing: no lent core is used."""

    def restore(self) -> None:
        """Do nothing: there is nothing to restore."""

    def expect(self, remaining_s: float) -> None:
        """Ignore the time that is left."""

    def report(self, epoch: Epoch) -> KnobRecord | None:  # noqa: ARG002 - same for all epochs
        """Return None: nothing was tuned."""
        return None


class ConfiguredKnobs(DefaultKnobs):
    """Sets the knobs that are parameters of the configuration for the whole rung."""

    def __init__(self, context: TrainingContext, setting: Setting) -> None:
        self._context = context
        options = available_knobs(context, reduced=True).options
        self._setting = {name: value for name, value in setting.items() if value in options.get(name, ())}
        self._applied = ExitStack()

    @classmethod
    def of_space(cls, context: TrainingContext, values: Mapping[str, Sequence[Value]]) -> ConfiguredKnobs:
        """Return the knobs with the single values of the group `system`. Raises SpaceError if none can be set here."""
        available = narrowed(available_knobs(context, reduced=True, max_setup_s=math.inf), values)
        if reason := why_nothing_acts(available, values):
            raise SpaceError(reason)
        knobs = cls(context, {})
        knobs._setting = available.defaults
        return knobs

    def tuned(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches with the knobs set."""
        self.restore()
        self._applied.enter_context(applied(self._setting, self._context))
        for batch in batches:
            yield self._context.adapt(batch)

    def for_evaluation(self) -> AbstractContextManager[None]:
        """Set the same knobs, except those of precision."""
        exact = {name: value for name, value in self._setting.items() if name not in PRECISION_KNOBS}
        return applied(exact, self._context)

    def restore(self) -> None:
        """Restore the defaults."""
        self._applied.close()
        self._applied = ExitStack()
