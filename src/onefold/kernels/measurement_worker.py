"""The worker process of a CandidateRunner: `python -m onefold.kernels.measurement_worker FD` builds and times kernels.

It never imports torch, so that it starts within a second, and it may crash at any moment, since it runs untested code.
A message is the name of a function with its arguments; the reply is a value or an error, with the time and energy.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onefold import meter
from onefold.kernels.model_builds import check_import, compile_model, list_operators, list_unsupported
from onefold.processes import Channel, connect_to_parent
from onefold.runtimes.call_timing import time_served

# Larger weights are out of cache when a model reaches the operator again: a convolution with 2.4 MB of weights took
# 180 us with a warm cache but 310 to 440 us inside a model, and the fastest candidates of both differed.
OUT_OF_CACHE_BYTES = 256 * 2**10
CACHE_FLUSH, MAX_FLUSHED_RUNS = "cache_flush_cpu_non_first_arg", 60
PROJECTIONS = 4  # random projections of an output: enough to tell whether two outputs are equal
ERROR_CHARACTERS = 2000
Array = np.ndarray[Any, Any]
ArgumentTypes = tuple[tuple[str, tuple[int, ...]], ...]  # dtype and shape of each argument


def build(module: Any, target: dict[str, Any], file: str) -> None:
    """Compile a TIR module into a shared library, or into a tar archive of objects for another machine to link."""
    from onefold.kernels.toolchain import export_library, register_intrinsics, tvm

    register_intrinsics(target.get("mtriple") or platform.machine())
    transform = __import__("tvm.s_tir.transform", fromlist=["transform"])
    prepared = transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    export_library(tvm().driver.build(prepared, target=tvm().target.Target(target)), file)


def time_kernel(
    file: str, arguments: ArgumentTypes, repeats: int, min_repeat_ms: int, remote: str | None
) -> dict[str, Any]:
    """Time the kernel of a library; return its latencies and the projections of its output."""
    with _LoadedLibrary(file, remote) as (library, device, runtime):
        tensors = [runtime.tensor(_random_tensor(*argument), device) for argument in arguments]
        library["main"](*tensors)
        output = _project(tensors[-1].numpy())
        latencies = timing_function(arguments)(library, device, tensors, repeats, min_repeat_ms)
        return {"latencies": latencies, "output": output}


def timing_function(arguments: ArgumentTypes) -> Callable[..., list[float]]:
    """Return how to time a kernel: with a cold cache if its weights (all inputs but the first) are large."""
    weight_bytes = sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in arguments[1:-1])
    return time_out_of_cache if weight_bytes > OUT_OF_CACHE_BYTES else time_warm_cache


def time_warm_cache(library: Any, device: Any, tensors: Sequence[Any], repeats: int, min_repeat_ms: int) -> list[float]:
    """Time the kernel with a warm cache."""
    evaluate = library.time_evaluator("main", device, number=1, repeat=repeats, min_repeat_ms=min_repeat_ms)
    return [float(latency) for latency in evaluate(*tensors).results]


def time_out_of_cache(
    library: Any, device: Any, tensors: Sequence[Any], repeats: int, min_repeat_ms: int
) -> list[float]:
    """Time the kernel with its weights flushed from the caches before each of at most MAX_FLUSHED_RUNS runs."""

    def evaluate(count: int) -> list[float]:
        timer = library.time_evaluator("main", device, number=1, repeat=count, f_preproc=CACHE_FLUSH)
        return [float(latency) for latency in timer(*tensors).results]

    fastest_s = min(evaluate(repeats))
    return evaluate(max(repeats, min(MAX_FLUSHED_RUNS, round(repeats * min_repeat_ms * 1e-3 / fastest_s))))


def time_remote_model(file: str, inputs: Sequence[Array], repeats: int, remote: str) -> dict[str, Any]:
    """Time a whole model on another machine, which serves it there; return its latencies and its outputs."""
    from tvm import relax

    with _LoadedLibrary(file, remote) as (library, device, runtime):
        machine = relax.VirtualMachine(library, device)
        machine.set_input("main", *(runtime.tensor(array, device) for array in inputs))
        machine.invoke_stateful("main")
        result = machine.get_outputs("main")
        outputs = [tensor.numpy() for tensor in (result if isinstance(result, (list, tuple)) else [result])]
        evaluate = machine.time_evaluator("invoke_stateful", device, number=1, repeat=repeats, min_repeat_ms=5)
        latencies = [float(latency) for latency in evaluate("main").results]
        del machine, evaluate, result  # they refer to each other and keep a remote session open
        return {"latencies": latencies, "outputs": outputs}


class _LoadedLibrary:
    """A library loaded on this machine or through a TVM RPC server."""

    def __init__(self, file: str, remote: str | None) -> None:
        self.file, self.remote = file, remote

    def __enter__(self) -> tuple[Any, Any, Any]:
        from onefold.kernels.toolchain import tvm

        if self.remote is None:
            return tvm().runtime.load_module(self.file), tvm().runtime.device("cpu", 0), tvm().runtime
        host, _, port = self.remote.rpartition(":")
        rpc = __import__("tvm.rpc", fromlist=["rpc"])
        self.session = rpc.connect(host, int(port), session_timeout=60)
        self.session.upload(self.file)
        name = os.path.basename(self.file)  # noqa: PTH119 - its name on the server
        return self.session.load_module(name), self.session.cpu(0), tvm().runtime

    def __exit__(self, *_: object) -> None:
        if self.__dict__.pop("session", None) is not None:
            gc.collect()  # a session that is still referenced blocks the next one


def _random_tensor(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the same values every time; integers are zero, since they may be indices."""
    if not dtype.startswith("float"):
        return np.zeros(shape, dtype)
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def _project(output: np.ndarray[Any, Any]) -> list[float]:
    """Return the norm of an output and its random projections."""
    flat = output.astype(np.float64).ravel()
    directions = np.random.default_rng(0).choice((-1.0, 1.0), (PROJECTIONS, flat.size))
    return [float(np.linalg.norm(flat)), *(float(projection) for projection in directions @ flat)]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        build, check_import, list_unsupported, list_operators, compile_model, time_kernel, time_served,
        time_remote_model,
    )
}  # fmt: skip


def serve(channel: Channel) -> None:
    """Answer calls until the parent closes the channel."""
    from onefold.kernels.toolchain import tvm

    tvm()
    energy_meter = meter.choose()
    channel.send("ready")
    while True:
        try:
            name, arguments = channel.receive()
        except (EOFError, OSError):
            return
        started = time.perf_counter()
        with energy_meter.window() as window:
            try:
                value, error = FUNCTIONS[name](*arguments), ""
            except Exception as raised:  # noqa: BLE001 - reported to the parent, which knows the candidate
                value, error = None, (str(raised).strip() or type(raised).__name__)[-ERROR_CHARACTERS:]
        energy = window.measurement.energy
        joules = energy.joules if energy.source == "modelled" else None  # the parent reads the machine's counters
        channel.send((value, error, time.perf_counter() - started, joules))


def main() -> None:
    """Serve the parent process."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # TVM would import it
    serve(connect_to_parent())


if __name__ == "__main__":
    main()
