"""The knob of the memory limit, as PipeTune has it: the memory that the kernel lets the process keep."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from onefold.training.knobs.knob import KnobUnavailable, TrainingContext
from onefold.training.knobs.restored_files import claim, restored_files
from onefold.vocabulary.records import Value

UNLIMITED = "max"
GIB = 2**30
LIMITS_GIB = (32, 16, 8, 4)  # those of PipeTune
HEADROOM = 2.0  # a limit is at least the memory in use times this


class MemoryLimit:
    """The memory of the process's control group above which the kernel reclaims pages (`memory.high`), in GiB.

    A limit makes nothing faster, but leaves memory to others. Only exhaustive probing and spaces with it try limits.
    """

    name, reduces_precision, may_fail, setup_s = "memory_gib", False, False, 0.0

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> None:
        self._root = root
        self._membership = membership

    def options(self, context: TrainingContext) -> Sequence[Value]:  # noqa: ARG002 - the same for all trainings
        file = self._file()
        try:
            current, used = file.read_text().strip(), int(file.with_name("memory.current").read_text())
        except (OSError, ValueError) as error:
            raise KnobUnavailable("there is no control group with a memory limit") from error
        if not os.access(file, os.W_OK):
            raise KnobUnavailable("there is no permission to set the memory limit of the control group")
        if not claim(file.parent):
            raise KnobUnavailable("another process sets the memory limit of the control group")
        if current != UNLIMITED:
            raise KnobUnavailable("the control group has a memory limit already")
        limits = [limit for limit in LIMITS_GIB if limit * GIB >= HEADROOM * used]
        if not limits:
            raise KnobUnavailable("the processes of the control group use more memory than the largest limit")
        return UNLIMITED, *limits

    @contextmanager
    def applied(self, value: Value, context: TrainingContext) -> Iterator[None]:  # noqa: ARG002 - a group setting
        if value == UNLIMITED:
            yield
            return
        file = self._file()
        with restored_files([file]):
            file.write_text(str(int(str(value)) * GIB))
            yield

    def _file(self) -> Path:
        try:
            lines = self._membership.read_text().splitlines()
        except OSError:
            lines = []
        path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
        return self._root / path / "memory.high"
