"""Knobs of the CPU: threads, core affinity and frequency."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from onefold.processes import lease_cores
from onefold.training.knobs.knob import KnobUnavailable, TrainingContext
from onefold.training.knobs.restored_files import claim, restored_files
from onefold.training.neighbor_load import StatLoad
from onefold.vocabulary.records import Value

ALL_CORES = "all"
FREQUENCY_SHARES = (0.8, 0.6)  # of the highest frequency, to save energy


class ThreadCount:
    """The number of intra-op threads."""

    name, reduces_precision, may_fail, setup_s = "threads", False, False, 0.0

    def options(self, context: TrainingContext) -> Sequence[Value]:
        if context.device.type != "cpu":
            raise KnobUnavailable("training runs on an accelerator")
        if len(context.cores) < 2:
            raise KnobUnavailable("the process may use one core only")
        count = len(context.cores)
        return tuple(dict.fromkeys([torch.get_num_threads(), *_powers_below(count), count]))

    @contextmanager
    def applied(self, value: Value, context: TrainingContext) -> Iterator[None]:  # noqa: ARG002 - a process setting
        before = torch.get_num_threads()
        torch.set_num_threads(int(value or 1))
        try:
            yield
        finally:
            torch.set_num_threads(before)


class CoreAffinity:
    """The number of cores that threads may run on: `all`, or fewer, to avoid contention with other processes.

    They are cores that no other worker of Onefold has leased, as far as possible, and of these the ones with the least
    load. Each core gets one thread: several that synchronize on one core take a hundred times as long.
    """

    name, reduces_precision, may_fail, setup_s = "cores", False, False, 0.0

    def options(self, context: TrainingContext) -> Sequence[Value]:
        if not hasattr(os, "sched_setaffinity"):
            raise KnobUnavailable("this operating system has no core affinity")
        if len(context.cores) < 2:
            raise KnobUnavailable("the process may use one core only")
        return ALL_CORES, *_powers_below(len(context.cores))

    @contextmanager
    def applied(self, value: Value, context: TrainingContext) -> Iterator[None]:
        if value == ALL_CORES:
            yield
            return
        if not context.quietest_cores:
            context.quietest_cores = StatLoad(context.cores).quietest_first()
        threads = torch.get_num_threads()
        lease = lease_cores(int(value or 1), context.quietest_cores)
        torch.set_num_threads(min(threads, len(lease.cores)))
        try:
            with lease, pinned(set(lease.cores)):
                yield
        finally:
            torch.set_num_threads(threads)


class CpuFrequency:
    """The maximum frequency of the cores, where the kernel permits changing it; lower ones if energy is optimized.

    A small process restores it if this one is killed meanwhile.
    """

    name, reduces_precision, may_fail, setup_s = "frequency_khz", False, False, 0.0

    def __init__(self, tree: Path = Path("/sys/devices/system/cpu")) -> None:
        self._tree = tree

    def options(self, context: TrainingContext) -> Sequence[Value]:
        files = [self._file(core) for core in context.cores]
        if not files or not all(file.is_file() for file in files):
            raise KnobUnavailable("the kernel exposes no frequency scaling")
        if not all(os.access(file, os.W_OK) for file in files):
            raise KnobUnavailable("there is no permission to set frequencies")
        if not all(claim(file.parent) for file in files):
            raise KnobUnavailable("another process sets the frequencies of these cores")
        current, highest, lowest = (
            int(files[0].with_name(name).read_text())
            for name in (files[0].name, "cpuinfo_max_freq", "cpuinfo_min_freq")
        )
        shares = FREQUENCY_SHARES if context.optimize_for == "energy" else ()
        lower = [frequency for share in shares if (frequency := int(share * highest)) >= lowest]
        options = tuple(dict.fromkeys([current, highest, *lower]))
        if len(options) == 1:
            raise KnobUnavailable("the cores already have their highest frequency")
        return options

    @contextmanager
    def applied(self, value: Value, context: TrainingContext) -> Iterator[None]:
        files = [self._file(core) for core in context.cores]
        if int(files[0].read_text()) == value:
            yield
            return
        with restored_files(files):
            for file in files:
                file.write_text(str(value))
            yield

    def _file(self, core: int) -> Path:
        return self._tree / f"cpu{core}" / "cpufreq" / "scaling_max_freq"


@contextmanager
def pinned(cores: set[int]) -> Iterator[None]:
    """Pin every thread of this process to `cores` for the block."""
    before = {thread: os.sched_getaffinity(thread) for thread in _thread_ids()}
    _pin(dict.fromkeys(before, cores))
    try:
        yield
    finally:
        union = set().union(*before.values())
        _pin({thread: before.get(thread, union) for thread in _thread_ids()})


def machine_description(context: TrainingContext) -> str:
    """Return the kind of machine: processor, GPU, cores and torch version. Knobs are remembered per kind."""
    name = cpu_name()
    if context.device.type == "cuda":
        name = f"{torch.cuda.get_device_name(context.device)}, {name}"
    return f"{name}, {len(context.cores)} cores, torch {torch.__version__}"


def is_same_machine(one: str, other: str) -> bool:
    """Return whether two descriptions differ at most in the number of cores, which depends on the trials beside."""
    return _without_cores(one) == _without_cores(other)


def _without_cores(description: str) -> str:
    return re.sub(r", \d+ cores,", ",", description)


def cpu_name() -> str:
    """Return the model name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _powers_below(count: int) -> list[int]:
    return [2**i for i in range(count.bit_length()) if 2**i < count]


def _thread_ids() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/task").iterdir()] if Path("/proc/self/task").exists() else [0]


def _pin(cores: dict[int, set[int]]) -> None:
    for thread, allowed in cores.items():
        with suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(thread, allowed)
