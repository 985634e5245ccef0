"""Sessions with a real agent: over links that are cut, with processes that are killed at any moment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path

import psutil
import pytest
from session_contract import SHORT, SessionContract

from misbehaving_models import endless
from onefold.agent.cpu_contention import NEGLIGIBLE
from onefold.agent.requests import Point, effort_from_json, point_from_json
from onefold.device import PRECISE, QUICK, Device, Session, TimingEffort, open_session
from onefold.device.agent_device import device_of_agent
from onefold.device.pairing import save_pairing
from onefold.device.remote_session import RemoteSession
from onefold.runtimes.conversion import convert_model
from onefold.runtimes.registry import find_runtime, missing_package
from onefold.vocabulary.errors import DeviceUnavailable, MeasuringFailed, ModelError
from onefold.vocabulary.records import to_json
from onefold.vocabulary.serving import LatencySource, ServingPoint
from running_agent import WAIT_S, Link, RunningAgent, running_agent

LONG = TimingEffort(0, min_runs=40, max_runs=40, max_seconds=0.0, idle_s=0.05)  # two seconds, in which much may happen


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    with running_agent(tmp_path_factory.mktemp("board")) as running:
        yield running


@pytest.fixture
def session(agent: RunningAgent) -> Iterator[RemoteSession]:
    with RemoteSession(agent.device(), agent.connect()) as opened:
        yield opened


def wait_until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_measuring(agent: RunningAgent) -> bool:
    with agent.connect() as connection:
        return bool(connection.status()["waiting"])


class TestContract(SessionContract):
    source = LatencySource.MEASURED

    @pytest.fixture
    def session(self, agent: RunningAgent) -> Iterator[Session]:  # type: ignore[override]
        with RemoteSession(agent.device(), agent.connect()) as opened:
            yield opened

    @pytest.fixture
    def unopened(self, agent: RunningAgent) -> Session:
        return RemoteSession(agent.device(), agent.connect())


class TestMeasuring:
    def test_model_is_uploaded_once(self, agent: RunningAgent, session: RemoteSession, model: Path) -> None:
        session.serve(model, ServingPoint(), SHORT)
        files = {path.name: path.stat().st_ino for path in (agent.folder / "files").iterdir()}
        with RemoteSession(agent.device(), agent.connect()) as other:
            other.serve(model, ServingPoint(), SHORT)
        assert {path.name: path.stat().st_ino for path in (agent.folder / "files").iterdir()} == files

    @pytest.mark.parametrize("runtime", ["openvino", "ncnn"])
    def test_board_serves_models_in_the_runtimes_that_it_has(
        self, runtime: str, session: RemoteSession, model: Path, tmp_path: Path
    ) -> None:
        if package := missing_package(find_runtime(runtime)):
            pytest.skip(f"{package} is not installed")
        copy = tmp_path / "model.onnx"
        shutil.copyfile(model, copy)
        assert not convert_model(copy, [runtime])[0].reason
        assert session.serve(copy, ServingPoint(4, runtime=runtime), SHORT).runs >= SHORT.min_runs

    def test_board_refuses_programs_of_pytorch(self, session: RemoteSession, model: Path, tmp_path: Path) -> None:
        copy = tmp_path / "model.onnx"
        shutil.copyfile(model, copy)
        assert not convert_model(copy, ["pytorch"])[0].reason
        with pytest.raises(ModelError, match="models for pytorch cannot be loaded"):
            session.serve(copy, ServingPoint(runtime="pytorch"), SHORT)

    def test_repeated_requests_are_measured_again(
        self, agent: RunningAgent, session: RemoteSession, model: Path
    ) -> None:
        before = len(agent.results)
        for _ in range(3):
            session.serve(model, ServingPoint(), SHORT)
        assert len(agent.results) == before + 3

    def test_named_run_is_measured_once(self, agent: RunningAgent, model: Path, tmp_path: Path) -> None:
        """Another process that does the same work, here another session, gets what was measured."""

        def work(file: Path) -> list[object]:
            with RemoteSession(agent.device(), agent.connect()) as session:
                session.begin("study 1, architecture a")
                session.prepare(file, None, [ServingPoint()])
                served: list[object] = [session.serve(file, ServingPoint(size), SHORT) for size in (1, 4, 1)]
                return [*served, session.memory(file, ServingPoint())]

        before = len(agent.results)
        first = work(model)
        assert len(agent.results) == before + 4  # the point that is measured twice in a run is
        exported_again = shutil.copy(model, tmp_path / "again.onnx")
        assert work(Path(exported_again)) == first
        assert len(agent.results) == before + 4

    def test_energy_without_a_counter_is_modelled(self, session: RemoteSession, model: Path) -> None:
        served = session.serve(model, ServingPoint(), SHORT)
        if served.energy.source == "modelled":
            assert served.energy.joules == pytest.approx(served.latency_s * session.device.power_w(1))

    def test_hanging_model_is_stopped(self, agent: RunningAgent, tmp_path: Path, model: Path) -> None:
        file = endless(tmp_path / "endless.onnx")
        with RemoteSession(agent.device(), agent.connect(), hang_timeout_s=1.0) as session:
            session.prepare(file, None, [ServingPoint()])
            with pytest.raises(MeasuringFailed, match="stopped on board: no batch ended within 1 s") as failed:
                session.serve(file, ServingPoint(), SHORT)
            assert failed.value.kind == "hung"
            assert session.serve(model, ServingPoint(), SHORT).runs

    def test_changed_runtime_is_refused(self, agent: RunningAgent) -> None:
        device = replace(agent.device(), runtime="onnxruntime 1.0.0")
        with pytest.raises(DeviceUnavailable, match="was added with onnxruntime 1"):  # noqa: SIM117
            with RemoteSession(device, agent.connect()):
                pass

    def test_measuring_there_does_not_need_this_machine(self, session: RemoteSession) -> None:
        assert not session.needs_host

    def test_wire_format_is_that_of_the_vocabulary(self) -> None:
        point = ServingPoint(8, 2, "basic", "parallel", "int8", "spinning")
        assert [field.name for field in fields(Point)] == [field.name for field in fields(ServingPoint)]
        assert asdict(point_from_json(to_json(point))) == to_json(point)
        assert point_from_json({}) == Point(**to_json(ServingPoint()))
        for effort in (QUICK, PRECISE, LONG):
            assert effort_from_json(to_json(effort)) == effort

    def test_disturbance_is_noted(self, session: RemoteSession, model: Path) -> None:
        served = session.serve(model, ServingPoint(), SHORT)
        answer = dict(session._answers[model, served.point])
        session._answers[model, served.point] = {
            **answer,
            "throttling": "under-voltage",
            "contention": NEGLIGIBLE + 0.1,
        }
        assert session.notes(model)[0] == "throttled: under-voltage"
        assert session.notes(model)[1].startswith("contention: other programs took 15")


class TestAbsence:
    def test_killed_agent_is_waited_for(self, tmp_path: Path, model: Path) -> None:
        """The agent is killed while it measures. Its worker dies with it, and the request is answered by the next."""
        with running_agent(tmp_path) as agent:
            agent.pairing  # noqa: B018 - pairs
            with RemoteSession(agent.device(), agent.connect()) as session:
                session.prepare(model, None, [ServingPoint()])
                served = []
                thread = threading.Thread(target=lambda: served.append(session.serve(model, ServingPoint(), LONG)))
                thread.start()
                wait_until(lambda: is_measuring(agent))
                workers = agent.children
                agent.kill()
                _, alive = psutil.wait_procs(workers, timeout=WAIT_S)
                assert not alive
                agent.start()
                thread.join(WAIT_S)
            assert served[0].runs == 40
            assert len(agent.results) == 1

    def test_killed_client_loses_nothing(self, agent: RunningAgent, model: Path, tmp_path: Path) -> None:
        """The client is killed while the agent measures for it; the next one gets that measurement."""
        before = len(agent.results)
        program = f"""
import sys
from pathlib import Path
from onefold.device import Device, TimingEffort
from onefold.device.pairing import Pairing
from onefold.device.remote_session import RemoteSession
from onefold.vocabulary.serving import ServingPoint
pairing = Pairing({agent.pairing.address!r}, {agent.pairing.fingerprint!r}, {agent.pairing.token!r})
device = Device("board", "board", 1, 1.0, 1.0, 10**9, 1.0, 2.0, agent=pairing.fingerprint)
with RemoteSession(device, pairing.connect("board")) as session:
    session.begin("killed client")
    session.prepare(Path({str(model)!r}), None, [ServingPoint()])
    sys.stdout.write("ready\\n"); sys.stdout.flush()
    session.serve(Path({str(model)!r}), ServingPoint(), {LONG!r})
"""
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
            wait_until(lambda: is_measuring(agent))
            client.send_signal(signal.SIGKILL)
        with RemoteSession(agent.device(), agent.connect()) as session:
            session.begin("killed client")
            session.prepare(model, None, [ServingPoint()])
            assert session.serve(model, ServingPoint(), LONG).runs == 40
        assert len(agent.results) == before + 1

    def test_cut_link_measures_nothing_twice(self, agent: RunningAgent, model: Path) -> None:
        link = Link(agent.address)
        before, requests = len(agent.results), 8
        try:
            with RemoteSession(agent.device(), agent.connect(link.address)) as session:
                done = threading.Event()

                def cut_and_mend() -> None:
                    while not done.wait(0.3):
                        link.cut()
                        time.sleep(0.05)
                        link.mend()

                vandal = threading.Thread(target=cut_and_mend)
                vandal.start()
                try:
                    effort = replace(LONG, min_runs=10, max_runs=10)
                    for size in range(1, requests + 1):
                        assert session.serve(model, ServingPoint(size), effort).runs == 10
                finally:
                    done.set()
                    vandal.join()
            assert link.connections > 3
            assert len(agent.results) == before + requests
        finally:
            link.close()

    def test_device_that_stays_away_is_given_up_until_it_answers(self, agent: RunningAgent, model: Path) -> None:
        link = Link(agent.address)
        try:
            connection = agent.connect(link.address, patience_s=1.0)
            with RemoteSession(agent.device(), connection) as session:
                session.serve(model, ServingPoint(), SHORT)
                link.cut()
                for _ in range(2):
                    with pytest.raises(DeviceUnavailable, match="board does not answer at 127"):
                        session.serve(model, ServingPoint(), SHORT)
                link.mend()
                assert session.serve(model, ServingPoint(), SHORT).runs
        finally:
            link.close()

    def test_agent_that_has_forgotten_everything_is_another_one(self, tmp_path: Path, model: Path) -> None:
        with running_agent(tmp_path) as agent:
            connection = agent.connect(patience_s=5.0)
            with RemoteSession(agent.device(), connection) as session:
                session.serve(model, ServingPoint(), SHORT)
                agent.kill()
                shutil.rmtree(agent.folder)
                agent.start()
                with pytest.raises(DeviceUnavailable, match="another certificate"):
                    session.serve(model, ServingPoint(), SHORT)


class TestDevice:
    def test_agent_benchmarks_its_board(self, agent: RunningAgent) -> None:
        with agent.connect() as connection:
            device = device_of_agent(connection, seconds=0.2)
        assert (device.name, device.source, device.agent) == ("board", "agent", agent.pairing.fingerprint)
        assert device.cores == len(os.sched_getaffinity(0))
        assert min(device.gflops, device.bandwidth_gbps, device.busy_w) > 0
        assert device.runtime.startswith("onnxruntime ")
        assert device.digest != replace(device, agent="").digest

    def test_session_is_found_by_its_pairing(self, agent: RunningAgent, this_host: Device, tmp_path: Path) -> None:
        device = agent.device()
        with pytest.raises(DeviceUnavailable, match="not paired with the agent of board"):
            open_session(device, this_host, pairings=tmp_path)
        save_pairing(agent.pairing, "board", tmp_path)
        assert isinstance(open_session(device, this_host, pairings=tmp_path), RemoteSession)
        with pytest.raises(DeviceUnavailable, match="not paired"):
            open_session(replace(device, agent="0" * 64), this_host, pairings=tmp_path)
