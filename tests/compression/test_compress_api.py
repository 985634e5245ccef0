"""Variants of a real trained model, served for real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from onefold import Recipe, compress, deploy
from onefold.compression import unpack
from onefold.compression.api import PACKED, CompressionResult
from onefold.compression.selection import choose
from onefold.serving.export import export
from onefold.study.api import single_trial
from onefold.vocabulary.errors import InputError, ModelError
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import LatencySource
from onefold.vocabulary.variants import Variant

RECIPES = [
    Recipe(precision="int8"),
    Recipe(sparsity=0.8),
    Recipe(sparsity=0.8, precision="int8"),
    Recipe(channels=0.5, precision="int8"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    return single_trial("digits", epochs=4, home=folder / "home", knobs="off").run().save(folder / "model")


@pytest.fixture(scope="module")
def found(model: Path) -> CompressionResult:
    said: list[str] = []
    result = compress(
        model, RECIPES, epochs=2, drop=0.05, sensitive=True, save=model.parent / "deploy", home=model.parent / "home",
        tell=said.append,
    )  # fmt: skip
    assert any("epoch 1 of 2" in each for each in said)
    return result


def test_every_variant_is_measured_beside_the_plain_model(found: CompressionResult) -> None:
    assert found.plain.recipe.is_plain
    assert [one.recipe for one in found.variants] == RECIPES
    for one in (found.plain, *found.variants):
        assert one.metrics["accuracy"] > 0.6
        assert one.latency_s > 0
        assert one.source is LatencySource.MEASURED
        assert one.memory_bytes
        assert one.flops >= one.useful_flops > 0


def test_what_a_recipe_promises_is_so(found: CompressionResult) -> None:
    int8, sparse, both, narrow = found.variants
    assert int8.smallest_bytes < 0.5 * found.plain.smallest_bytes
    assert sparse.zeros == pytest.approx(0.8, abs=0.01)
    assert sparse.useful_flops < 0.6 * sparse.flops
    assert both.smallest_bytes < min(int8.smallest_bytes, sparse.smallest_bytes)
    assert narrow.parameters < 0.6 * found.plain.parameters
    assert narrow.flops < 0.8 * found.plain.flops


def test_the_chosen_one_can_be_served_and_unpacked(found: CompressionResult) -> None:
    folder = Path(found.folder)
    served = deploy.load(folder)
    assert served(np.zeros((3, 1, 8, 8), "float32")).shape == (3, 10)
    assert unpack((folder / PACKED).read_bytes()) == (folder / deploy.MODEL).read_bytes()
    about = deploy.read(folder).model
    assert about["variant"] == str(found.chosen.recipe)
    assert about["metrics"]["accuracy"] == found.chosen.metrics["accuracy"]
    assert 0.6 < about["test"]["accuracy"] <= 1


def test_the_sensitivity_of_each_layer_is_told(found: CompressionResult) -> None:
    assert len(found.sensitivity) >= 2
    assert all(0 <= accuracy <= 1 for accuracy in found.sensitivity.values())


def a_variant(**changes: object) -> Variant:
    plain = Variant(
        Recipe(), {"accuracy": 0.9}, 0.010, LatencySource.MEASURED, Energy(1.0, "modelled"), None, 1000, {"zstd": 800},
        1e6, 1e6, 100, 0.0,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_variant_that_is_slower_or_worse_is_never_taken() -> None:
    slow = a_variant(recipe=Recipe(sparsity=0.5), latency_s=0.02, encoded_bytes={"zstd": 10})
    worse = a_variant(recipe=Recipe(sparsity=0.9), metrics={"accuracy": 0.8}, encoded_bytes={"zstd": 10})
    good = a_variant(recipe=Recipe(precision="int8"), encoded_bytes={"zstd": 400}, metrics={"accuracy": 0.895})
    pick = choose(a_variant(), [slow, worse, good], "accuracy", True, "size", 0.01)
    assert pick.chosen is good
    assert pick.refused == {
        "50% zeros": "2.00x as slow",
        "90% zeros": "accuracy is worse by 0.1, more than the 0.01 allowed",
    }
    pick = choose(a_variant(), [slow, worse], "accuracy", True, "size", 0.01)
    assert pick.chosen.recipe.is_plain
    assert "no variant is better" in str(pick)


def test_a_loss_counts_the_other_way_round() -> None:
    plain = a_variant(metrics={"rmse": 1.0})
    better = a_variant(recipe=Recipe(precision="fp16"), metrics={"rmse": 0.9}, encoded_bytes={"zstd": 1})
    worse = a_variant(recipe=Recipe(precision="int8"), metrics={"rmse": 1.1}, encoded_bytes={"zstd": 0})
    assert choose(plain, [better, worse], "rmse", False, "size", 0.05).chosen is better


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        (Recipe(sparsity=1.0), "below 1, since something must be left"),
        (Recipe(channels=-0.1), "at least 0 and below 1"),
        (Recipe(precision="int4"), "not known"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_told_before_anything_is_done(
    tmp_path: Path, recipe: Recipe, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        compress(tmp_path, recipe)


def test_an_aim_that_nobody_knows_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="size, latency, energy, not for 'speed'"):
        compress(tmp_path, Recipe(precision="int8"), aim="speed")


def test_what_is_no_trained_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder of a trained model"):
        compress(tmp_path, Recipe(precision="int8"), home=tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match="cannot be served"):
        compress(tmp_path, Recipe(precision="int8"), home=tmp_path)


def a_graph(folder: Path) -> tuple[Path, Path]:
    """A small network as an ONNX file, and a file of samples for it."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 5)
    )
    inputs = torch.randn(64, 1, 8, 8)
    samples = folder / "samples.npz"
    np.savez(samples, input0=inputs.numpy())
    return export(network, [inputs], folder / "graph.onnx"), samples


def test_of_a_graph_alone_the_precision_can_be_reduced(tmp_path: Path) -> None:
    graph, samples = a_graph(tmp_path)
    recipes = [Recipe(precision=precision) for precision in ("int8", "int8-dynamic", "fp16")]
    found = compress(graph, recipes, samples=samples, drop=0.2, save=tmp_path / "deploy", home=tmp_path / "home")
    assert found.metric == "agreement"
    assert found.plain.metrics == {"agreement": 1.0}
    assert all(one.metrics["agreement"] > 0.8 for one in found.variants)
    assert found.variants[-1].size_bytes < found.plain.size_bytes
    again = compress(tmp_path / "deploy", Recipe(precision="fp16"), home=tmp_path / "home")
    assert "made-up inputs" in again.variants[0].notes[0]


@pytest.mark.parametrize(
    ("recipe", "given", "says"),
    [
        (Recipe(sparsity=0.5, precision="int8"), True, "pruning is followed by training"),
        (Recipe(precision="int8"), False, "int8 is calibrated on real inputs"),
    ],
)
def test_what_a_graph_alone_does_not_allow(tmp_path: Path, recipe: Recipe, given: bool, says: str) -> None:
    graph, samples = a_graph(tmp_path)
    with pytest.raises(InputError, match=says):
        compress(graph, recipe, samples=samples if given else None, home=tmp_path / "home")
    with pytest.raises(InputError, match="there is no model"):
        compress(tmp_path / "none.onnx", recipe, home=tmp_path / "home")
    with pytest.raises(InputError, match="cannot be read"):
        compress(graph, Recipe(precision="fp16"), samples=graph, home=tmp_path / "home")
