"""What a study tunes: a workload, a reference to one, or a plain function, all seen from one side."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from onefold.engine import Setup
from onefold.study.spec import Way
from onefold.training import calls
from onefold.training.function_trainer import uses_budget
from onefold.vocabulary.errors import InputError, SpaceError, WorkloadError, suggestion
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space
from onefold.vocabulary.workload import Workload
from onefold.vocabulary.workload_reference import load

COMPRESSED = "compressed+"  # the wrapper of workloads whose variants are searched in the loop
Given = Workload | Callable[..., Any] | str


class Subject:
    """Answers the study's questions about what it tunes."""

    def __init__(self, given: Given) -> None:
        self.workload: Workload | None = None
        self.function: Callable[..., Any] | None = None
        if isinstance(given, str):
            self.workload = load(given)
        elif isinstance(given, Workload):
            self.workload = given
        elif inspect.isclass(given):
            raise WorkloadError(f"give an instance of the workload: {given.__name__}()")
        elif callable(given):
            self.function = given
        else:
            raise WorkloadError(f"tune a Workload, a function or a reference to a workload, but got {given!r}")
        self._by_name = isinstance(given, str)
        self.reference = _whole(given) if isinstance(given, str) else _reference_of(self.workload)

    @property
    def name(self) -> str:
        """What its studies are called."""
        if self.workload is not None:
            return self.workload.name
        return str(getattr(self.function, "__name__", "function")).strip("<>_")

    @property
    def space(self) -> Space:
        """The space that it brings along."""
        if self.workload is None:
            raise SpaceError("a function needs a space: tune(function, Space(x=Float(0, 1)))")
        return self.workload.space

    @property
    def objective(self) -> Objective:
        """The objective that it brings along; a function's `value` is minimised."""
        return self.workload.objective if self.workload is not None else Objective(minimize="value")

    @property
    def rungs(self) -> str:
        """Whether rungs make sense: not for a function that reports one value and is told no budget."""
        return "none" if self.function is not None and not uses_budget(self.function) else "halving"

    def check(self, config: Config) -> None:
        """Raises Rejected when the workload refuses a configuration."""
        if self.workload is not None:
            self.workload.check(config)

    def compressed(self, way: str) -> Subject:
        """Itself, or with the recipe of its variants in its space where the way to compress is `in-loop`."""
        if way not in get_args(Way):
            raise InputError(f"the way to compress {way!r} is not known{suggestion(way, get_args(Way))}")
        if way != "off" and self.workload is None:
            raise InputError("a function has no model to compress: give a workload")
        if way != "in-loop" or self.reference.startswith(COMPRESSED):
            return self
        if self._by_name:
            return Subject(COMPRESSED + self.reference)
        from onefold.compression.in_loop import CompressedWorkload

        assert self.workload is not None
        found = Subject(CompressedWorkload(self.workload))
        found.reference = COMPRESSED + self.reference if self.reference else ""
        return found

    def setup(self, folder: Path, accelerator: str) -> Setup:
        """What prepares a worker for it."""
        if self.workload is not None:
            source = self.reference if self._by_name else self.workload
            return Setup(calls.open_workload, (source, str(folder), accelerator))
        return Setup(calls.open_function, (self.function, str(folder), accelerator))


def _whole(reference: str) -> str:
    """A reference that means the same from every folder."""
    if reference.startswith(COMPRESSED):
        return COMPRESSED + _whole(reference.removeprefix(COMPRESSED))
    place, colon, name = reference.partition(":")
    path = Path(place).expanduser()
    return f"{path.resolve()}{colon}{name}" if path.is_file() else reference


def _reference_of(workload: Workload | None) -> str:
    """`file.py:Class`, when making the class anew gives the same workload; empty otherwise."""
    if workload is None or vars(workload) or "." in type(workload).__qualname__:
        return ""
    try:
        file = inspect.getsourcefile(type(workload))
    except (TypeError, OSError):
        return ""
    return f"{Path(file).resolve()}:{type(workload).__name__}" if file and Path(file).is_file() else ""
