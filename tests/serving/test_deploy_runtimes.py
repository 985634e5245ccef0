"""Deployment folders with compiled kernels: the choice of the runtime, and agreement between runtimes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onefold.device import Device
from onefold.kernels.candidate_runner import CandidateRunner
from onefold.kernels.compiled_model import CompiledModel
from onefold.kernels.kernel_library import LibraryFiles, LibraryManifest, read_library, write_library
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.targets import target_of
from onefold.model_folder import new_generation, open_folder
from onefold.runtimes.forms import digest_of
from onefold.serving.deploy import ServedModel, load, read
from onefold.vocabulary.errors import ModelError, UntrustedFolder
from onefold.vocabulary.kernels import RuntimeLatency
from onefold.vocabulary.serving import ServingPoint

INPUTS = np.random.default_rng(0).standard_normal((5, 3, 8, 8)).astype("f4")
RUNTIMES = (RuntimeLatency("tvm", 1e-6, 1), RuntimeLatency("onnxruntime", 2e-6, 1))


@pytest.fixture(scope="module")
def library(tiny: Path, this_host: Device, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network compiled for batch size 1 without tuning."""
    target = target_of(this_host, 1, is_host=True)
    with CandidateRunner(target) as runner:
        whole = ModelCompiler("tiny", tiny, [INPUTS[:1]], [], runner, 3)
        return whole.compile({}, tmp_path_factory.mktemp("library") / "tiny.so")


@pytest.fixture
def folder(deployed: Path, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path / "home"))
    copy = shutil.copytree(deployed, tmp_path / "deploy")
    install(copy, library, about(copy))
    return copy


def install(folder: Path, library: Path | None, manifest: LibraryManifest, int8: Path | None = None) -> None:
    opened = open_folder(folder, trust=True)
    with new_generation(folder, update=True, opened=opened.manifest) as new:
        write_library(new, LibraryFiles(library, int8=int8), manifest)


def about(folder: Path) -> LibraryManifest:
    names = ServedModel(folder / "model.onnx", read(folder).on().choices[0].point)
    kinds = {each.name: "float32" for each in names.model.inputs}
    return LibraryManifest("host", "this processor", 1, 1, kinds, RUNTIMES, "tvm")


def test_recommended_runtime_is_the_default(folder: Path) -> None:
    assert isinstance(load(folder), CompiledModel)
    assert isinstance(load(folder, scenario="single-stream"), CompiledModel)
    install(folder, None, replace(about(folder), recommended="onnxruntime"))
    assert isinstance(load(folder), ServedModel)


def test_other_batch_sizes_use_onnxruntime(folder: Path) -> None:
    size = read(folder).on().choice("offline:8").point.batch_size
    assert size != 1, "a query of eight is served in larger batches"
    assert isinstance(load(folder, scenario="offline:8"), ServedModel)


def test_kernels_of_another_device_are_not_used(folder: Path, library: Path) -> None:
    install(folder, library, replace(about(folder), device="raspberry-pi-4"))
    assert isinstance(load(folder), ServedModel)


def test_kernels_of_a_replaced_model_are_not_used(folder: Path, library: Path, model: Path) -> None:
    install(folder, library, replace(about(folder), model=digest_of(folder / "model.onnx")))
    assert isinstance(load(folder), CompiledModel)
    with new_generation(folder, update=True) as new:
        shutil.copy(model, new / "model.onnx")
    assert isinstance(load(folder), ServedModel)
    with pytest.raises(ModelError, match="unknown runtime 'tvm'"):
        load(folder, runtime="tvm")


@pytest.mark.parametrize("count", [0, 1, 5])
def test_runtimes_agree(folder: Path, count: int) -> None:
    plain, compiled = (load(folder, runtime=name) for name in ("onnxruntime", "tvm"))
    assert isinstance(plain, ServedModel)
    wanted, result = plain(INPUTS[:count]), compiled(INPUTS[:count])
    assert result.shape == wanted.shape == (count, 4)
    assert result == pytest.approx(wanted, abs=1e-5)


def test_recommended_spinning_is_used(folder: Path, library: Path) -> None:
    name = "onnxruntime spinning"
    result = (RuntimeLatency(name, 1e-6, 2), *RUNTIMES)
    install(folder, library, replace(about(folder), runtimes=result, recommended=name, threads=2))
    served = load(folder)
    assert isinstance(served, ServedModel)
    assert served.point == ServingPoint(1, 2, waiting="spinning")
    assert served(INPUTS) == pytest.approx(load(folder, runtime="onnxruntime")(INPUTS), abs=1e-5)
    assert load(folder, runtime="onnxruntime").point.waiting == "sleeping"


def test_lists_and_other_precisions_are_converted(folder: Path) -> None:
    served = load(folder, runtime="tvm")
    assert served(INPUTS.tolist()) == pytest.approx(served(INPUTS), abs=1e-5)
    assert served(INPUTS.astype("f8")) == pytest.approx(served(INPUTS), abs=1e-5)


def test_wrong_inputs_are_explained(folder: Path) -> None:
    served = load(folder, runtime="tvm")
    with pytest.raises(ModelError, match=r"takes 1 inputs \(input0\), got 2"):
        served(INPUTS, INPUTS)
    with pytest.raises(ModelError, match="input0"):
        served(INPUTS[:, :2])
    with pytest.raises(ModelError, match="input0"):
        served(["no", "numbers"])


def test_unknown_runtime_suggests_the_closest(folder: Path, deployed: Path) -> None:
    with pytest.raises(ModelError, match=r"unknown runtime 'tvn' of .*; did you mean 'tvm'"):
        load(folder, runtime="tvn")
    with pytest.raises(ModelError, match="unknown runtime 'onnxruntime int8'"):
        load(folder, runtime="onnxruntime int8")
    with pytest.raises(ModelError, match="unknown runtime 'tvm'"):
        load(deployed, runtime="tvm")
    assert isinstance(load(deployed, runtime="onnxruntime"), ServedModel)


def test_missing_or_invalid_library(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    install(folder, broken, about(folder))
    with pytest.raises(ModelError, match=r"kernels\.so cannot be loaded"):
        load(folder, runtime="tvm")
    install(folder, None, about(folder))
    with pytest.raises(ModelError, match=r"kernels\.so is not listed in the manifest"):
        load(folder)
    assert isinstance(load(folder, runtime="onnxruntime"), ServedModel)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"device": 3}'])
def test_invalid_kernel_manifest(text: str, folder: Path) -> None:
    with new_generation(folder, update=True) as new:
        (new / "kernels.json").write_text(text)
    with pytest.raises(ModelError, match=r"kernels\.json cannot be read: .*; compile the model again"):
        load(folder)


@pytest.mark.parametrize("name", ["kernels.so", "kernels.json", "model.onnx", "deployment.json"])
def test_changed_files_are_refused(name: str, folder: Path) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ModelError, match=f"{name} was changed after it was written"):
        load(folder)


def test_native_code_of_another_home_needs_trust(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(load(folder, home=tmp_path / "stranger"), ServedModel)
    assert "compiled kernels are not loaded" in caplog.text
    with pytest.raises(UntrustedFolder, match=r"kernels\.so would run code from it; .* open it with trust=True"):
        load(folder, runtime="tvm", home=tmp_path / "stranger")
    assert isinstance(load(folder, home=tmp_path / "stranger", trust=True), CompiledModel)


def test_library_is_replaced_completely(folder: Path, library: Path) -> None:
    first = about(folder)
    install(folder, library, first, int8=folder / "model.onnx")
    assert (folder / "model.int8.onnx").is_file()
    install(folder, library, replace(first, device="raspberry-pi-4", file="kernels.tar"))
    assert read_library(open_folder(folder)) == replace(first, device="raspberry-pi-4", file="kernels.tar")
    left = {path.name for path in folder.iterdir()}
    assert {"kernels.tar", "kernels.json"} <= left
    assert not left & {"kernels.so", "model.int8.onnx"}
    assert not [name for name in left if name.endswith(".new")]
    assert json.loads((folder / "kernels.json").read_text())["version"] == 1
