"""The far side of a bench: `python -m onefold.kernels.worker FD` compiles and times until its other side is gone.

It never loads torch, so that it starts in a second, and it may die at any moment: what it runs was never run before.
Messages are pickled: a name and arguments in, an answer or a complaint out.
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
from onefold.processes import Channel, connect_to_parent

# Weights that are larger are not in the caches any more when a model comes to an operator again: a convolution with 2.4
# MB of them took 180 us over and over, 310 to 440 us inside a model, and the fastest of the one were not those of the
# other. So they are timed as they are met.
LARGE = 256 * 2**10
FLUSH, MOST_RUNS = "cache_flush_cpu_non_first_arg", 60
PROJECTIONS = 4  # of an answer on random directions: enough to tell whether two answers are the same
Arguments = tuple[tuple[str, tuple[int, ...]], ...]  # type and shape of each


def build(module: Any, target: dict[str, Any], file: str) -> None:
    """Compiles loops into a library; into an archive of objects where another machine will link them."""
    from onefold.kernels.toolchain import learn_patterns, tvm

    learn_patterns(target.get("mtriple") or platform.machine())
    transform = __import__("tvm.s_tir.transform", fromlist=["transform"])
    prepared = transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    built = tvm().driver.build(prepared, target=tvm().target.Target(target))
    export(built, file)


def export(built: Any, file: str) -> None:
    """Writes a library, or an archive where the name ends so."""
    if file.endswith(".tar"):
        built.export_library(file, fcompile=__import__("tvm.support.tar", fromlist=["tar"]).tar)
    else:
        built.export_library(file)


def run(file: str, arguments: Arguments, repeats: int, least_ms: int, remote: str | None) -> dict[str, Any]:
    """Times a library's only function; also what it answers, in short."""
    with _Opened(file, remote) as (library, device, runtime):
        values = [runtime.tensor(_made_up(*one), device) for one in arguments]
        library["main"](*values)
        answer = _in_short(values[-1].numpy())
        return {"times": clock_for(arguments)(library, device, values, repeats, least_ms), "answer": answer}


def clock_for(arguments: Arguments) -> Callable[..., list[float]]:
    """How to time a function that takes these: by the bytes of all but its first input, which are weights as a rule."""
    weights = sum(np.dtype(kind).itemsize * math.prod(shape) for kind, shape in arguments[1:-1])
    return with_cold_weights if weights > LARGE else with_warm_weights


def with_warm_weights(library: Any, device: Any, values: Sequence[Any], repeats: int, least_ms: int) -> list[float]:
    """Over and over."""
    evaluate = library.time_evaluator("main", device, number=1, repeat=repeats, min_repeat_ms=least_ms)
    return [float(one) for one in evaluate(*values).results]


def with_cold_weights(library: Any, device: Any, values: Sequence[Any], repeats: int, least_ms: int) -> list[float]:
    """Takes all but the input out of the caches before each run, of which there are MOST_RUNS at most."""

    def evaluate(count: int) -> list[float]:
        timer = library.time_evaluator("main", device, number=1, repeat=count, f_preproc=FLUSH)
        return [float(one) for one in timer(*values).results]

    fastest = min(evaluate(repeats))
    return evaluate(max(repeats, min(MOST_RUNS, round(repeats * least_ms * 1e-3 / fastest))))


def whole(file: str, inputs: Sequence[np.ndarray[Any, Any]], repeats: int, remote: str | None) -> dict[str, Any]:
    """Times a whole model; also all that it answers."""
    from tvm import relax

    with _Opened(file, remote) as (library, device, runtime):
        machine = relax.VirtualMachine(library, device)
        machine.set_input("main", *(runtime.tensor(one, device) for one in inputs))
        machine.invoke_stateful("main")
        found = machine.get_outputs("main")
        outputs = [one.numpy() for one in (found if isinstance(found, (list, tuple)) else [found])]
        evaluate = machine.time_evaluator("invoke_stateful", device, number=1, repeat=repeats, min_repeat_ms=5)
        times = [float(one) for one in evaluate("main").results]
        del machine, evaluate, found  # they hold on to each other, and to a session over there
        return {"times": times, "outputs": outputs}


class _Opened:
    """A library, on this machine or on one that runs TVM's server."""

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
        name = os.path.basename(self.file)  # noqa: PTH119 - the far side's name of it
        return self.session.load_module(name), self.session.cpu(0), tvm().runtime

    def __exit__(self, *_: object) -> None:
        if self.__dict__.pop("session", None) is not None:
            gc.collect()  # a session that somebody still holds blocks the next one


def _made_up(kind: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The same numbers every time; whole ones are zero, since they may be places in something else."""
    if not kind.startswith("float"):
        return np.zeros(shape, kind)
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(kind)


def _in_short(answer: np.ndarray[Any, Any]) -> list[float]:
    flat = answer.astype(np.float64).ravel()
    directions = np.random.default_rng(0).choice((-1.0, 1.0), (PROJECTIONS, flat.size))
    return [float(np.linalg.norm(flat)), *(float(one) for one in directions @ flat)]


DOES: dict[str, Callable[..., Any]] = {"build": build, "run": run, "whole": whole}


def serve(channel: Channel) -> None:
    """Answers one message after the other until the other side is gone."""
    from onefold.kernels.toolchain import tvm

    tvm()
    measured = meter.choose()
    channel.send("ready")
    while True:
        try:
            name, arguments = channel.receive()
        except (EOFError, OSError):
            return
        started = time.perf_counter()
        with measured.window() as window:
            try:
                answer, complaint = DOES[name](*arguments), ""
            except Exception as error:  # noqa: BLE001 - told to the other side, which knows what was asked
                answer, complaint = None, (str(error).strip() or type(error).__name__)[-2000:]
        energy = window.measurement.energy
        joules = energy.joules if energy.source == "modelled" else None  # counters of the machine are read over there
        channel.send((answer, complaint, time.perf_counter() - started, joules))


def main() -> None:
    """Serve the parent process."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # TVM would load it for itself
    serve(connect_to_parent())


if __name__ == "__main__":
    main()
