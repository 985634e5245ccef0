"""Knobs of the processor: how many threads, on which cores, at which frequency."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch

from onefold.training.knobs.knob import Job, NotHere
from onefold.vocabulary.records import Value

ALL = "all"
MOST_CORES = 8  # with more of them single cores are not worth trying


class Threads:
    """How many threads an operator is spread over."""

    name, reduces, risky, start_s = "threads", False, False, 0.0

    def options(self, job: Job) -> Sequence[Value]:
        if job.device.type != "cpu":
            raise NotHere("the work is done by the accelerator")
        if len(job.cores) < 2:
            raise NotHere("there is one core")
        powers = [2**i for i in range(len(job.cores).bit_length()) if 2**i < len(job.cores)]
        return tuple(dict.fromkeys([torch.get_num_threads(), *powers, len(job.cores)]))

    @contextmanager
    def turned(self, value: Value, job: Job) -> Iterator[None]:  # noqa: ARG002 - of the whole process
        before = torch.get_num_threads()
        torch.set_num_threads(int(value or 1))
        try:
            yield
        finally:
            torch.set_num_threads(before)


class Cores:
    """Which cores the threads may run on: `all`, or one of them, to get away from a busy neighbour.

    On one core there is one thread: several that wait for each other there take a hundred times as long.
    """

    name, reduces, risky, start_s = "cores", False, False, 0.0

    def options(self, job: Job) -> Sequence[Value]:
        if not hasattr(os, "sched_setaffinity"):
            raise NotHere("this system does not bind threads to cores")
        if not 2 <= len(job.cores) <= MOST_CORES:
            raise NotHere(f"worth trying with 2 to {MOST_CORES} cores, and there are {len(job.cores)}")
        return ALL, *(str(core) for core in job.cores)

    @contextmanager
    def turned(self, value: Value, job: Job) -> Iterator[None]:  # noqa: ARG002 - of the whole process
        if value == ALL:
            yield
            return
        threads = torch.get_num_threads()
        found = {thread: os.sched_getaffinity(thread) for thread in _threads()}
        torch.set_num_threads(1)
        _bind({thread: {int(str(value))} for thread in found})
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            widest = set().union(*found.values())
            _bind({thread: found.get(thread, widest) for thread in _threads()})


class Frequency:
    """The highest frequency that the cores may run at, where the kernel lets us say.

    It is never lowered: whoever is killed meanwhile would leave a slow machine behind.
    """

    name, reduces, risky, start_s = "frequency_khz", False, False, 0.0

    def __init__(self, tree: Path = Path("/sys/devices/system/cpu")) -> None:
        self._tree = tree

    def options(self, job: Job) -> Sequence[Value]:
        files = [self._file(core) for core in job.cores]
        if not files or not all(file.is_file() for file in files):
            raise NotHere("the kernel offers no frequencies")
        if not all(os.access(file, os.W_OK) for file in files):
            raise NotHere("setting frequencies is not permitted")
        found, highest = (int(files[0].with_name(name).read_text()) for name in (files[0].name, "cpuinfo_max_freq"))
        if found >= highest:
            raise NotHere("the cores may run at their highest already")
        return found, highest

    @contextmanager
    def turned(self, value: Value, job: Job) -> Iterator[None]:
        with ExitStack() as stack:
            for file in (self._file(core) for core in job.cores):
                before = file.read_text()
                stack.callback(file.write_text, before)
                file.write_text(str(value))
            yield

    def _file(self, core: int) -> Path:
        return self._tree / f"cpu{core}" / "cpufreq" / "scaling_max_freq"


def _threads() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/task").iterdir()] if Path("/proc/self/task").exists() else [0]


def _bind(cores: dict[int, set[int]]) -> None:
    for thread, wanted in cores.items():
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(thread, wanted)


def cores_here() -> tuple[int, ...]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def machine_of(job: Job) -> str:
    """What kind of machine a job runs on: what is best on one says nothing about another."""
    where = processor()
    if job.device.type == "cuda":
        where = f"{torch.cuda.get_device_name(job.device)}, {where}"
    return f"{where}, {len(job.cores)} cores, torch {torch.__version__}"


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
