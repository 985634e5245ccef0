"""Compare runtimes by the call that serves: each in a process of its own, all of them in turns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from onefold.agent.loaded_model import Array
from onefold.processes import Worker, describe_exit
from onefold.runtimes.call_timing import Opener
from onefold.vocabulary.errors import ModelError

TURNS = 3  # of which the minimum counts: contention only ever increases a latency
CLOSE, EXTRA_TURNS = 1.2, 5  # runtimes within this factor of the fastest are timed more often
REPEATS, TIMEOUT_S = 10, 120.0  # of a turn
# BLAS threads keep spinning for tens of milliseconds after a call. Beside two threads of a candidate on two cores they
# increased its latency up to forty times.
SINGLE_THREADED_BLAS = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
Timer = Callable[[], float]  # raises ModelError


class ServingProcess:
    """A process that serves models of one runtime to be timed, started on first use. A context manager."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def time(self, opener: Opener, inputs: Sequence[Array], repeats: int = REPEATS) -> list[float]:
        """Return the latencies of the call that serves a model, loaded by the opener. Raises ModelError if it fails."""
        if self._worker is None:
            worker = Worker("onefold.runtimes.timing_worker", environment=SINGLE_THREADED_BLAS, silent=True)
            self._worker = worker
        try:
            result, error = self._worker.ask((opener, list(inputs), repeats), TIMEOUT_S)
        except TimeoutError:
            self.close()
            raise ModelError(f"no answer within {TIMEOUT_S:g} s") from None
        except (EOFError, OSError):
            code = self._worker.exit_code()
            self.close()
            raise ModelError(f"the process that serves the model {describe_exit(code)}") from None
        if error:
            raise ModelError(error)
        latencies: list[float] = result["latencies"]
        return latencies

    def close(self) -> None:
        """End the process. Harmless when repeated."""
        if self._worker is not None:
            self._worker.kill()
        self._worker = None

    def __enter__(self) -> ServingProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def call_timer(stack: ExitStack, opener: Opener, inputs: Sequence[Array]) -> Timer:
    """Return what times the call that serves a model, in a process that ends with the stack."""
    process = stack.enter_context(ServingProcess())
    return lambda: median(process.time(opener, inputs))


def time_in_turns(
    timers: Mapping[str, Timer], *, reference: str = "", ineligible: Collection[str] = (), failures: Any = None
) -> dict[str, list[float]]:
    """Return the latencies of all runtimes.

    Args:
        timers: Time a runtime each.
        reference: Serves the model as it is: its failure is raised.
        ineligible: What cannot win, and is not timed more often if it is close.
        failures: A dict that receives the reasons of runtimes that fail, which are left out.
    """
    latencies: dict[str, list[float]] = {name: [] for name in timers}
    for turn in range(TURNS + EXTRA_TURNS):
        eligible = {name: values for name, values in latencies.items() if name not in ineligible}
        for name in list(latencies) if turn < TURNS else contenders(eligible):
            try:
                latencies[name].append(timers[name]())
            except ModelError as error:
                if name == reference:
                    raise
                del latencies[name]
                if failures is not None:
                    failures[name] = str(error)
    return latencies


def contenders(latencies: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the runtimes within CLOSE of the fastest; none if there is a clear winner."""
    if not latencies:
        return []
    fastest = min(map(min, latencies.values()))
    close = [name for name, values in latencies.items() if min(values) <= CLOSE * fastest]
    return close if len(close) > 1 else []
