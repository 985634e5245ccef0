"""Profile a job: the operators of one step, the resource usage of the process, and hardware counters.

Features are scaled so that a difference of 1 is large: shares are unscaled, sizes are logarithms. Features that other
processes can disturb have small weights; those of the operators have the largest.
"""

from __future__ import annotations

import math
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from onefold.meter.counters import HARDWARE_EVENTS, Counters
from onefold.processes import running_s
from onefold.vocabulary.knobs import JobProfile

# The kind of an operator: that of the first substring found in its name.
KINDS = {
    "convolution": "convolution",
    "rnn": "recurrent",
    "lstm": "recurrent",
    "gru": "recurrent",
    "attention": "attention",
    "embedding": "embedding",
    "index": "embedding",
    "mm": "matrix",
    "linear": "matrix",
    "norm": "norm",
    "pool": "pool",
    "softmax": "reduction",
    "loss": "reduction",
    "sum": "reduction",
    "mean": "reduction",
    "copy": "copy",
    "clone": "copy",
    "cat": "copy",
}
OTHER_KIND = "elementwise"
GATHERS = ("index", "index_select", "gather", "take", "embedding")  # read only the elements that they return
SIZE_WEIGHT = 0.5  # per power of ten
DISTURBED_WEIGHT = 0.05  # of features that other processes can change
HARDWARE_WEIGHT = 0.3
# Hardware events are features as a ratio to another event.
EVENT_RATIOS = {
    "instructions": "cycles",
    "cache_misses": "cache_references",
    "branch_misses": "branch_instructions",
    "stalled_cycles_frontend": "cycles",
    "stalled_cycles_backend": "cycles",
    "l1d_load_misses": "l1d_loads",
    "llc_load_misses": "llc_loads",
}


class OperatorCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators of a step, forward and backward, with their elements and floating-point operations.

    Views are left out, since they touch no elements.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0
        self.flops = 0.0
        self.elements: Counter[str] = Counter()  # by kind

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if getattr(func, "is_view", False):
            return out
        self.calls += 1
        self.elements[operator_kind(str(func))] += _elements(out) + _elements_read(func, args, out)
        formula = flop_registry.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            with suppress(Exception):  # a formula without this case must not fail the trial
                self.flops += formula(*args, **(kwargs or {}), out_val=out)
        return out

    def features(self) -> dict[str, float]:
        """Return the share of elements of each kind, and the logarithms of the sizes."""
        total = sum(self.elements.values()) or 1
        kinds = sorted({*KINDS.values(), OTHER_KIND})
        shares = {f"{kind}_share": self.elements[kind] / total for kind in kinds}
        sizes = {"kernels": self.calls, "elements": total, "flops": self.flops}
        return {**shares, **{f"log_{name}": SIZE_WEIGHT * math.log10(1 + size) for name, size in sizes.items()}}


class Profiler:
    """Profiles a job: use `steps` around a window of steps and `operators` around another step."""

    def __init__(self, *, of_network: bool = True) -> None:
        self._of_network = of_network
        self._features: dict[str, float] = {}
        self._sources: list[str] = []
        self._counters: Counters | None = None  # within `steps`

    @contextmanager
    def operators(self) -> Iterator[None]:
        """Count the operators of the block, which slows it down."""
        with OperatorCounter() as counter:
            yield
        if counter.calls:
            self._features |= counter.features()
            self._add_source("operators")

    @contextmanager
    def steps(self, count: Callable[[], int]) -> Iterator[None]:
        """Measure the resource usage of the block; `count` returns the number of its steps at the end."""
        with ExitStack() as stack:
            counters = self._counters = stack.enter_context(Counters())
            before, started = resource.getrusage(resource.RUSAGE_SELF), running_s()
            yield
            wall_s = max(running_s() - started, 1e-9)
            after = resource.getrusage(resource.RUSAGE_SELF)
            steps = max(1, count())
            self._features |= _process_features(before, after, wall_s, steps)
            self._add_source("process")
            if not self._of_network:  # what a function computes is not known, so its size stands for it
                cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                self._features["log_step_cpu_us"] = SIZE_WEIGHT * math.log10(1 + 1e6 * cpu_s / steps)
            self._features |= self._event_features(counters.read(), steps)
            self._counters = None

    def rotate(self) -> None:
        """Count the next hardware events from now on, if not all can be counted at once; call it after every step."""
        if self._counters is not None:
            self._counters.rotate()

    @property
    def has_all_events(self) -> bool:
        """Return whether every group of events was counted in the current block of `steps`."""
        return self._counters is None or self._counters.has_counted_all

    @property
    def has_operators(self) -> bool:
        """Return whether the operators of a step were counted."""
        return "operators" in self._sources

    @property
    def is_complete(self) -> bool:
        """Return whether the profile describes the job well enough to find it again."""
        return self.has_operators or not self._of_network

    @property
    def profile(self) -> JobProfile:
        """Return the profile from all measurements so far."""
        return JobProfile(dict(sorted(self._features.items())), tuple(self._sources))

    def _add_source(self, source: str) -> None:
        if source not in self._sources:
            self._sources.append(source)

    def _event_features(self, counts: Mapping[str, float], steps: int) -> dict[str, float]:
        if not counts:
            return {}
        hardware = {name: count for name, count in counts.items() if name in HARDWARE_EVENTS}
        software = {name: count for name, count in counts.items() if name not in HARDWARE_EVENTS}
        features = {f"log_{name}": DISTURBED_WEIGHT * math.log10(1 + count / steps) for name, count in software.items()}
        for source, events in (("software events", software), ("hardware events", hardware)):
            if events:
                self._add_source(source)
        for name, total in EVENT_RATIOS.items():
            if name in hardware and total in hardware:
                features[f"{name}_per_{total}"] = HARDWARE_WEIGHT * hardware[name] / max(hardware[total], 1.0)
        return features


def operator_kind(operator: str) -> str:
    """Return the kind of an operator such as `aten.addmm.default`."""
    name = operator.split(".")[1] if "." in operator else operator
    return next((kind for part, kind in KINDS.items() if part in name), OTHER_KIND)


def _elements_read(operator: Any, args: Any, out: Any) -> int:
    name = str(getattr(operator, "_overloadpacket", operator)).rpartition(".")[2]
    return _elements(out) if name in GATHERS else _elements(args)


def _process_features(
    before: resource.struct_rusage, after: resource.struct_rusage, wall_s: float, steps: int
) -> dict[str, float]:
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    system_s = after.ru_stime - before.ru_stime
    page_faults = after.ru_minflt - before.ru_minflt
    return {
        "busy_cores": DISTURBED_WEIGHT * min(cpu_s / wall_s, os.cpu_count() or 1),
        "system_share": DISTURBED_WEIGHT * system_s / cpu_s if cpu_s > 0 else 0.0,
        "log_faults": DISTURBED_WEIGHT * math.log10(1 + page_faults / steps),
    }


def _elements(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel()
    if isinstance(value, (list, tuple)):
        return sum(map(_elements, value))
    return 0
