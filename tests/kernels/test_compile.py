"""onefold.compile and onefold.compile_many: real compilations of tiny models."""

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
from dataclasses import replace
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
from onefold import CompileBudget, CompileOptions, deploy
from onefold.kernels.candidate_runner import CandidateRunner
from onefold.kernels.compilation import Compilation, CompiledArtifacts, _restore_counts, _with_shared_cost
from onefold.kernels.compiled_model import CompiledModel
from onefold.kernels.kernel_library import read_library
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.schedule_space import ScheduleSpace
from onefold.kernels.source_models import load_models
from onefold.kernels.targets import Target
from onefold.model_folder import new_generation, open_folder
from onefold.runtimes.forms import digest_of
from onefold.store import CompilationRecord
from onefold.study import Home
from onefold.vocabulary.errors import BudgetError, DeviceError, InputError, ModelError, OnefoldError, WorkloadError
from onefold.vocabulary.kernels import CompileCost, CompileResult, ScheduleCandidate, TuningRound
from onefold.vocabulary.records import StudyState

AARCH64 = 183  # ELF machine number
BOARD = "raspberry-pi-4"
CANDIDATES = 10
OPTIONS = CompileOptions(candidates_per_round=4, threads=1, strategy="random")


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def stored_compilations(home: Path) -> list[CompilationRecord]:
    with closing(Home(home).store()) as store:
        return store.compilations()


def stored_candidates(home: Path) -> list[ScheduleCandidate]:
    with closing(Home(home).store()) as store:
        return store.candidates()


class CompiledPair:
    """A deployment folder and a torch module, compiled together within one budget."""

    def __init__(self, place: Path, deployed: Path, calibrated: Path) -> None:
        self.home, self.folder, self.saved = place / "home", place / "deploy", place / "saved"
        shutil.copytree(calibrated, self.home / "devices")
        shutil.copytree(deployed, self.folder)
        self.events: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:  # latencies need not be precise here
            patch.setattr("onefold.runtimes.race.TURNS", 1)
            patch.setattr("onefold.runtimes.race.EXTRA_TURNS", 0)
            patch.setattr("onefold.kernels.model_compiler.FINAL_REPEATS", 1)
            patch.setattr("onefold.kernels.survey_tuner.MIN_PROMISE", 0.0)
            self._compile()

    def on_event(self, event: Any) -> None:
        self.events.append(event)
        raise ValueError("an on_event that raises does not end a compilation")

    def _compile(self) -> None:
        self.network, self.samples = network(), torch.randn(40, 3, 8, 8)
        self.results = onefold.compile_many(
            [self.folder, self.network], budget=CompileBudget(candidates=CANDIDATES, gain_drop=None), options=OPTIONS,
            samples=[self.samples], save=self.saved, trust=True, home=self.home, on_event=self.on_event,
        )  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, deployed: Path, calibrated: Path) -> CompiledPair:
    return CompiledPair(tmp_path_factory.mktemp("pair"), deployed, calibrated)


@pytest.fixture
def folder(deployed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(deployed, tmp_path / "deploy")


class TestDeploymentFolder:
    def test_a_folder_gets_a_library_a_manifest_and_a_report(self, pair: CompiledPair) -> None:
        result, manifest = pair.results[0], read_library(open_folder(pair.folder))
        assert manifest is not None
        assert result.folder == str(pair.folder)
        assert (pair.folder / "kernels.so").stat().st_size > 0
        assert (manifest.device, manifest.threads, manifest.batch_size) == ("host", 1, 1)
        assert (manifest.file, manifest.runtimes) == ("kernels.so", result.runtimes)
        assert manifest.recommended == result.recommended
        assert manifest.model == digest_of(pair.folder / "model.onnx")
        assert "Kernels of deploy" in (pair.folder / "kernels.html").read_text()
        assert not list(pair.folder.glob("*.new"))

    def test_a_module_gets_a_deployment_folder_in_save(self, pair: CompiledPair) -> None:
        place = pair.saved / "sequential"
        assert pair.results[1].folder == str(place)
        assert deploy.read(place).on("host").choice("single-stream")
        assert {"kernels.so", "kernels.json", "kernels.html"} <= {path.name for path in place.iterdir()}

    def test_the_fastest_runtime_is_recommended(self, pair: CompiledPair) -> None:
        for result in pair.results:
            latencies = [runtime.latency_s for runtime in result.runtimes]
            assert latencies == sorted(latencies)
            assert {runtime.name for runtime in result.runtimes} >= {"tvm", "onnxruntime"}
            eligible = [
                runtime.name for runtime in result.runtimes if "on 100.0%" in runtime.note or "int8" not in runtime.name
            ]
            assert result.recommended == eligible[0]

    def test_the_compiled_model_has_the_outputs_of_the_module(self, pair: CompiledPair) -> None:
        served = deploy.load(pair.saved / "sequential", runtime="tvm", home=pair.home)
        assert isinstance(served, CompiledModel)
        with torch.no_grad():
            expected = pair.network(pair.samples).numpy()
        assert served(pair.samples.numpy()) == pytest.approx(expected, abs=1e-5)
        assert pair.results[1].error < 1e-3

    def test_all_runtimes_of_a_folder_have_the_same_outputs(self, pair: CompiledPair) -> None:
        inputs = np.random.default_rng(0).standard_normal((5, 3, 8, 8)).astype("f4")
        expected = deploy.load(pair.folder, runtime="onnxruntime")(inputs)
        for runtime in pair.results[0].runtimes:
            tolerance = 0.2 if "int8" in runtime.name else 1e-5
            served = deploy.load(pair.folder, runtime=runtime.name, home=pair.home)
            assert served(inputs) == pytest.approx(expected, abs=tolerance)
        assert deploy.load(pair.folder, home=pair.home)(inputs) == pytest.approx(expected, abs=0.2)


class TestSharedBudget:
    def test_candidates_of_all_models_count(self, pair: CompiledPair) -> None:
        measured = [event for event in pair.events if isinstance(event, ScheduleCandidate)]
        assert len(measured) == CANDIDATES
        assert {result.why_stopped for result in pair.results} == {f"{CANDIDATES} candidates measured"}

    def test_operators_that_models_share_are_tuned_once(self, pair: CompiledPair) -> None:
        histories = [
            {history.operator.key: history.candidates for history in result.histories} for result in pair.results
        ]
        shared = histories[0].keys() & histories[1].keys()
        assert shared, "both models start with the same convolution"
        assert all(histories[0][key] == histories[1][key] for key in shared)

    def test_whole_models_are_timed_before_and_after_each_round(self, pair: CompiledPair) -> None:
        for result in pair.results:
            assert [tuning_round.number for tuning_round in result.rounds] == list(range(len(result.rounds)))
            assert len(result.rounds) >= 2
            assert all(
                tuning_round.model == result.model and tuning_round.latency_s > 0 for tuning_round in result.rounds
            )
        rounds = [event for event in pair.events if isinstance(event, TuningRound) and event.model == "deploy"]
        assert rounds == [*pair.results[0].rounds]

    def test_the_cost_is_known_by_phase(self, pair: CompiledPair) -> None:
        seconds = pair.results[0].spent.seconds
        assert {"search", "build", "run", "whole"} <= set(seconds)
        assert all(value > 0 for value in seconds.values())

    def test_only_tuned_models_share_the_common_cost(self, pair: CompiledPair) -> None:
        tuned = replace(pair.results[0], spent=CompileCost({"whole": 1.0}))
        untuned = replace(tuned, histories=())
        total = CompileCost({"whole": 3.0, "update": 4.0})

        def seconds(*results: CompileResult) -> list[float]:
            artifacts = [CompiledArtifacts(None, result, None, None) for result in results]  # type: ignore[arg-type]
            return [artifact.result.spent.time_s for artifact in _with_shared_cost(artifacts, total)]

        assert seconds(tuned, untuned) == [6.0, 1.0]
        assert seconds(tuned, tuned) == seconds(untuned, untuned) == [3.5, 3.5]

    def test_a_compilation_resumes_when_tvm_now_needs_another_graph_level(self, pair: CompiledPair) -> None:
        _restore_counts({}, pair.results[0].rounds)  # none of the operators is tuned now

    def test_the_store_has_every_candidate_and_the_finished_compilation(self, pair: CompiledPair) -> None:
        measured = [event for event in pair.events if isinstance(event, ScheduleCandidate)]
        assert [candidate.key for candidate in stored_candidates(pair.home)][: len(measured)] == [
            candidate.key for candidate in measured
        ]
        (record,) = [record for record in stored_compilations(pair.home) if len(record.spec["models"]) == 2]
        assert (record.state, record.reason) == (StudyState.DONE, f"{CANDIDATES} candidates measured")
        assert [(tuning_round.model, tuning_round.number) for tuning_round in record.rounds] == [
            (event.model, event.number) for event in pair.events if isinstance(event, TuningRound)
        ]


def test_known_candidates_are_recalled_and_a_met_goal_ends_the_compilation(
    pair: CompiledPair, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.kernels.graph_levels.GRAPH_LEVELS", (0, 3))
    monkeypatch.setattr("onefold.runtimes.race.TURNS", 1)
    monkeypatch.setattr("onefold.runtimes.race.EXTRA_TURNS", 0)
    known = len(stored_candidates(pair.home))
    options = CompileOptions(compare_levels=True, threads=1, strategy="random")
    result = onefold.compile(tiny, goal="1s", options=options, home=pair.home)
    assert result.why_stopped.startswith("the goal is met (")
    assert (result.model, result.folder) == ("tiny", "")
    recalled = sum(history.recalled for history in result.histories)
    assert recalled > 0
    assert sum(state.tried for state in result.rounds[0].operators) == recalled
    assert len(stored_candidates(pair.home)) == known
    assert [level.number for level in result.levels] == [0, 3]
    assert result.levels[0].operators > result.levels[1].operators
    assert not list(tiny.parent.glob("kernels*"))


class TestCrossCompilation:
    def test_an_archive_of_objects_is_written_and_not_run(self, folder: Path, home: Path) -> None:
        inputs = np.ones((2, 3, 8, 8), "f4")
        before = deploy.load(folder)(inputs)
        result = onefold.compile(folder, device=BOARD, options=CompileOptions(batch_size=3), home=home)
        with tarfile.open(folder / "kernels.tar") as archive:
            objects = [archive.extractfile(member) for member in archive.getmembers() if member.name.endswith(".o")]
            headers = [file.read(20) for file in objects if file is not None]
        assert headers
        assert {header[:4] for header in headers} == {b"\x7fELF"}
        assert {int.from_bytes(header[18:20], "little") for header in headers} == {AARCH64}
        assert (result.rounds, result.runtimes, result.recommended) == ((), (), "")
        assert "not run here" in result.why_stopped
        assert "3x8x8x8" in {shape for history in result.histories for shape in history.operator.shapes}
        manifest = read_library(open_folder(folder))
        assert manifest is not None
        assert (manifest.device, manifest.file, manifest.threads, manifest.batch_size) == (BOARD, "kernels.tar", 4, 3)
        assert manifest.notes == (result.why_stopped,)
        assert deploy.load(folder)(inputs) == pytest.approx(before), "this machine serves as before"

    def test_candidates_measured_on_such_a_board_are_used(self, folder: Path, home: Path) -> None:
        target = Target("cortex-a72", "aarch64-linux-gnu", 4)
        with CandidateRunner(target) as runner, closing(Home(home).store()) as store:
            sample = np.zeros((1, 3, 8, 8), "f4")
            operator, module = ModelCompiler("tiny", folder / "model.onnx", [sample], [], runner, 3).operators[0]
            space = ScheduleSpace(operator, module, target)
            proposal = next(proposal for proposal in iter(space.sample, object()) if proposal is not None)
            measured = ScheduleCandidate(
                operator.key, target.name, "board:9090", 4, proposal.key, proposal.sketch, proposal.decisions,
                proposal.trace, 1e-3,
            )  # fmt: skip
            store.save_candidates([measured])
        result = onefold.compile(folder, device=BOARD, home=home)
        assert result.why_stopped.startswith(f"1 of {len(result.histories)} operators tuned; not run here")
        assert result.histories[0].candidates == (measured,)

    def test_a_bundled_workload_is_compiled_by_its_name(self, home: Path) -> None:
        result = onefold.compile("digits", device=BOARD, options=CompileOptions(processor="cortex-a53"), home=home)
        assert result.target == "aarch64-linux-gnu cortex-a53"
        assert {"conv2d", "matmul"} <= {history.operator.kind for history in result.histories}


def test_a_model_that_tvm_cannot_compile_is_served_by_onnxruntime(folder: Path, home: Path) -> None:
    node = helper.make_node("Det", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])
    graph = helper.make_graph([node], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with new_generation(folder, update=True) as new:
        onnx.save(model, str(new / "model.onnx"))
        (new / "model.npz").unlink()
    result = onefold.compile(folder, options=OPTIONS, trust=True, home=home)
    assert [runtime.name for runtime in result.runtimes] == [result.recommended] == ["onnxruntime"]
    assert result.why_stopped.startswith(f"TVM cannot compile {folder}: ")
    assert "Det" in result.why_stopped
    assert result.spent.seconds["whole"] > 0
    assert not (folder / "kernels.so").exists()
    assert "Det" in (folder / "kernels.html").read_text()
    inputs = np.random.default_rng(0).standard_normal((3, 4, 4)).astype("f4")
    assert deploy.load(folder, home=home)(inputs) == pytest.approx(np.linalg.det(inputs), rel=1e-4)
    with pytest.raises(ModelError, match=r"unknown runtime 'tvm' of .*; known: onnxruntime$"):
        deploy.load(folder, runtime="tvm", home=home)


def test_a_workload_gives_the_same_model_every_time(tmp_path: Path) -> None:
    result = set()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (source,) = load_models(["digits"], None, tmp_path / name, None)
        result.add(source.digest)
    assert len(result) == 1, "otherwise an interrupted compilation could not resume"


def test_models_of_the_same_name_get_distinct_names(tiny: Path, tmp_path: Path) -> None:
    sources = load_models([tiny, tiny, network()], [torch.randn(2, 3, 8, 8)], tmp_path, tmp_path / "save")
    assert [source.name for source in sources] == ["tiny", "tiny-2", "sequential"]
    assert [source.folder for source in sources] == [tmp_path / "save" / source.name for source in sources]


class TestErrors:
    """Every error is raised before the folder or the store is changed."""

    @pytest.mark.parametrize(
        ("arguments", "kind", "message"),
        [
            ({"options": {"strategy": "randm"}}, InputError, "unknown search strategy 'randm'; did you mean 'random'"),
            ({"device": "raspberry-pi-44"}, DeviceError, "did you mean 'raspberry-pi-4'"),
            ({"goal": "0.001us"}, BudgetError, r"cannot be met: deploy computes 0\.0\d+ MFLOP"),
            ({"goal": "fast"}, InputError, "expected a duration"),
            ({"goal": 0.0}, BudgetError, "a goal must be above 0, got 0 s"),
            ({"budget": {"money": 2}}, BudgetError, "money needs the price of energy"),
            ({"budget": {"money": 2, "price": "cheap"}}, InputError, "expected a price"),
            ({"budget": {"energy": "50 horses"}}, InputError, "expected an energy"),
            ({"budget": {"minutes": -3}}, BudgetError, "minutes must be above 0, got -3"),
            ({"budget": {"candidates": -1}}, BudgetError, "candidates must be above 0, got -1"),
            ({"budget": {"gain_drop": -0.25}}, BudgetError, "gain_drop must be above 0, got -0.25"),
            ({"options": {"graph_level": 7}}, InputError, "graph_level must be from 0 to 4, got 7"),
            ({"options": {"candidates_per_round": 0}}, InputError, "candidates_per_round must be 1 or more, got 0"),
            ({"options": {"threads": 0}}, InputError, "threads must be 1 or more, got 0"),
            ({"options": {"threads": 4096}}, DeviceError, "got threads=4096"),
            ({"options": {"remote": "nonsense"}}, InputError, "remote must be HOST:PORT of a TVM server"),
            ({"options": {"remote": "127.0.0.1:1"}}, InputError, r"no TVM server answers at 127\.0\.0\.1:1"),
            ({"samples": "nowhere.npz"}, InputError, r"no such samples: nowhere\.npz"),
        ],
    )
    def test_invalid_arguments(
        self, arguments: dict[str, Any], kind: type[OnefoldError], message: str, folder: Path, home: Path
    ) -> None:
        before = digests(folder)
        records = {"budget": CompileBudget, "options": CompileOptions}
        given = {name: records[name](**value) if name in records else value for name, value in arguments.items()}
        with pytest.raises(kind, match=message):
            onefold.compile(folder, home=home, **given)
        assert digests(folder) == before
        assert not stored_compilations(home)

    def test_a_wrong_number_of_models_or_goals(self, folder: Path, home: Path) -> None:
        with pytest.raises(InputError, match="got 2 goals for 1 model: give one for all or one for each"):
            onefold.compile_many([folder], goals=["1ms", "2ms"], home=home)
        with pytest.raises(InputError, match="no models to compile"):
            onefold.compile_many([], home=home)

    def test_a_batch_size_that_the_model_does_not_take(
        self, tiny: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        graph = onnx.load(str(tiny))
        graph.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
        onnx.save(graph, str(tmp_path / "two.onnx"))
        with pytest.raises(ModelError, match="2"):
            onefold.compile(tmp_path / "two.onnx", home=home)
        monkeypatch.setattr(Compilation, "run", None)  # it is told before anything is compiled
        with pytest.raises(
            ModelError, match=r"two\.onnx has a fixed batch size of 2; export it with a dynamic first dim"
        ):
            onefold.compile(
                tmp_path / "two.onnx", options=CompileOptions(batch_size=2), save=tmp_path / "saved", home=home
            )

    def test_a_module_without_samples(self, home: Path) -> None:
        with pytest.raises(InputError, match=r"needs samples of its inputs: compile\(network, samples=\[inputs\]\)"):
            onefold.compile(network(), home=home)

    def test_a_folder_without_a_deployment(self, home: Path, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(ModelError, match="deployment folder"):
            onefold.compile(tmp_path / "empty", home=home)

    def test_models_that_do_not_exist(self, home: Path) -> None:
        with pytest.raises(InputError, match=r"no such model: nothing\.onnx"):
            onefold.compile("nothing.onnx", home=home)
        with pytest.raises(WorkloadError, match="digitz"):
            onefold.compile("digitz", home=home)

    def test_save_must_not_hold_another_model(self, folder: Path, home: Path, tmp_path: Path, model: Path) -> None:
        before = digests(folder)
        with pytest.raises(InputError, match="holds another model; save to another path"):
            onefold.compile(model, save=folder, home=home)
        assert digests(folder) == before
        (tmp_path / "file").touch()
        with pytest.raises(InputError, match=r"save must be a folder, but .*file is a file"):
            onefold.compile(model, save=tmp_path / "file", home=home)

    def test_save_is_refused_for_a_model_with_a_folder(self, folder: Path, home: Path, tmp_path: Path) -> None:
        before = digests(folder)
        with pytest.raises(InputError, match=r"leave save out, or compile .*model\.onnx"):
            onefold.compile(folder, save=tmp_path / "other", home=home)
        assert digests(folder) == before
        assert not (tmp_path / "other").exists()


@pytest.fixture
def server() -> Iterator[str]:
    """A TVM RPC server on this machine, as HOST:PORT."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["-m", "tvm.exec.rpc_server", "--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)]
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        children = psutil.Process(process.pid).children(recursive=True)  # they outlive the server
        for item in (*children, psutil.Process(process.pid)):
            item.kill()
        process.wait()


@pytest.mark.slow
def test_candidates_are_timed_on_a_remote_server(server: str, folder: Path, home: Path) -> None:
    options = CompileOptions(candidates_per_round=4, threads=1, strategy="random", remote=server)
    budget = CompileBudget(candidates=6, gain_drop=None)
    result: CompileResult = onefold.compile(folder, budget=budget, options=options, home=home)
    measured = [candidate for history in result.histories for candidate in history.candidates]
    assert len(measured) == 6
    assert {candidate.machine for candidate in measured} == {server}
    assert any(candidate.latency_s for candidate in measured)
    assert result.error < 1e-3
