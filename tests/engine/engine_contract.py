"""The contract of Engine as a test suite. Subclass EngineContract with a `make` fixture."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from onefold.engine import Call, CallFailed, CallFinished, CallReported, Engine, Event, Setup
from onefold.vocabulary.records import FailureKind

Tick = Callable[[], None]
Make = Callable[[Setup], Engine]


def counting(context: Any, last: int, *, tick: Tick) -> Generator[int, None, str]:
    """Report 1 to `last`, then return a text with the context."""
    for number in range(1, last + 1):
        tick()
        yield number
    return f"counted with {context}"


def raising(context: Any, *, tick: Tick) -> Generator[int, None, None]:
    """Report once, then raise."""
    yield 1
    raise ValueError("no such luck")


def changing(context: Any, folder: str, *, tick: Tick) -> Generator[dict[str, Any], None, None]:
    """Report the state of the process, then change it."""
    import numpy as np
    import torch

    yield {
        "folder": str(Path.cwd()),
        "variable": os.environ.get("ONEFOLD_TEST"),
        "path": list(sys.path),
        "numpy": np.geterr(),
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "benchmark": torch.backends.cudnn.benchmark,
        "mkldnn": torch.backends.mkldnn.enabled,
        "autocast": (torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu"))),
        "denormal": float(torch.full((1,), 1e-40, dtype=torch.float32, device="cpu") * 1) > 0,
        "hooks": int(torch.nn.Linear(1, 1, device="cpu")(torch.ones(1, device="cpu")).numel()),
        "warnings": ("ignore", None, UnicodeWarning, None, 0) in warnings.filters,
        "recursion": sys.getrecursionlimit(),
        "collector": gc.isenabled(),
        "timeout": socket.getdefaulttimeout(),
        "logging": logging.root.manager.disable,
        "temporary": tempfile.tempdir,
        "alarm": signal.getsignal(signal.SIGALRM) is print,
        "timer": signal.getitimer(signal.ITIMER_REAL) > (0.0, 0.0),
        "masked": signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "output": sys.stdout is None,
    }
    os.chdir(folder)
    os.environ["ONEFOLD_TEST"] = "changed"
    sys.path.append(folder)
    np.seterr(divide="raise")
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = True
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float16)
    torch.set_flush_denormal(True)
    torch.nn.modules.module.register_module_forward_hook(lambda _module, _inputs, output: output.new_zeros(3))
    warnings.simplefilter("ignore", UnicodeWarning)
    sys.setrecursionlimit(3000)
    gc.disable()
    socket.setdefaulttimeout(0.1)
    logging.disable(logging.CRITICAL)
    tempfile.tempdir = "/nowhere"
    signal.signal(signal.SIGALRM, print)
    signal.alarm(3600)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    sys.stdout = None  # type: ignore[assignment]
    raise ValueError("no such luck")


def context_of(word: str) -> str:
    """Return the context of calls."""
    return word


def events_of(engine: Engine, run: int) -> list[Event]:
    """Return all events of a run, of which the last is its end."""
    events: list[Event] = []
    while not events or not isinstance(events[-1], (CallFinished, CallFailed)):
        events += [event for event in engine.wait(5.0) if event.run == run]
    return events


class EngineContract:
    """The promises of `Engine`, one test each."""

    @pytest.fixture
    def make(self) -> Make:
        """Return a function from a set-up to a new engine."""
        raise NotImplementedError

    def test_yields_are_reported_in_order_and_the_return_is_the_result(self, make: Make) -> None:
        with make(Setup(context_of, ("care",))) as engine:
            run = engine.start(Call(counting, (3,)))
            events = events_of(engine, run)
        assert events == [*(CallReported(run, n) for n in (1, 2, 3)), CallFinished(run, "counted with care")]

    def test_a_call_that_raises_is_an_event_with_its_traceback(self, make: Make) -> None:
        with make(Setup(context_of, ("care",))) as engine:
            end = events_of(engine, engine.start(Call(raising)))[-1]
            assert isinstance(end, CallFailed)
            assert end.failure.kind is FailureKind.RAISED
            assert end.failure.reason == "ValueError: no such luck"
            assert "no such luck" in end.failure.traceback
            assert not end.retry
            assert isinstance(events_of(engine, engine.start(Call(counting, (1,))))[-1], CallFinished)

    def test_a_call_does_not_see_what_an_earlier_one_changed_in_the_process(self, make: Make, tmp_path: Path) -> None:
        with make(Setup(context_of, ("care",))) as engine:
            states = []
            for _ in range(engine.slots + 1):  # the last call runs in the process of another one
                report, end = events_of(engine, engine.start(Call(changing, (str(tmp_path),))))
                assert isinstance(report, CallReported)
                assert isinstance(end, CallFailed)
                states.append(report.value)
        assert states == [states[0]] * len(states)
        assert states[0]["dtype"] == "torch.float32"

    def test_calls_occupy_slots_until_they_end(self, make: Make) -> None:
        with make(Setup(context_of, ("care",))) as engine:
            assert engine.free_slots == engine.slots
            runs = [engine.start(Call(counting, (2,))) for _ in range(engine.slots)]
            assert engine.free_slots == 0
            ended: set[int] = set()
            while len(ended) < len(runs):
                ended |= {event.run for event in engine.wait(5.0) if isinstance(event, CallFinished)}
            assert engine.free_slots == engine.slots

    def test_lending_cores_changes_no_event(self, make: Make) -> None:
        with make(Setup(context_of, ("pride",))) as engine:
            run = engine.start(Call(counting, (3,)))
            engine.lend(run, 1)
            engine.lend(run, 0)
            assert events_of(engine, run)[-1] == CallFinished(run, "counted with pride")
            engine.lend(run, 1)  # it has ended

    def test_a_pause_changes_no_event(self, make: Make) -> None:
        with make(Setup(context_of, ("care",))) as engine:
            run = engine.start(Call(counting, (3,)))
            with engine.paused():
                pass
            events = events_of(engine, run)
        assert events == [*(CallReported(run, n) for n in (1, 2, 3)), CallFinished(run, "counted with care")]

    def test_closing_stops_running_calls(self, make: Make) -> None:
        with make(Setup(context_of, ("care",))) as engine:
            run = engine.start(Call(counting, (10**9,)))
            assert engine.wait(5.0)[0] == CallReported(run, 1)
        assert engine.wait(0.0) == []
