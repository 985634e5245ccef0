"""The comparison of runtimes: what is recommended, what is written, and what is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import onefold
from onefold.runtimes.forms import read_forms
from onefold.serving import deploy
from onefold.serving.export import export
from onefold.serving.runtime_selection import RuntimeScore, convert_and_score, eligible
from onefold.vocabulary.errors import ModelError, UntrustedFolder
from onefold.vocabulary.records import Metrics
from onefold.vocabulary.requirement import at_least

NAMES = ("onnxruntime", "pytorch")  # which every installation has


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    path = export(network, [torch.randn(8, 4)], tmp_path_factory.mktemp("converted") / "model.onnx")
    convert_and_score(path, NAMES)
    return path


@pytest.fixture(scope="module")
def folder(model: Path, calibrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("measured")
    space = onefold.ServingSpace(batch_sizes=(1, 4), threads=(1,), graph_levels=("all",), executions=("sequential",))
    serving = onefold.ServingOptions("latency", space=space, runtimes=("pytorch",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onefold.runtimes.race.TURNS", 1)
        patch.setattr("onefold.runtimes.race.EXTRA_TURNS", 0)
        patch.setenv("ONEFOLD_HOME", str(calibrated.parent))
        onefold.measure(model, serving=serving, save=folder / "deploy")
        yield folder / "deploy"


def scoring(accuracy: dict[str, float]) -> RuntimeScore:
    def score(model: Path, runtime: str) -> Metrics:
        if runtime not in accuracy:
            raise ModelError("it crashed")
        return {"accuracy": accuracy[runtime]}

    return RuntimeScore("accuracy", True, score)


@pytest.mark.parametrize(
    ("accuracy", "require", "reason"),
    [
        ({"onnxruntime": 0.9, "pytorch": 0.895}, {}, ""),
        ({"onnxruntime": 0.9, "pytorch": 0.88}, {}, "accuracy is 0.02 worse than in ONNX Runtime"),
        ({"onnxruntime": 0.9, "pytorch": 0.895}, {"accuracy": at_least(0.9)}, "but accuracy>=0.9 is required"),
        ({"onnxruntime": 0.9}, {}, "it crashed"),
    ],
)
def test_runtimes_that_lose_too_much_are_not_recommended(
    accuracy: dict[str, float], require: dict[str, onefold.Bound], reason: str, model: Path
) -> None:
    results = convert_and_score(model, NAMES, scoring(accuracy), require)
    assert reason in results[1].reason
    assert eligible(results) == list(NAMES[: 1 if reason else 2])


def test_deployment_has_all_runtimes_and_recommends_the_fastest(folder: Path) -> None:
    settings = deploy.read(folder).on()
    results = {result.runtime: result for result in settings.runtimes}
    assert set(results) == set(NAMES)
    assert all(result.metrics["agreement"] == 1.0 for result in results.values())
    latencies = {name: result.latency_s or 0.0 for name, result in results.items()}
    assert all(latencies.values())
    assert settings.choice("single-stream").point.runtime in NAMES
    assert {served.point.runtime for served in settings.surface.served} == set(NAMES)
    batches = {served.point.batch_size for served in settings.surface.served if served.point.runtime == "pytorch"}
    assert batches == {1}, "its form is for single samples"
    assert (folder / "model.pt").is_file()
    assert json.loads((folder / "deployment.json").read_text())["devices"][0]["runtimes"]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_runtimes_of_a_folder_agree(folder: Path, count: int) -> None:
    inputs = np.random.default_rng(0).standard_normal((count, 4)).astype("f4")
    first, second = (deploy.load(folder, runtime=name) for name in NAMES)
    assert (first.point.runtime, second.point.runtime) == NAMES
    assert second(inputs) == pytest.approx(first(inputs), abs=1e-5)
    assert second(inputs).shape == (count, 3)


def test_programs_of_pytorch_need_trust(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UntrustedFolder, match=r"model\.pt"):
        deploy.load(folder, runtime="pytorch", home=tmp_path)
    assert deploy.load(folder, runtime="pytorch", home=tmp_path, trust=True).point.runtime == "pytorch"


def test_recommended_runtime_that_is_missing_is_replaced_with_a_warning(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "manifest.json").unlink()
    content = json.loads((copy / "deployment.json").read_text())
    for choice in content["devices"][0]["choices"]:
        choice["point"]["runtime"] = "ncnn"
    (copy / "deployment.json").write_text(json.dumps(content))
    assert "ncnn" not in read_forms(copy / "model.onnx")
    assert deploy.load(copy).point.runtime == "onnxruntime"
    assert "served by onnxruntime instead of ncnn" in caplog.text


def test_check_serves_in_the_recommended_runtime(folder: Path) -> None:
    checks = onefold.serve_check(folder)
    assert {check.expected.point.runtime for check in checks} <= set(NAMES)
    assert all(check.measured.runs > 0 for check in checks)
