"""How a job uses the machine: the operators of one step, the process over a window, and the kernel's counters.

Every figure is scaled so that a difference of one is a large one: shares as they are, sizes by powers of a
hundred. What other programs can change weighs little, the operators weigh most.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from onefold.meter.counters import HARDWARE_EVENTS, Counters
from onefold.vocabulary.knobs import Profile

# The first that is part of an operator's name says what kind it is.
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
OTHER = "elementwise"
SIZE = 0.5  # of a power of ten
DISTURBED = 0.05  # of what other programs can change
HARDWARE = 0.3


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what the operators of a step touch and compute, forward and backward."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0
        self.flops = 0.0
        self.elements: Counter[str] = Counter()  # by kind

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        self.elements[kind_of(str(func))] += _elements(args) + _elements(out)
        count = flop_registry.get(getattr(func, "_overloadpacket", None))
        if count is not None:
            with suppress(Exception):  # a formula that does not know this case is worth no trial
                self.flops += count(*args, **(kwargs or {}), out_val=out)
        return out

    def features(self) -> dict[str, float]:
        """Shares by kind, and sizes."""
        total = sum(self.elements.values()) or 1
        kinds = sorted({*KINDS.values(), OTHER})
        shares = {f"{kind}_share": self.elements[kind] / total for kind in kinds}
        sizes = {"operators": self.calls, "elements": total, "flops": self.flops}
        return {**shares, **{f"log_{name}": SIZE * math.log10(1 + size) for name, size in sizes.items()}}


class Profiler:
    """Makes a profile: `steps` around a window of them, `operators` around one more."""

    def __init__(self) -> None:
        self._features: dict[str, float] = {}
        self._made_of: list[str] = []

    @contextmanager
    def operators(self) -> Iterator[None]:
        """Looks at the operators of the block, which takes longer for it."""
        with Operators() as seen:
            yield
        if seen.calls:
            self._features |= seen.features()
            self._note("operators")

    @contextmanager
    def steps(self, count: Callable[[], int]) -> Iterator[None]:
        """Counts what the process does in the block; in the end `count` tells how many steps it had."""
        with ExitStack() as stack:
            counters = stack.enter_context(Counters())
            before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            yield
            wall_s = max(time.perf_counter() - began, 1e-9)
            used = resource.getrusage(resource.RUSAGE_SELF)
            steps = max(1, count())
            self._features |= _process_features(before, used, wall_s, steps)
            self._note("process")
            self._features |= self._event_features(counters.read(), steps)

    @property
    def has_operators(self) -> bool:
        """Whether the operators of a step were seen."""
        return "operators" in self._made_of

    @property
    def profile(self) -> Profile:
        """What was seen so far."""
        return Profile(dict(sorted(self._features.items())), tuple(self._made_of))

    def _note(self, source: str) -> None:
        if source not in self._made_of:
            self._made_of.append(source)

    def _event_features(self, counts: Mapping[str, float], steps: int) -> dict[str, float]:
        if not counts:
            return {}
        hardware = {name: count for name, count in counts.items() if name in HARDWARE_EVENTS}
        software = {name: count for name, count in counts.items() if name not in HARDWARE_EVENTS}
        features = {f"log_{name}": DISTURBED * math.log10(1 + count / steps) for name, count in software.items()}
        for name, found in (("software events", software), ("hardware events", hardware)):
            if found:
                self._note(name)
        for name, over in RATIOS.items():
            if name in hardware and over in hardware:
                features[f"{name}_per_{over}"] = HARDWARE * hardware[name] / max(hardware[over], 1.0)
        return features


# Hardware events say something as shares of another one.
RATIOS = {
    "instructions": "cycles",
    "cache_misses": "cache_references",
    "branch_misses": "branch_instructions",
    "stalled_cycles_frontend": "cycles",
    "stalled_cycles_backend": "cycles",
    "l1d_load_misses": "l1d_loads",
    "llc_load_misses": "llc_loads",
}


def kind_of(operator: str) -> str:
    """What kind an operator is, such as `aten.addmm.default`."""
    name = operator.split(".")[1] if "." in operator else operator
    return next((kind for part, kind in KINDS.items() if part in name), OTHER)


def _process_features(
    before: resource.struct_rusage, after: resource.struct_rusage, wall_s: float, steps: int
) -> dict[str, float]:
    busy_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    system_s = after.ru_stime - before.ru_stime
    faults = after.ru_minflt - before.ru_minflt
    return {
        "busy_cores": DISTURBED * min(busy_s / wall_s, os.cpu_count() or 1),
        "system_share": DISTURBED * system_s / busy_s if busy_s > 0 else 0.0,
        "log_faults": DISTURBED * math.log10(1 + faults / steps),
    }


def _elements(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel()
    if isinstance(value, (list, tuple)):
        return sum(map(_elements, value))
    return 0
