"""Models compiled for devices, from what people have to what they serve: all of it real, and as small as it can be."""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import onefold
from onefold import deploy
from onefold.kernels.bench import Bench
from onefold.kernels.kernel_library import CompiledModel, digest_of, read_library
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.schedule_space import ScheduleSpace
from onefold.kernels.source_models import opened
from onefold.kernels.targets import Target
from onefold.store import CompilationRecord
from onefold.study import Home
from onefold.vocabulary.errors import BudgetError, DeviceError, InputError, ModelError, OnefoldError, WorkloadError
from onefold.vocabulary.kernels import CompileResult, ScheduleCandidate, TuningRound
from onefold.vocabulary.records import StudyState

AARCH64 = 183  # as ELF numbers machines
FEW: dict[str, Any] = {"candidates": 12, "batch": 4, "threads": 1, "falls": None, "strategy": "random"}


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def content_of(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def compilations(home: Path) -> list[CompilationRecord]:
    with closing(Home(home).store()) as store:
        return store.compilations()


def candidates(home: Path) -> list[ScheduleCandidate]:
    with closing(Home(home).store()) as store:
        return store.candidates()


class CompiledArtifacts:
    """A deployment folder and a torch module, compiled within one budget."""

    def __init__(self, here: Path, deployed: Path, calibrated: Path) -> None:
        self.home, self.folder, self.saved = here / "home", here / "deploy", here / "saved"
        shutil.copytree(calibrated, self.home / "devices")
        shutil.copytree(deployed, self.folder)
        self.told: list[Any] = []
        self.network, self.samples = network(), torch.randn(40, 3, 8, 8)
        self.all: list[CompileResult] = onefold.compile(
            self.folder, self.network, samples=[self.samples], save=self.saved, home=self.home,
            tell=self.told.append, **FEW,
        )  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, deployed: Path, calibrated: Path) -> CompiledArtifacts:
    return CompiledArtifacts(tmp_path_factory.mktemp("made"), deployed, calibrated)


@pytest.fixture
def folder(deployed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(deployed, tmp_path / "deploy")


class TestWhatIsHandedOver:
    def test_a_folder_gets_a_library_what_it_is_like_and_a_report(self, made: CompiledArtifacts) -> None:
        found, about = made.all[0], read_library(made.folder)
        assert about is not None
        assert found.folder == str(made.folder)
        assert (made.folder / "kernels.so").stat().st_size > 0
        assert (about.device, about.threads, about.batch_size, about.file) == ("host", 1, 1, "kernels.so")
        assert (about.runtimes, about.recommended) == (found.runtimes, found.recommended)
        assert about.model == digest_of(made.folder / "model.onnx")
        assert "Kernels of deploy" in (made.folder / "kernels.html").read_text()
        assert not list(made.folder.glob("*.new"))

    def test_a_module_gets_a_deployment_folder_where_it_was_asked_for(self, made: CompiledArtifacts) -> None:
        place = made.saved / "sequential"
        assert made.all[1].folder == str(place)
        assert deploy.read(place).on("host").choice("single-stream")
        assert {"kernels.so", "kernels.json", "kernels.html"} <= {path.name for path in place.iterdir()}

    def test_the_fastest_runtime_is_recommended(self, made: CompiledArtifacts) -> None:
        for found in made.all:
            times = [one.latency_s for one in found.runtimes]
            assert times == sorted(times)
            assert {one.name for one in found.runtimes} >= {"tvm", "onnxruntime"}
            agrees = [one.name for one in found.runtimes if "for 100.0%" in one.note or "int8" not in one.name]
            assert found.recommended == agrees[0]

    def test_the_compiled_model_answers_as_the_module_does(self, made: CompiledArtifacts) -> None:
        served = deploy.load(made.saved / "sequential", runtime="tvm")
        assert isinstance(served, CompiledModel)
        with torch.no_grad():
            wanted = made.network(made.samples).numpy()
        assert served(made.samples.numpy()) == pytest.approx(wanted, abs=1e-5)
        assert made.all[1].error < 1e-3

    def test_all_runtimes_of_a_folder_answer_the_same(self, made: CompiledArtifacts) -> None:
        inputs = np.random.default_rng(0).standard_normal((5, 3, 8, 8)).astype("f4")
        wanted = deploy.load(made.folder, runtime="onnxruntime")(inputs)
        for one in made.all[0].runtimes:
            near = 0.2 if "int8" in one.name else 1e-5
            assert deploy.load(made.folder, runtime=one.name)(inputs) == pytest.approx(wanted, abs=near)
        assert deploy.load(made.folder)(inputs) == pytest.approx(wanted, abs=0.2)


class TestOneBudget:
    def test_candidates_of_all_models_count(self, made: CompiledArtifacts) -> None:
        measured = [one for one in made.told if isinstance(one, ScheduleCandidate)]
        assert len(measured) == FEW["candidates"]
        assert {one.why_stopped for one in made.all} == {f"{len(measured)} candidates were measured"}

    def test_operators_that_models_share_are_tuned_once(self, made: CompiledArtifacts) -> None:
        keys = [{history.operator.key for history in found.histories} for found in made.all]
        assert keys[0] & keys[1], "both begin with the same convolution"
        shared = [
            {history.operator.key: history.candidates for history in found.histories if history.operator.key in both}
            for found, both in ((found, keys[0] & keys[1]) for found in made.all)
        ]
        assert shared[0] == shared[1]

    def test_whole_models_are_timed_before_and_after_each_round(self, made: CompiledArtifacts) -> None:
        for found in made.all:
            assert [one.number for one in found.rounds] == list(range(len(found.rounds)))
            assert len(found.rounds) >= 2
            assert all(one.model == found.model and one.latency_s > 0 for one in found.rounds)
        assert [one for one in made.told if isinstance(one, TuningRound) and one.model == "deploy"] == [
            *made.all[0].rounds
        ]

    def test_what_was_spent_is_known_by_phase(self, made: CompiledArtifacts) -> None:
        spent = made.all[0].spent
        assert {"search", "build", "run", "whole"} <= set(spent.seconds)
        assert all(value > 0 for value in spent.seconds.values())

    def test_the_store_knows_every_candidate_and_that_it_is_done(self, made: CompiledArtifacts) -> None:
        told = [one for one in made.told if isinstance(one, ScheduleCandidate)]
        assert [one.key for one in candidates(made.home)][: len(told)] == [one.key for one in told]
        (first,) = [one for one in compilations(made.home) if len(one.spec["models"]) == 2]
        assert (first.state, first.reason) == (StudyState.DONE, f"{len(told)} candidates were measured")
        assert [(one.model, one.number) for one in first.rounds] == [
            (one.model, one.number) for one in made.told if isinstance(one, TuningRound)
        ]


def test_what_was_measured_once_is_recalled_and_a_goal_that_is_met_ends_it(made: CompiledArtifacts, tiny: Path) -> None:
    known = len(candidates(made.home))
    found: CompileResult = onefold.compile(tiny, goal="1s", levels=True, threads=1, strategy="random", home=made.home)
    assert found.why_stopped.startswith("the goal is met (")
    assert (found.model, found.folder) == ("tiny", "")
    assert sum(history.recalled for history in found.histories) > 0
    assert sum(one.tried for one in found.rounds[0].operators) == sum(one.recalled for one in found.histories)
    assert len(candidates(made.home)) == known
    assert [one.number for one in found.levels] == [0, 1, 2, 3, 4]
    assert found.levels[0].operators > found.levels[3].operators
    assert not list(tiny.parent.glob("kernels*"))


def test_batches_are_of_the_size_that_was_asked_for(made: CompiledArtifacts, tiny: Path, tmp_path: Path) -> None:
    found: CompileResult = onefold.compile(
        tiny, goal="1s", batch_size=3, threads=1, strategy="random", home=made.home, save=tmp_path / "deploy"
    )
    assert "3x8x8x8" in {shape for history in found.histories for shape in history.operator.shapes}
    inputs = np.random.default_rng(0).standard_normal((7, 3, 8, 8)).astype("f4")
    served, plain = (deploy.load(found.folder, runtime=name) for name in ("tvm", "onnxruntime"))
    assert isinstance(served, CompiledModel)
    assert served.about.batch_size == 3
    assert served(inputs) == pytest.approx(plain(inputs), abs=1e-5)


class TestAnotherArchitecture:
    def test_an_archive_of_its_objects_is_made_and_not_run(self, folder: Path, home: Path) -> None:
        found: CompileResult = onefold.compile(folder, device="raspberry-pi-4", home=home)
        with tarfile.open(folder / "kernels.tar") as archive:
            objects = [archive.extractfile(each) for each in archive.getmembers() if each.name.endswith(".o")]
            headers = [each.read(20) for each in objects if each is not None]
        assert headers
        assert {header[:4] for header in headers} == {b"\x7fELF"}
        assert {int.from_bytes(header[18:20], "little") for header in headers} == {AARCH64}
        assert (found.rounds, found.runtimes, found.recommended) == ((), (), "")
        assert "not run here" in found.why_stopped
        about = read_library(folder)
        assert about is not None
        assert (about.device, about.file, about.threads) == ("raspberry-pi-4", "kernels.tar", 4)
        assert about.notes == (found.why_stopped,)

    def test_a_folder_with_it_is_served_here_as_before(self, folder: Path, home: Path) -> None:
        inputs = np.ones((2, 3, 8, 8), "f4")
        before = deploy.load(folder)(inputs)
        onefold.compile(folder, device="raspberry-pi-4", home=home)
        assert deploy.load(folder)(inputs) == pytest.approx(before)

    def test_candidates_that_were_timed_on_such_a_board_are_taken(self, folder: Path, home: Path) -> None:
        target = Target("cortex-a72", "aarch64-linux-gnu", 4)
        with Bench(target) as bench, closing(Home(home).store()) as store:
            sample = np.zeros((1, 3, 8, 8), "f4")
            operator, module = ModelCompiler("tiny", folder / "model.onnx", [sample], [], bench, 3).operators[0]
            space = ScheduleSpace(operator, module, target)
            made = next(one for one in iter(space.random, object()) if one is not None)
            timed = ScheduleCandidate(
                operator.key, target.name, "board:9090", 4, made.key, made.sketch, made.decisions, made.trace, 1e-3
            )
            store.save_candidates([timed])
        found: CompileResult = onefold.compile(folder, device="raspberry-pi-4", home=home)
        assert found.why_stopped.startswith(f"1 of {len(found.histories)} operators tuned; not run here")
        assert found.histories[0].candidates == (timed,)

    def test_a_ready_workload_is_known_by_its_name(self, home: Path) -> None:
        found: CompileResult = onefold.compile("digits", device="raspberry-pi-4", processor="cortex-a53", home=home)
        assert found.target == "aarch64-linux-gnu cortex-a53"
        assert {"conv2d", "matmul"} <= {history.operator.kind for history in found.histories}


def test_a_workload_is_the_same_model_every_time(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (model,) = opened(["digits"], None, tmp_path / name, None)
        digests.add(model.digest)
    assert len(digests) == 1, "otherwise an interrupted compilation would not be found again"


def test_models_of_the_same_name_get_names_of_their_own(tiny: Path, tmp_path: Path) -> None:
    found = opened([tiny, tiny, network()], [torch.randn(2, 3, 8, 8)], tmp_path, tmp_path / "save")
    assert [one.name for one in found] == ["tiny", "tiny-2", "sequential"]
    assert [one.folder for one in found] == [tmp_path / "save" / one.name for one in found]


class TestMistakes:
    """All are told before anything is touched, in the folder or in the store."""

    @pytest.mark.parametrize(
        ("options", "kind", "why"),
        [
            ({"strategy": "evolutionray"}, InputError, "'evolutionray' is not known; did you mean 'evolutionary'"),
            ({"device": "raspberry-pi-44"}, DeviceError, "did you mean 'raspberry-pi-4'"),
            ({"goal": "0.001us"}, BudgetError, r"a goal of 1e-06 ms cannot be met: deploy computes 0\.0\d+ MFLOP"),
            ({"goal": "fast"}, InputError, "a time reads like"),
            (
                {"goal": ["1ms", "2ms"]},
                InputError,
                "2 goals were given for 1 model: give one for all, or one for each",
            ),
            ({"goal": [0.0]}, BudgetError, "a goal must be above 0, but got 0 s"),
            ({"money": 2}, BudgetError, "--money needs the price of energy: --price 0.30/kWh"),
            ({"money": 2, "price": "cheap"}, InputError, "a price reads like 0.30/kWh, but got 'cheap'"),
            ({"energy": "50 horses"}, InputError, "an energy reads like 50kJ"),
            ({"minutes": -3}, BudgetError, "minutes of a compilation must be above 0, but got -3"),
            ({"candidates": -1}, BudgetError, "candidates of a compilation must be above 0, but got -1"),
            ({"falls": 0.25}, BudgetError, "the gain per second may fall by a share below 0"),
            ({"level": 7}, InputError, "levels of graph optimisation are 0 to 4, but got 7"),
            ({"batch": 0}, InputError, "batch of a compilation must be 1 or more, but got 0"),
            ({"threads": 0}, InputError, "threads of a compilation must be 1 or more, but got 0"),
            ({"threads": 4096}, DeviceError, "4096 threads were asked for"),
            ({"remote": "nonsense"}, InputError, "a TVM server is given as HOST:PORT, but got 'nonsense'"),
            ({"remote": "127.0.0.1:1"}, InputError, r"no TVM server answers at 127\.0\.0\.1:1"),
            ({"samples": "nowhere.npz"}, InputError, r"there are no samples nowhere\.npz"),
        ],
    )
    def test_of_options(
        self, options: dict[str, Any], kind: type[OnefoldError], why: str, folder: Path, home: Path
    ) -> None:
        before = content_of(folder)
        with pytest.raises(kind, match=why):
            onefold.compile(folder, home=home, **options)
        assert content_of(folder) == before
        assert not compilations(home)

    def test_an_operator_that_the_compiler_does_not_know(self, folder: Path, home: Path) -> None:
        node = helper.make_node("Det", ["x"], ["y"])
        taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 4])
        made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])
        graph = helper.make_model(
            helper.make_graph([node], "g", [taken], [made]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
        onnx.save(graph, str(folder / "model.onnx"))
        (folder / "model.npz").unlink()
        before = content_of(folder)
        with pytest.raises(ModelError, match=r"not supported .*Det; it can still be served by onnxruntime"):
            onefold.compile(folder, home=home)
        assert content_of(folder) == before

    def test_a_batch_size_that_the_model_does_not_take(self, tiny: Path, home: Path, tmp_path: Path) -> None:
        graph = onnx.load(str(tiny))
        graph.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
        onnx.save(graph, str(tmp_path / "two.onnx"))
        with pytest.raises(ModelError, match="it takes batches of 2 only, not of 1"):
            onefold.compile(tmp_path / "two.onnx", home=home)

    def test_a_module_without_samples(self, home: Path) -> None:
        with pytest.raises(InputError, match=r"needs samples of its inputs: compile\(network, samples=\[inputs\]\)"):
            onefold.compile(network(), home=home)

    def test_a_folder_that_is_no_deployment_folder(self, home: Path, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(ModelError, match="is no deployment folder"):
            onefold.compile(tmp_path / "empty", home=home)

    def test_models_that_are_not_there(self, home: Path) -> None:
        with pytest.raises(InputError, match=r"there is no model nothing\.onnx"):
            onefold.compile("nothing.onnx", home=home)
        with pytest.raises(WorkloadError, match="digitz"):
            onefold.compile("digitz", home=home)

    def test_no_model_is_put_beside_another_one(self, folder: Path, home: Path, tmp_path: Path, model: Path) -> None:
        before = content_of(folder)
        with pytest.raises(InputError, match="holds another model; give another place with --save"):
            onefold.compile(model, save=folder, home=home)
        assert content_of(folder) == before
        (tmp_path / "file").touch()
        with pytest.raises(InputError, match=r"--save is a folder for the model, but .*file is a file"):
            onefold.compile(model, save=tmp_path / "file", home=home)

    def test_a_place_for_what_has_one(self, folder: Path, home: Path, tmp_path: Path) -> None:
        before = content_of(folder)
        with pytest.raises(InputError, match=r"gets its library itself; leave --save out, or compile .*model\.onnx"):
            onefold.compile(folder, save=tmp_path / "other", home=home)
        assert content_of(folder) == before
        assert not (tmp_path / "other").exists()


@pytest.fixture
def server() -> Iterator[str]:
    """A TVM server on this machine, as HOST:PORT."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["-m", "tvm.exec.rpc_server", "--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)]
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        children = psutil.Process(process.pid).children(recursive=True)  # which outlive it otherwise
        for one in (*children, psutil.Process(process.pid)):
            one.kill()
        process.wait()


@pytest.mark.slow
def test_candidates_are_timed_where_a_server_runs(server: str, folder: Path, home: Path) -> None:
    found: CompileResult = onefold.compile(folder, remote=server, home=home, **{**FEW, "candidates": 6})
    measured = [one for history in found.histories for one in history.candidates]
    assert len(measured) == 6
    assert {one.machine for one in measured} == {server}
    assert any(one.latency_s for one in measured)
    assert found.error < 1e-3
    assert (folder / "kernels.so").is_file()
