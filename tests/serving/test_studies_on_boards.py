"""Studies, and commands, that measure through a real agent; the agent and the study are killed meanwhile."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onefold import Budget, Choice, Float, Objective, Space, at_least
from onefold.device import Device
from onefold.device import agent_connection as connections
from onefold.device.agent_connection import AgentConnection
from onefold.device.catalog import save_device
from onefold.device.pairing import save_pairing
from onefold.serving.options import ServingOptions
from onefold.serving.space import ServingSpace
from onefold.study import Home, Study, StudyEvent
from onefold.testing.toy import Spirals
from onefold.vocabulary.records import StudyState
from running_agent import WAIT_S, RunningAgent, running_agent
from small_studies import small_study

SPACE = Space(
    model=dict(width=Choice(4, 8, 16, 24), layers=1),
    training=dict(batch_size=32, optimizer="adam", lr=Float(1e-3, 1e-1, log=True)),
)
SERVING = ServingOptions(space=ServingSpace((1, 8), graph_levels=("all",), executions=("sequential",)))
FASTEST = Objective(minimize="latency_s", require={"accuracy": at_least(0.0)})


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    with running_agent(tmp_path / "board") as running:
        yield running


@pytest.fixture
def board(agent: RunningAgent, home: Path) -> Device:
    """A device of the home that is measured through the agent."""
    save_pairing(agent.pairing, "board", Home(home).pairings)
    save_device(agent.device(), Home(home).devices)
    return agent.device()


def study_on(home: Path, *devices: str, events: list[StudyEvent] | None = None, **options: Any) -> Study:
    wanted = {"space": SPACE, "serving": SERVING, "budget": Budget(trials=4, max_epochs=1), **options}
    on_event = (lambda _: None) if events is None else events.append
    return small_study(Spirals(), home, device=list(devices), on_event=on_event, **wanted)


def timed(agent: RunningAgent) -> int:
    """Return how many latencies the agent has measured."""
    return sum("latency_s" in result.read_text() for result in agent.results)


def test_trials_are_measured_on_the_board(agent: RunningAgent, board: Device, home: Path) -> None:
    study = study_on(home, "board", objective=FASTEST)
    result = study.run()
    with closing(Home(home).store()) as store:
        surfaces = store.trial_surfaces(study.name)
    assert surfaces
    assert all(served.source.is_from_device for surface in surfaces.values() for served in surface.served)
    assert all(trial.metrics["latency_s"] > 0 for trial in result.trials)
    again = timed(agent)
    study_on(home, "board", objective=FASTEST).run()
    assert timed(agent) == again  # the store has it


def test_device_that_disappears_leaves_its_metrics_missing(
    agent: RunningAgent, board: Device, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PATIENCE_S", 0.3)
    events: list[StudyEvent] = []

    def disappear(event: StudyEvent) -> None:
        events.append(event)
        if event.kind == "served" and event.facts()["device"] == "board":
            agent.kill() if agent.process.poll() is None else None

    study = study_on(home, "host", "board", objective=Objective(maximize="accuracy"))
    study.on_event = disappear
    result = study.run()
    by_trial = [{name.partition("@")[2] for name in trial.metrics if "latency_s@" in name} for trial in result.trials]
    assert by_trial[0] == {"host", "board"}
    assert {"host"} in by_trial
    assert all(trial.failure is None for trial in result.trials)


def test_trial_without_a_needed_metric_fails_and_the_study_goes_on(
    agent: RunningAgent, board: Device, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even the first one: the metric is not misspelled, the device is away."""
    monkeypatch.setattr(connections, "FIRST_PATIENCE_S", 0.2)
    agent.kill()
    is_first = True

    def appear(event: StudyEvent) -> None:
        nonlocal is_first
        if event.kind == "failed" and is_first:
            is_first = False
            agent.start()

    study = study_on(home, "board", objective=FASTEST)
    study.on_event = appear
    result = study.run()
    failed = [trial for trial in result.trials if trial.failure is not None]
    assert len(failed) == 1
    assert failed[0].failure is not None
    assert "board does not answer" in failed[0].failure.reason
    assert result.best.metrics["latency_s"] > 0


PROGRAM = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_studies_on_boards import FASTEST, study_on

study_on(Path(sys.argv[1]), "board", objective=FASTEST, name="killed").run()
"""


def test_killed_study_asks_for_what_was_measured(
    agent: RunningAgent, board: Device, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed while an architecture is measured. Exported again, it has other weights, but the same requests."""
    program = PROGRAM.format(path=[entry for entry in sys.path if entry])
    with subprocess.Popen([sys.executable, "-c", program, str(home)]) as process:
        deadline = time.monotonic() + WAIT_S
        while not timed(agent):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
    with agent.connect() as connection:
        while connection.status()["waiting"]:
            time.sleep(0.01)
    measured = {result.stem for result in agent.results}
    with closing(Home(home).store()) as store:
        is_finished = bool(store.trial_surfaces("killed"))
    asked: set[str] = set()
    ask = AgentConnection.ask

    def listen(self: AgentConnection, request: Mapping[str, Any], files: Mapping[str, Path]) -> Mapping[str, Any]:
        asked.add(request["id"])
        return ask(self, request, files)

    monkeypatch.setattr(AgentConnection, "ask", listen)
    written = {result: result.stat().st_mtime_ns for result in agent.results}
    study = Study.open("killed", home=home)
    study.run()
    assert study.record.state is StudyState.DONE
    assert measured <= asked or is_finished
    assert {result: result.stat().st_mtime_ns for result in written} == written
