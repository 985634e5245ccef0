"""`onefold.compress` on a trained model and on an ONNX file, with every variant served."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from onefold import Recipe, compress, deploy
from onefold.compression import unpack
from onefold.compression.api import PACKED, CompressionEvent, CompressionResult, CompressOptions
from onefold.serving.export import export
from onefold.vocabulary.errors import InputError, ModelError
from onefold.vocabulary.serving import LatencySource

RECIPES = [
    Recipe(precision="int8"),
    Recipe(sparsity=0.8),
    Recipe(sparsity=0.8, precision="int8"),
    Recipe(channels=0.5, precision="int8"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, calibrated: Path) -> Path:
    folder = tmp_path_factory.mktemp("home")
    shutil.copytree(calibrated, folder / "devices")
    return folder


@pytest.fixture(scope="module")
def result(model_folder: Path, home: Path) -> CompressionResult:
    events: list[CompressionEvent] = []

    def on_event(event: CompressionEvent) -> None:
        events.append(event)
        raise ValueError("an on_event that raises does not end a compression")

    result = compress(
        model_folder,
        RECIPES,
        options=CompressOptions(max_metric_loss=0.05, epochs=2, sensitivity=True),
        save=home / "deploy",
        home=home,
        on_event=on_event,
    )
    assert any("epoch 1 of 2" in event.message for event in events)
    return result


def test_every_variant_is_measured_beside_the_plain_model(result: CompressionResult) -> None:
    assert result.plain.recipe.is_plain
    assert [variant.recipe for variant in result.variants] == RECIPES
    for variant in (result.plain, *result.variants):
        assert variant.metrics["accuracy"] > 0.6
        assert variant.latency_s > 0
        assert variant.source is LatencySource.MEASURED
        assert variant.memory_bytes
        assert variant.flops >= variant.useful_flops > 0


def test_variants_have_the_properties_of_their_recipes(result: CompressionResult) -> None:
    int8, sparse, both, narrow = result.variants
    assert int8.smallest_bytes < 0.5 * result.plain.smallest_bytes
    assert sparse.zeros == pytest.approx(0.8, abs=0.01)
    assert sparse.useful_flops < 0.6 * sparse.flops
    assert both.smallest_bytes < min(int8.smallest_bytes, sparse.smallest_bytes)
    assert narrow.parameters < 0.6 * result.plain.parameters
    assert narrow.flops < 0.8 * result.plain.flops


def test_the_selected_variant_can_be_served_and_unpacked(result: CompressionResult) -> None:
    folder = Path(result.folder)
    served = deploy.load(folder)
    assert served(np.zeros((3, 1, 8, 8), "float32")).shape == (3, 10)
    assert unpack((folder / PACKED).read_bytes()) == (folder / deploy.MODEL).read_bytes()
    about = deploy.read(folder).model
    assert (about["study"], about["trial"], about["variant"]) == ("digits-1", 1, str(result.chosen.recipe))
    assert about["metrics"]["accuracy"] == result.chosen.metrics["accuracy"]
    assert 0.6 < about["test"]["accuracy"] <= 1


def test_the_sensitivity_of_each_layer_is_reported(result: CompressionResult) -> None:
    assert len(result.sensitivity) >= 2
    assert all(0 <= accuracy <= 1 for accuracy in result.sensitivity.values())


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe(sparsity=1.0), "sparsity must be at least 0 and below 1"),
        (Recipe(channels=-0.1), "channels must be at least 0 and below 1"),
        (Recipe(precision="int4"), "unknown precision 'int4'; did you mean 'int8'"),
    ],
)
def test_an_invalid_recipe_is_rejected_before_any_work(tmp_path: Path, recipe: Recipe, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compress(tmp_path, recipe)


def test_invalid_options_are_rejected_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown optimize_for 'speed'; known: energy, latency, size"):
        compress(tmp_path, RECIPES, optimize_for="speed")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="epochs must be at least 1"):
        compress(tmp_path, RECIPES, options=CompressOptions(epochs=0))
    with pytest.raises(InputError, match="max_metric_loss must be at least 0"):
        compress(tmp_path, RECIPES, options=CompressOptions(max_metric_loss=float("nan")))


def test_a_folder_without_a_model_is_rejected(tmp_path: Path, home: Path) -> None:
    with pytest.raises(InputError, match="trained model"):
        compress(tmp_path, RECIPES, home=home)
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(ModelError):
        compress(tmp_path, RECIPES[0], home=home)


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network, with a calibration set in samples.npz."""
    folder = tmp_path_factory.mktemp("graph")
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 5)
    )
    inputs = torch.randn(64, 1, 8, 8)
    np.savez(folder / "samples.npz", input0=inputs.numpy())
    return export(network, [inputs], folder / "graph.onnx")


def test_an_onnx_file_can_be_quantized(onnx_file: Path, home: Path, tmp_path: Path) -> None:
    recipes = [Recipe(precision=precision) for precision in ("int8", "int8-dynamic", "fp16")]
    options = CompressOptions(samples=onnx_file.with_name("samples.npz"), max_metric_loss=0.2)
    result = compress(onnx_file, recipes, options=options, home=home)
    assert result.metric == "agreement"
    assert result.plain.metrics == {"agreement": 1.0}
    assert all(variant.metrics["agreement"] > 0.8 for variant in result.variants)
    assert result.variants[-1].size_bytes < result.plain.size_bytes
    (tmp_path / deploy.MODEL).write_bytes(onnx_file.read_bytes())  # a deployment folder with nothing to train
    again = compress(tmp_path, Recipe(precision="fp16"), home=home)
    assert "random inputs" in again.variants[0].notes[0]


def test_an_onnx_file_cannot_be_pruned_nor_calibrated_without_samples(onnx_file: Path, home: Path) -> None:
    with pytest.raises(InputError, match="give the folder of a trained model, or a recipe with one of int8"):
        compress(onnx_file, Recipe(sparsity=0.5, precision="int8"), home=home)
    with pytest.raises(InputError, match="int8 needs a calibration set of at least 32 samples"):
        compress(onnx_file, Recipe(precision="int8"), home=home)
    with pytest.raises(InputError, match="sensitivity needs the folder of a trained model"):
        compress(onnx_file, Recipe(precision="int8"), options=CompressOptions(sensitivity=True), home=home)
    with pytest.raises(InputError, match="cannot be read"):
        compress(onnx_file, Recipe(precision="fp16"), options=CompressOptions(samples=onnx_file), home=home)
    with pytest.raises(InputError, match="there is no model"):
        compress(onnx_file.with_name("none.onnx"), Recipe(precision="int8"), home=home)
