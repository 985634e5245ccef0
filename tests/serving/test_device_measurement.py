"""Several boards measure at the same time, and none keeps a study from ending."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from onefold.device import QUICK, Device, TimingEffort, is_quiet, open_session
from onefold.device.pairing import Pairing
from onefold.device.remote_session import RemoteSession
from onefold.processes import available_cores
from onefold.serving.device_measurement import DeviceMeasurement, SurfaceRequest, doubt
from onefold.serving.space import ServingSpace
from onefold.serving.tuner import PointSearchOptions
from onefold.vocabulary.errors import DeviceUnavailable, ModelError
from onefold.vocabulary.serving import Disturbance
from running_agent import WAIT_S, Link, RunningAgent, running_agent

SPACE = ServingSpace((1, 8), (1,), ("all",), ("sequential",))

LONG = TimingEffort(warm_up_runs=1, min_runs=50, max_runs=10_000, max_seconds=0.1, precision=0.0)  # many time slices


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    with running_agent(tmp_path_factory.mktemp("board")) as running:
        yield running


@pytest.fixture
def link(agent: RunningAgent) -> Iterator[Link]:
    opened = Link(agent.address)
    yield opened
    opened.close()


def measurement(agent: RunningAgent, name: str, link: Link | None = None) -> DeviceMeasurement:
    device = agent.device(name)
    found = agent.pairing
    address = found.address if link is None else link.address
    connection = Pairing(address, found.fingerprint, found.token).connect(name)
    return DeviceMeasurement(device, partial(RemoteSession, device, connection), SPACE)


def request(model: Path, run: str) -> SurfaceRequest:
    return SurfaceRequest(run, model, PointSearchOptions(thorough=False), QUICK)


def test_boards_measure_at_the_same_time(agent: RunningAgent, link: Link, model: Path) -> None:
    """One that cannot be reached delays nobody, and answers when it can be."""
    away, here = measurement(agent, "away", link), measurement(agent, "here")
    try:
        away.start(request(model, "first")).result(WAIT_S)
        link.cut()
        late = away.start(request(model, "second"))
        surface = here.start(request(model, "third")).result(WAIT_S)
        assert surface.device == "here"
        assert not late.done()
        link.mend()
        assert late.result(WAIT_S).device == "away"
    finally:
        away.close()
        here.close()


def test_closing_does_not_wait_for_a_board(agent: RunningAgent, link: Link, model: Path) -> None:
    away = measurement(agent, "away", link)
    away.start(request(model, "before")).result(WAIT_S)
    link.cut()
    late = away.start(request(model, "after"))
    waiting = away.start(request(model, "last"))
    while not late.running():
        time.sleep(0.01)
    away.close()
    with pytest.raises(DeviceUnavailable, match="away"):
        late.result(WAIT_S)
    assert waiting.cancelled()


def test_model_that_fails_does_not_end_the_measurement(agent: RunningAgent, model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    board = measurement(agent, "board")
    try:
        with pytest.raises(ModelError):
            board.start(request(tmp_path / "bad.onnx", "bad")).result(WAIT_S)
        assert board.start(request(model, "good")).result(WAIT_S).served
    finally:
        board.close()


def test_disturbed_surface_is_measured_again(agent: RunningAgent, model: Path) -> None:
    board = measurement(agent, "board")
    try:
        surface = board.start(request(model, "once")).result(WAIT_S)
        doubtful = replace(
            surface, served=tuple(replace(each, disturbance=Disturbance(1.0, "hot")) for each in surface.served)
        )
        again = board.start(replace(request(model, "twice"), doubtful=doubtful)).result(WAIT_S)
    finally:
        board.close()
    assert doubt(again) < doubt(doubtful)
    assert again.served != doubtful.served


def test_disturbed_surface_stands_while_this_machine_is_busy(this_host: Device, model: Path) -> None:
    here = DeviceMeasurement(this_host, partial(open_session, this_host, this_host), SPACE)
    surface = here.start(request(model, "")).result()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in available_cores()]
    try:
        until(lambda: not is_quiet())
        assert here.start(replace(request(model, ""), doubtful=surface)).result() is surface
    finally:
        for process in busy:
            process.kill()
            process.wait()
        here.close()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel has no schedstats")
def test_other_work_is_paused_only_if_reserved_cores_were_disturbed(this_host: Device, model: Path) -> None:
    core = available_cores()[-1]
    spin = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(3)]
    pauses = []

    @contextmanager
    def pause() -> Iterator[None]:
        pauses.append(len(pauses))
        for process in busy:
            process.kill()
            process.wait()
        yield

    on_core = partial(open_session, this_host, this_host, cores=[core])
    here = DeviceMeasurement(this_host, on_core, SPACE, cores=[core], pause=pause)
    try:
        until(lambda: not is_quiet([core]))
        surface = here.start(replace(request(model, ""), effort=LONG)).result()
    finally:
        here.close()
        for process in busy:
            process.kill()
            process.wait()
    assert pauses == [0]
    assert {served.point.threads for served in surface.served if served.runs} == {1}


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline
