"""Time the call that serves a model, in the process where it is loaded."""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from onefold.agent.loaded_model import Array

MIN_SERVED_S, MAX_SERVED_S = 0.005, 5.0  # of one repeat, and until the last one starts
MAX_OPEN = 4  # models: as many as onnxruntime has forms
Opener = Callable[[], Callable[..., Any]]  # loads a model in its runtime and returns the call that serves it


def time_served(opener: Opener, inputs: Sequence[Array], repeats: int) -> dict[str, Any]:
    """Time the call that serves a model; return its latencies and its outputs.

    The opener loads the model in its runtime, once for several requests. A repeat takes MIN_SERVED_S or one call, and
    no repeat but the first starts after MAX_SERVED_S.
    """
    served = _open_served(opener)
    started = time.perf_counter()
    outputs = served(*inputs)  # also warms up
    latencies: list[float] = []
    gc.disable()
    try:
        while len(latencies) < repeats and (not latencies or time.perf_counter() - started < MAX_SERVED_S):
            latencies.append(_time_calls(served, inputs))
    finally:
        gc.enable()
    return {"latencies": latencies, "outputs": outputs if isinstance(outputs, list) else [outputs]}


def _time_calls(served: Callable[..., Any], inputs: Sequence[Array]) -> float:
    """Return the median latency of the calls that fit into MIN_SERVED_S, at least one.

    Under contention some calls are interrupted, which increases their mean many times.
    """
    clock = time.perf_counter
    latencies: list[float] = []
    started = before = clock()
    while not latencies or before - started < MIN_SERVED_S:
        served(*inputs)
        after = clock()
        latencies.append(after - before)
        before = after
    return median(latencies)


_served: dict[bytes, Callable[..., Any]] = {}  # models that are open, by their pickled openers


def _open_served(opener: Opener) -> Callable[..., Any]:
    key = pickle.dumps(opener)
    if key not in _served:
        while len(_served) >= MAX_OPEN:
            del _served[next(iter(_served))]
        _served[key] = opener()
    return _served[key]
