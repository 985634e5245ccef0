"""What a study tunes: a workload, a reference to one, or a plain function, behind one interface."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from onefold.engine import Setup
from onefold.study.options import check_compress_mode
from onefold.training import calls
from onefold.training.function_trainer import uses_budget
from onefold.vocabulary.costs import COST_METRICS
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import InputError, Rejected, SpaceError, WorkloadError
from onefold.vocabulary.objective import VALUE, Objective
from onefold.vocabulary.records import Config
from onefold.vocabulary.requirement import Bound, check_fraction
from onefold.vocabulary.space import Space
from onefold.vocabulary.workload import Workload
from onefold.vocabulary.workload_reference import load

WorkloadLike = Workload | Callable[..., Any] | str


class Tunable:
    """A workload or a plain function, with the defaults that it brings to a study.

    `reference` is a workload reference that another process can load; it is empty if there is none.
    """

    def __init__(self, workload: WorkloadLike) -> None:
        self.workload: Workload | None = None
        self.function: Callable[..., Any] | None = None
        self._is_reference = isinstance(workload, str)
        if isinstance(workload, str):
            self.workload = load(workload)
            self.reference = _absolute(workload)
            return
        if isinstance(workload, Workload):
            self.workload = workload
        elif inspect.isclass(workload):
            raise WorkloadError(f"expected an instance of the workload, got the class; write {workload.__name__}()")
        elif callable(workload):
            self.function = workload
        else:
            raise WorkloadError(f"expected a Workload, a function or a workload reference, got {workload!r}")
        self.reference = _reference_of(self.workload)

    @property
    def name(self) -> str:
        """Return the name that its studies start with."""
        if self.workload is not None:
            return self.workload.name
        return str(getattr(self.function, "__name__", "function")).strip("<>_")

    @property
    def space(self) -> Space:
        """Return the workload's space; raise SpaceError for a function, which has none."""
        if self.workload is None:
            raise SpaceError("a function needs a space: tune(function, Space(x=Float(0, 1)))")
        return self.workload.space

    @property
    def objective(self) -> Objective:
        """Return the workload's objective; for a function, to minimize `value`."""
        return self.workload.objective if self.workload is not None else Objective(minimize=VALUE)

    @property
    def reported_metrics(self) -> tuple[str, ...] | None:
        """Return the names of all metrics that trials may report without a device; None if only a trial shows them."""
        own = self.workload.reported_metrics if self.workload is not None else None
        return None if own is None else (*own, *COST_METRICS)

    def check_bounds(self, bounds: Iterable[tuple[str, Bound]]) -> None:
        """Raise ObjectiveError for a bound that no accuracy can miss or meet; metrics of a workload's own are free."""
        own = type(self.workload)
        is_usual = issubclass(own, Workload) and own.reported_metrics is Workload.reported_metrics
        if is_usual and self.reported_metrics is not None:
            for metric, bound in bounds:
                if metric == "accuracy":
                    check_fraction(metric, bound)

    @property
    def rungs(self) -> str:
        """Return the default rungs: none for a function that reports once and takes no budget."""
        return "none" if self.function is not None and not uses_budget(self.function) else "halving"

    @property
    def yields_steps(self) -> bool:
        """Return whether it is a generator function: each value that it yields ends a step."""
        return inspect.isgeneratorfunction(self.function)

    def check(self, config: Config) -> None:
        """Raise Rejected if the workload refuses a configuration."""
        if self.workload is not None:
            self.workload.check(config)

    def check_build(self, config: Config) -> None:
        """Raise Rejected if the workload refuses a configuration, or if its model cannot be built."""
        self.check(config)
        if self.workload is None:
            return
        try:
            self._build_without_weights(config)
        except Exception as error:
            raise Rejected(f"build() failed: {headline(error)}") from error

    def _build_without_weights(self, config: Config) -> None:
        """Build a model in no memory, or as usual if it needs the values of its weights."""
        import torch

        assert self.workload is not None
        with suppress(Exception), torch.device("meta"):
            self.workload.build(config)
            return
        self.workload.build(config)

    def check_compress(self, mode: str) -> None:
        """Raise InputError for an unknown compress mode, and for a function, which has no model to compress."""
        check_compress_mode(mode)
        if mode != "off" and self.workload is None:
            raise InputError("a function has no model to compress; give a workload")

    def setup(self, folder: Path, accelerator: str) -> Setup:
        """Return the set-up of a worker that trains it."""
        if self.workload is not None:
            source = self.reference if self._is_reference else self.workload
            return Setup(calls.open_workload, (source, str(folder), accelerator))
        return Setup(calls.open_function, (self.function, str(folder), accelerator))


def _absolute(reference: str) -> str:
    """Return the reference with an absolute path, so that it means the same in every folder."""
    module, colon, name = reference.partition(":")
    path = Path(module).expanduser()
    return f"{path.resolve()}{colon}{name}" if path.is_file() else reference


def _reference_of(workload: Workload | None) -> str:
    """Return `file.py:Class` if a new instance of that class is the same workload, and an empty string otherwise."""
    if workload is None or vars(workload) or "." in type(workload).__qualname__:
        return ""
    try:
        file = inspect.getsourcefile(type(workload))
    except (TypeError, OSError):
        return ""
    return f"{Path(file).resolve()}:{type(workload).__name__}" if file and Path(file).is_file() else ""
