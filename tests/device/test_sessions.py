"""Sessions with real worker processes, real models and real kills."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import psutil
import pytest
import torch
from session_contract import SHORT, SessionContract
from torch import nn

from misbehaving_models import endless
from onefold.device import Device, EmulatedSession, HostSession, Session, TimingEffort, open_session, runtime
from onefold.device.catalog import device
from onefold.device.roofline import latency_ratio, operator_costs
from onefold.device.runner import HostRunner
from onefold.device.session_options import session_options
from onefold.serving.export import export
from onefold.vocabulary.errors import MeasuringFailed, ModelError, TooLarge
from onefold.vocabulary.records import to_json
from onefold.vocabulary.serving import LatencySource, ServingPoint


@pytest.fixture(scope="module")
def slow(this_host: Device) -> Device:
    """A device with one core that is ten times slower than this machine in every figure."""
    return replace(this_host.slower(10), name="slow", cores=1, idle_w=2.0, busy_w=5.0)


@pytest.fixture(scope="module")
def host_session(this_host: Device) -> Iterator[HostSession]:
    with HostSession(this_host) as session:
        yield session


@pytest.fixture(scope="module")
def emulated_session(slow: Device, this_host: Device) -> Iterator[EmulatedSession]:
    with EmulatedSession(slow, this_host) as session:
        yield session


class TestHostContract(SessionContract):
    source = LatencySource.MEASURED

    @pytest.fixture
    def session(self, host_session: HostSession) -> Session:
        return host_session

    @pytest.fixture
    def unopened(self, this_host: Device) -> Session:
        return open_session(this_host, this_host)


class TestEmulatedContract(SessionContract):
    source = LatencySource.EMULATED

    @pytest.fixture
    def session(self, emulated_session: EmulatedSession) -> Session:
        return emulated_session

    @pytest.fixture
    def unopened(self, slow: Device, this_host: Device) -> Session:
        return open_session(slow, this_host)


class TestHost:
    def test_memory_is_that_of_a_single_session(self, host_session: HostSession, model: Path) -> None:
        """Memory of sessions that were served before does not count."""
        small = host_session.memory(model, ServingPoint())
        assert small is not None
        assert small > 10**7
        large = host_session.memory(model, ServingPoint(batch_size=100_000))
        assert large is not None
        assert large > small + 100_000 * 4 * 4
        again = host_session.memory(model, ServingPoint())
        assert again is not None
        assert again < large

    def test_batches_of_a_model_for_single_samples_take_several_runs(
        self, host_session: HostSession, tmp_path: Path
    ) -> None:
        path = export(nn.Sequential(nn.Linear(4, 2)), [torch.zeros(1, 4)], tmp_path / "fixed.onnx")
        fixed = onnx.load(str(path))
        fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
        onnx.save(fixed, str(path))
        assert host_session.serve(path, ServingPoint(), SHORT).runs
        assert host_session.serve(path, ServingPoint(batch_size=8), SHORT).runs

    def test_confined_to_cores(self, this_host: Device) -> None:
        core = min(os.sched_getaffinity(0))
        with HostSession(this_host, [core]) as session:
            assert psutil.Process(session.pid).cpu_affinity() == [core]
            assert session.confinement["cores_by"] == "affinity"
            assert session.threads == 1

    def test_runtime_names_its_version(self) -> None:
        assert runtime().startswith("onnxruntime 1.")


class TestEmulated:
    def test_energy_follows_from_the_power_of_the_device(
        self, emulated_session: EmulatedSession, slow: Device, model: Path
    ) -> None:
        served = emulated_session.serve(model, ServingPoint(batch_size=4), SHORT)
        assert served.energy.source == "modelled"
        assert served.energy.joules == pytest.approx(served.latency_s * slow.power_w(1))
        assert emulated_session._ratio(model, ServingPoint(batch_size=4)) == pytest.approx(10)

    def test_every_time_is_scaled(
        self, slow: Device, this_host: Device, host_session: HostSession, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        measured = host_session.serve(model, ServingPoint(), SHORT)
        session = EmulatedSession(slow, this_host)
        monkeypatch.setattr(session._host_session, "serve", lambda *_: measured)
        served = session.serve(model, ServingPoint(), SHORT)
        for name in ("latency_s", "p90_s", "p99_s", "low_s", "high_s"):
            assert getattr(served, name) == pytest.approx(10 * getattr(measured, name))
        assert served.runs == measured.runs

    def test_ratio_is_that_of_the_rooflines(self, this_host: Device, model: Path) -> None:
        pi = device("raspberry-pi-4")
        session = EmulatedSession(pi, this_host)
        point = ServingPoint(16, 2)
        expected = latency_ratio(operator_costs(model, 16), this_host, pi, 2)
        assert session._ratio(model, point) == expected
        assert expected > 1

    def test_open_dimensions_are_emulated_with_those_of_the_samples(
        self, emulated_session: EmulatedSession, tmp_path: Path
    ) -> None:
        """A network with a fixed length and the same one with an open length cost the same."""
        network, samples = nn.Conv1d(4, 8, 3), torch.zeros(1, 4, 500)
        fixed = export(network, [samples], tmp_path / "fixed.onnx")
        loaded = onnx.load(str(fixed))
        loaded.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "length"
        opened, inputs = tmp_path / "open.onnx", tmp_path / "inputs.npz"
        onnx.save(loaded, str(opened))
        np.savez(inputs, **{loaded.graph.input[0].name: samples.numpy()})
        for model in (fixed, opened):
            emulated_session.prepare(model, inputs, [ServingPoint()])
        costs, others = (emulated_session._operator_costs(model, 1) for model in (fixed, opened))
        assert [cost.flops for cost in costs] == [cost.flops for cost in others]

    def test_threads_are_limited_by_this_machine(self, this_host: Device) -> None:
        session = EmulatedSession(replace(this_host, name="large", cores=4096), this_host)
        assert session.threads == min(len(os.sched_getaffinity(0)), this_host.cores)

    def test_model_larger_than_the_memory_is_refused_before_loading(
        self, slow: Device, this_host: Device, model: Path
    ) -> None:
        session = EmulatedSession(replace(slow, memory_bytes=100), this_host)
        with pytest.raises(
            ModelError, match=r"the model needs .* of memory, but slow has 100 B; make the model smaller"
        ):
            session.prepare(model, None, [ServingPoint()])

    def test_memory_of_the_runtime_counts(self, slow: Device, this_host: Device, model: Path) -> None:
        tight = replace(slow, memory_bytes=30_000_000)  # the runtime alone takes more

        def serve() -> None:
            with EmulatedSession(tight, this_host) as session:
                session.prepare(model, None, [ServingPoint()])
                session.serve(model, ServingPoint(), SHORT)

        with pytest.raises(ModelError, match=r"more than the 28.6 MiB of memory of slow; make the model smaller"):
            serve()

    def test_only_other_devices_are_emulated(self, this_host: Device, slow: Device) -> None:
        assert isinstance(open_session(this_host, this_host), HostSession)
        assert isinstance(open_session(slow, this_host), EmulatedSession)


LONG = TimingEffort(0, min_runs=400, max_runs=400, max_seconds=0.0, idle_s=0.005)  # long enough to be disturbed


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def signaled_when_busy(session: HostSession | EmulatedSession, number: signal.Signals, times: int) -> Iterator[None]:
    """Send a signal to the next `times` processes of a session while each of them answers a request."""

    def send() -> None:
        signaled: set[int | None] = {None}
        while len(signaled) <= times and not is_over.is_set():
            pid = session.pid
            if pid not in signaled and pid is not None and (asked.count(pid) > 0):
                os.kill(pid, number)
                signaled.add(pid)
            time.sleep(0.01)

    asked: list[int | None] = []
    process = (session._host_session if isinstance(session, EmulatedSession) else session)._process
    exchange = process._exchange

    def note(message: Any, timeout_s: float) -> Any:
        if message["do"] != "confine":
            asked.append(process.pid)
        return exchange(message, timeout_s)

    is_over = threading.Event()
    sender = threading.Thread(target=send)
    with mock.patch.object(process, "_exchange", note):
        sender.start()
        try:
            yield
        finally:
            is_over.set()
            sender.join()


class TestWorkerExit:
    @pytest.mark.parametrize("emulated", [False, True])
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV])
    def test_killed_or_suspended_worker_is_replaced_and_the_request_repeated(
        self, number: signal.Signals, emulated: bool, slow: Device, this_host: Device, model: Path
    ) -> None:
        with open_session(slow if emulated else this_host, this_host) as session:
            assert isinstance(session, (HostSession, EmulatedSession))
            session.prepare(model, None, [ServingPoint()])
            first = session.pid
            with signaled_when_busy(session, number, times=1):
                assert session.serve(model, ServingPoint(), LONG).runs == LONG.min_runs
            assert session.pid != first
            assert not psutil.pid_exists(first or 0)

    @pytest.mark.parametrize(
        ("number", "reason"),
        [(signal.SIGKILL, r"was killed by signal 9 \(SIGKILL\), 3 times"), (signal.SIGSTOP, "suspended .*, 3 times")],
    )
    def test_worker_that_is_killed_repeatedly_is_an_error_with_the_true_reason(
        self, number: signal.Signals, reason: str, this_host: Device, model: Path
    ) -> None:
        with HostSession(this_host) as session:
            session.prepare(model, None, [ServingPoint()])
            with signaled_when_busy(session, number, times=3), pytest.raises(MeasuringFailed, match=reason) as caught:
                session.serve(model, ServingPoint(), LONG)
            assert not isinstance(caught.value, TooLarge)
            assert caught.value.kind == "killed"
            assert session.serve(model, ServingPoint(), SHORT).runs >= SHORT.min_runs  # by a new worker

    @pytest.mark.parametrize("is_large", [True, False])
    def test_oom_kill_is_evidence_only_against_a_process_with_much_memory(
        self, is_large: bool, this_host: Device, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kills = itertools.count()  # as if the kernel counted another kill whenever it is asked
        monkeypatch.setattr("onefold.device.measuring_process.oom_kills", lambda group: next(kills))
        device = replace(this_host, memory_bytes=10**6 if is_large else this_host.memory_bytes)
        with HostSession(device) as session:
            session.prepare(model, None, [ServingPoint()])
            with signaled_when_busy(session, signal.SIGKILL, times=1):
                if is_large:
                    with pytest.raises(TooLarge, match="of memory of"):
                        session.serve(model, ServingPoint(), LONG)
                else:  # another process ran out of memory
                    assert session.serve(model, ServingPoint(), LONG).runs == LONG.min_runs

    def test_model_in_an_infinite_loop_times_out(self, this_host: Device, model: Path, tmp_path: Path) -> None:
        looping = endless(tmp_path / "loop.onnx")
        with HostSession(this_host, hang_timeout_s=1.0) as session:
            first = session.pid
            with pytest.raises(MeasuringFailed, match="no batch ended within 1 s") as caught:
                session.serve(looping, ServingPoint(), SHORT)
            assert caught.value.kind == "hung"
            assert not psutil.pid_exists(first or 0)
        with HostSession(this_host, hang_timeout_s=60.0) as session:  # many batches together may take longer
            assert session.serve(model, ServingPoint(), SHORT).runs >= SHORT.min_runs

    def test_long_measurement_of_short_batches_does_not_hang(self, this_host: Device, model: Path) -> None:
        rests = TimingEffort(0, min_runs=40, max_runs=40, max_seconds=0.0, idle_s=0.2)
        with HostSession(this_host, hang_timeout_s=4.0) as session:
            assert session.serve(model, ServingPoint(), rests).runs == 40

    def test_worker_in_native_code_ends_when_its_owner_is_killed(self, tmp_path: Path) -> None:
        looping = endless(tmp_path / "loop.onnx")
        program = (
            "import sys, threading\n"
            "from pathlib import Path\n"
            "from onefold.device import HostSession, PRECISE\n"
            "from onefold.device.host import describe\n"
            "from onefold.vocabulary.serving import ServingPoint\n"
            "session = HostSession(describe(), hang_timeout_s=600).__enter__()\n"
            f"session.prepare(Path({str(looping)!r}), None, [ServingPoint()])\n"
            "print(session.pid, flush=True)\n"
            f"session.serve(Path({str(looping)!r}), ServingPoint(), PRECISE)\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            worker = psutil.Process(int(owner.stdout.readline()))
            used = worker.cpu_times().user
            wait_until(lambda: worker.cpu_times().user > used + 0.2)  # it loops
            owner.kill()
        _, alive = psutil.wait_procs([worker], timeout=60)
        assert not alive

    def test_exit_leaves_no_process(self, this_host: Device, model: Path) -> None:
        with HostSession(this_host) as session:
            worker = psutil.Process(session.pid)
            session.serve(model, ServingPoint(threads=session.threads), SHORT)
        assert not worker.is_running()

    def test_worker_ends_when_its_owner_is_killed(self) -> None:
        program = (
            "import sys, time\n"
            "from onefold.device import HostSession\n"
            "from onefold.device.host import describe\n"
            "session = HostSession(describe()).__enter__()\n"
            "print(session.pid, flush=True)\n"
            "time.sleep(60)\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            worker = psutil.Process(int(owner.stdout.readline()))
            owner.kill()
        _, alive = psutil.wait_procs([worker], timeout=60)
        assert not alive

    def test_worker_ignores_ctrl_c(self, this_host: Device, model: Path) -> None:
        with HostSession(this_host) as session:
            session.serve(model, ServingPoint(), SHORT)
            assert session.pid is not None
            os.kill(session.pid, signal.SIGINT)
            time.sleep(0.05)
            assert session.serve(model, ServingPoint(), SHORT).runs >= SHORT.min_runs


class TestRunner:
    """The worker, run in this process."""

    def test_session_options_follow_the_point(self) -> None:
        import onnxruntime as ort

        options = session_options(ServingPoint(4, 2, "basic", "parallel"))
        assert options.intra_op_num_threads == options.inter_op_num_threads == 2
        assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
        assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        assert session_options(ServingPoint(threads=2)).inter_op_num_threads == 1
        for waiting, allowed in (("sleeping", "0"), ("spinning", "1")):
            options = session_options(ServingPoint(threads=2, waiting=waiting))
            assert options.get_session_config_entry("session.intra_op.allow_spinning") == allowed

    def test_batches_repeat_the_samples(self, model: Path) -> None:
        runner = HostRunner()
        runner.open(str(model), str(model.with_suffix(".npz")), to_json(ServingPoint()))
        loaded = runner._model(ServingPoint())
        with np.load(model.with_suffix(".npz")) as kept:
            samples = kept["input0"]
        (batch,) = runner._batch(loaded, 20)
        assert batch.shape == (20, 4)
        assert np.array_equal(batch, np.resize(samples, (20, 4)))
        assert runner._batch(loaded, 3)[0].shape == (3, 4)

    def test_random_inputs_have_the_right_type(self, model: Path) -> None:
        runner = HostRunner()
        runner.open(str(model), None, to_json(ServingPoint()))
        (batch,) = runner._batch(runner._model(ServingPoint()), 5)
        assert batch.shape == (5, 4)
        assert batch.dtype == np.float32

    def test_batch_sizes_share_a_loaded_model(self, model: Path) -> None:
        runner = HostRunner()
        for size in (1, 8, 100):
            runner.open(str(model), None, to_json(ServingPoint(size)))
        runner.open(str(model), None, to_json(ServingPoint(1, graph_level="none")))
        assert len(runner._models) == 2

    def test_answers_are_json(self, model: Path) -> None:
        runner = HostRunner()
        runner.open(str(model), None, to_json(ServingPoint()))
        answer = runner.time(str(model), None, to_json(ServingPoint()), to_json(SHORT))
        assert json.loads(json.dumps(answer)) == answer
        assert answer["runs"] >= SHORT.min_runs
