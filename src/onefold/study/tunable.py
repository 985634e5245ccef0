"""What a study tunes: a workload, a reference to one, or a plain function, behind one interface."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onefold.engine import Setup
from onefold.study.options import check_compress_mode
from onefold.training import calls
from onefold.training.function_trainer import uses_budget
from onefold.vocabulary.errors import InputError, SpaceError, WorkloadError
from onefold.vocabulary.objective import VALUE, Objective
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space
from onefold.vocabulary.workload import Workload
from onefold.vocabulary.workload_reference import load, split_wrapper

COMPRESSED = "compressed+"  # the wrapper that adds the compression recipe to a workload's space
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

    def compressed(self, mode: str) -> Tunable:
        """Return the tunable for a compress mode: for `in-loop`, with the compression recipe in its space."""
        check_compress_mode(mode)
        if mode != "off" and self.workload is None:
            raise InputError("a function has no model to compress; give a workload")
        if mode != "in-loop" or self.reference.startswith(COMPRESSED) or self.workload is None:
            return self
        if self._is_reference:
            return Tunable(COMPRESSED + self.reference)
        from onefold.compression.in_loop import CompressedWorkload

        tunable = Tunable(CompressedWorkload(self.workload))
        tunable.reference = COMPRESSED + self.reference if self.reference else ""
        return tunable

    def setup(self, folder: Path, accelerator: str) -> Setup:
        """Return the set-up of a worker that trains it."""
        if self.workload is not None:
            source = self.reference if self._is_reference else self.workload
            return Setup(calls.open_workload, (source, str(folder), accelerator))
        return Setup(calls.open_function, (self.function, str(folder), accelerator))


def _absolute(reference: str) -> str:
    """Return the reference with an absolute path, so that it means the same in every folder."""
    wrapper, inner = split_wrapper(reference)
    if wrapper:
        return f"{wrapper}+{_absolute(inner)}"
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
