"""Being on a device: real runner processes, real models, real deaths."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
import torch
from torch import nn

from onefold.device import Device, EmulatedSession, HostSession, TimingEffort, open_session, runtime
from onefold.device.catalogue import device
from onefold.device.roofline import latency_ratio, operator_costs
from onefold.device.runner import Runner, session_options
from onefold.serving.export import export
from onefold.vocabulary.errors import DeviceError, ModelError
from onefold.vocabulary.records import to_json
from onefold.vocabulary.serving import LatencySource, ServingPoint

SHORT = TimingEffort(warm_up=1, least=3, most=20, seconds=0.05, precision=0.05)


@pytest.fixture(scope="module")
def slow(this_host: Device) -> Device:
    """A device that is this machine, ten times slower in everything, with one core."""
    return replace(
        this_host,
        name="slow",
        cores=1,
        gflops=this_host.gflops / 10,
        bandwidth_gbps=this_host.bandwidth_gbps / 10,
        overhead_us=this_host.overhead_us * 10,
        idle_w=2.0,
        busy_w=5.0,
    )


@pytest.fixture(scope="module")
def here(this_host: Device) -> Iterator[HostSession]:
    with HostSession(this_host) as session:
        yield session


class TestHere:
    def test_what_was_measured_says_so(self, here: HostSession, model: Path) -> None:
        found = here.serve(model, ServingPoint(batch_size=8), SHORT)
        assert found.source is LatencySource.MEASURED
        assert found.point == ServingPoint(batch_size=8)
        assert 0 < found.low_s <= found.latency_s <= found.high_s
        assert found.latency_s <= found.p90_s <= found.p99_s
        assert SHORT.least <= found.runs <= SHORT.most
        assert found.energy.source != "unavailable"
        assert found.energy.joules is not None
        assert found.energy.joules >= 0

    def test_memory_is_that_of_one_session(self, here: HostSession, model: Path) -> None:
        """Whatever else was served before."""
        alone = here.memory(model, ServingPoint())
        assert alone is not None
        assert alone > 10**7
        large = here.memory(model, ServingPoint(batch_size=100_000))
        assert large is not None
        assert large > alone + 100_000 * 4 * 4
        again = here.memory(model, ServingPoint())
        assert again is not None
        assert again < large

    def test_a_model_of_one_batch_size_is_not_timed_at_another(self, here: HostSession, tmp_path: Path) -> None:
        path = export(nn.Sequential(nn.Linear(4, 2)), [torch.zeros(1, 4)], tmp_path / "fixed.onnx")
        fixed = onnx.load(str(path))
        fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
        onnx.save(fixed, str(path))
        assert here.serve(path, ServingPoint(), SHORT).runs
        with pytest.raises(ModelError, match="it takes batches of 1 only, not of 8: export it with an open first"):
            here.serve(path, ServingPoint(batch_size=8), SHORT)

    def test_an_effort_is_kept(self, here: HostSession, model: Path) -> None:
        found = here.serve(model, ServingPoint(), TimingEffort(warm_up=0, least=7, most=7, seconds=0.0))
        assert found.runs == 7

    def test_samples_are_served_in_place_of_noise(self, here: HostSession, model: Path, tmp_path: Path) -> None:
        """With samples of another shape the model cannot run: so it is they that are fed."""
        np.savez(tmp_path / "wrong.npz", input0=np.zeros((2, 5), "f4"))
        here.prepare(model, tmp_path / "wrong.npz", [ServingPoint()])
        with pytest.raises(ModelError, match="cannot be served on host"):
            here.serve(model, ServingPoint(), SHORT)
        here.prepare(model, model.with_suffix(".npz"), [ServingPoint()])

    def test_it_is_confined_to_cores(self, this_host: Device) -> None:
        core = min(os.sched_getaffinity(0))
        with HostSession(this_host, [core]) as session:
            assert session._worker is not None
            assert psutil.Process(session._worker.pid).cpu_affinity() == [core]
            assert session.confinement["cores_by"] == "affinity"
            assert session.threads == 1

    def test_a_session_must_be_open(self, this_host: Device, model: Path) -> None:
        with pytest.raises(DeviceError, match="not open: use it in a with block"):
            HostSession(this_host).serve(model, ServingPoint(), SHORT)

    def test_a_model_that_is_not_there(self, here: HostSession, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="there is no model"):
            here.prepare(tmp_path / "nothing.onnx", None, [ServingPoint()])

    def test_a_file_that_is_no_model_leaves_the_session_sound(
        self, here: HostSession, model: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "bad.onnx").write_bytes(b"this is no model")
        with pytest.raises(ModelError, match="cannot be served on host"):
            here.prepare(tmp_path / "bad.onnx", None, [ServingPoint()])
        assert here.serve(model, ServingPoint(), SHORT).runs >= SHORT.least

    def test_the_runtime_says_its_version(self) -> None:
        assert runtime().startswith("onnxruntime 1.")


class TestEmulated:
    def test_times_are_carried_over_and_labelled(self, slow: Device, this_host: Device, model: Path) -> None:
        point = ServingPoint(batch_size=4)
        with open_session(slow, this_host) as session:
            assert isinstance(session, EmulatedSession)
            assert session.threads == 1
            session.prepare(model, None, [point])
            found = session.serve(model, point, SHORT)
        assert found.source is LatencySource.EMULATED
        assert found.energy.source == "modelled"
        assert found.energy.joules == pytest.approx(found.latency_s * slow.power_w(1))
        assert session._factor(model, point) == pytest.approx(10)

    def test_every_time_gets_the_factor(
        self, slow: Device, this_host: Device, here: HostSession, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = here.serve(model, ServingPoint(), SHORT)
        session = EmulatedSession(slow, this_host)
        monkeypatch.setattr(session._inner, "serve", lambda *_: real)
        found = session.serve(model, ServingPoint(), SHORT)
        for name in ("latency_s", "p90_s", "p99_s", "low_s", "high_s"):
            assert getattr(found, name) == pytest.approx(10 * getattr(real, name))
        assert found.runs == real.runs

    def test_the_factor_is_the_rooflines(self, this_host: Device, model: Path) -> None:
        pi = device("raspberry-pi-4")
        session = EmulatedSession(pi, this_host)
        point = ServingPoint(16, 2)
        wanted = latency_ratio(operator_costs(model, 16), this_host, pi, 2)
        assert session._factor(model, point) == wanted
        assert wanted > 1

    def test_it_never_has_more_threads_than_this_machine(self, this_host: Device) -> None:
        session = EmulatedSession(replace(this_host, name="large", cores=4096), this_host)
        assert session.threads == min(len(os.sched_getaffinity(0)), this_host.cores)

    def test_a_model_larger_than_the_memory_is_refused_before_it_is_loaded(
        self, slow: Device, this_host: Device, model: Path
    ) -> None:
        session = EmulatedSession(replace(slow, memory_bytes=100), this_host)
        with pytest.raises(ModelError, match=r"the model needs .* of memory, but slow has 0.0001 MB; make the model"):
            session.prepare(model, None, [ServingPoint()])

    def test_what_serving_takes_counts_too(self, slow: Device, this_host: Device, model: Path) -> None:
        tight = replace(slow, memory_bytes=30_000_000)  # the runtime alone takes more

        def serve() -> None:
            with EmulatedSession(tight, this_host) as session:
                session.prepare(model, None, [ServingPoint()])
                session.serve(model, ServingPoint(), SHORT)

        with pytest.raises(ModelError, match=r"30 MB that slow has; make the model smaller"):
            serve()

    def test_this_machine_by_its_name_is_not_emulated(self, this_host: Device, slow: Device) -> None:
        assert isinstance(open_session(this_host, this_host), HostSession)
        assert isinstance(open_session(slow, this_host), EmulatedSession)


class TestDeath:
    @pytest.mark.parametrize("emulated", [False, True])
    def test_a_runner_killed_while_it_serves_is_an_error_and_no_hang(
        self, emulated: bool, slow: Device, this_host: Device, model: Path
    ) -> None:
        with open_session(slow if emulated else this_host, this_host) as session:
            session.prepare(model, None, [ServingPoint()])
            inner = session._inner if isinstance(session, EmulatedSession) else session
            assert inner._worker is not None
            killer = threading.Timer(0.2, os.kill, (inner._worker.pid, signal.SIGKILL))
            killer.start()
            with pytest.raises(ModelError, match="the process that serves the model was ended"):
                session.serve(model, ServingPoint(), TimingEffort(least=10**9, most=10**9, seconds=60.0))
            killer.join()
            assert session.serve(model, ServingPoint(), SHORT).runs >= SHORT.least  # by a new process

    def test_closing_leaves_no_process(self, this_host: Device, model: Path) -> None:
        with HostSession(this_host) as session:
            assert session._worker is not None
            runner = psutil.Process(session._worker.pid)
            session.serve(model, ServingPoint(threads=session.threads), SHORT)
        assert not runner.is_running()
        session.__exit__(None)  # a second time is fine

    def test_a_runner_ends_with_its_other_side(self, model: Path) -> None:
        """Also when that is killed and cannot say good-bye."""
        program = (
            "import sys, time\n"
            "from onefold.device import HostSession\n"
            "from onefold.device.host import describe\n"
            "session = HostSession(describe()).__enter__()\n"
            "print(session._worker.pid, flush=True)\n"
            "time.sleep(60)\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            runner = psutil.Process(int(owner.stdout.readline()))
            owner.kill()
        _, alive = psutil.wait_procs([runner], timeout=10)
        assert not alive

    def test_ctrl_c_is_not_the_runners_to_answer(self, this_host: Device, model: Path) -> None:
        with HostSession(this_host) as session:
            assert session._worker is not None
            session.serve(model, ServingPoint(), SHORT)
            os.kill(session._worker.pid, signal.SIGINT)
            time.sleep(0.05)
            assert session.serve(model, ServingPoint(), SHORT).runs >= SHORT.least


class TestRunner:
    """The far side, in this process."""

    def test_a_point_becomes_settings(self) -> None:
        import onnxruntime as ort

        options = session_options(ServingPoint(4, 2, "basic", "parallel"))
        assert options.intra_op_num_threads == options.inter_op_num_threads == 2
        assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
        assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        assert session_options(ServingPoint(threads=2)).inter_op_num_threads == 1
        for waiting, allowed in (("sleeping", "0"), ("spinning", "1")):
            options = session_options(ServingPoint(threads=2, waiting=waiting))
            assert options.get_session_config_entry("session.intra_op.allow_spinning") == allowed

    def test_batches_are_made_of_samples_over_and_over(self, model: Path) -> None:
        runner = Runner()
        runner.open(str(model), str(model.with_suffix(".npz")), to_json(ServingPoint()))
        session = runner._session(ServingPoint())
        with np.load(model.with_suffix(".npz")) as kept:
            samples = kept["input0"]
        feed = runner._feed(session, 20)["input0"]
        assert feed.shape == (20, 4)
        assert np.array_equal(feed, np.resize(samples, (20, 4)))
        assert runner._feed(session, 3)["input0"].shape == (3, 4)

    def test_without_samples_it_makes_some_of_the_right_kind(self, model: Path) -> None:
        runner = Runner()
        runner.open(str(model), None, to_json(ServingPoint()))
        feed = runner._feed(runner._session(ServingPoint()), 5)["input0"]
        assert feed.shape == (5, 4)
        assert feed.dtype == np.float32

    def test_points_that_differ_in_batch_size_share_a_session(self, model: Path) -> None:
        runner = Runner()
        for size in (1, 8, 100):
            runner.open(str(model), None, to_json(ServingPoint(size)))
        runner.open(str(model), None, to_json(ServingPoint(1, graph_level="none")))
        assert len(runner._sessions) == 2

    def test_answers_are_plain_json(self, model: Path) -> None:
        runner = Runner()
        runner.open(str(model), None, to_json(ServingPoint()))
        answer = runner.time(to_json(ServingPoint()), to_json(SHORT))
        assert json.loads(json.dumps(answer)) == answer
        assert len(answer["times"]) >= SHORT.least
