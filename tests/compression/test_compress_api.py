"""`onefold.compress` on a trained model and on an ONNX file, with every variant served."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from onefold import Recipe, compress, deploy
from onefold.compression import unpack
from onefold.compression.api import PACKED, CompressionEvent, CompressionResult, CompressOptions
from onefold.compression.variant_builder import BuiltVariant, VariantBuilder
from onefold.model_folder import open_folder
from onefold.serving.export import export
from onefold.training.trained_model import TrainedModel
from onefold.vocabulary.errors import InputError, ModelError
from onefold.vocabulary.requirement import at_most

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
        options=CompressOptions(max_metric_loss=0.05, epochs=2, sensitivity=True, take="80% sparsity, int8"),
        save=home / "deploy",
        save_all=home / "all",
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
        assert variant.source.is_from_device
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
    assert about["compression"]["settings"] == {"sparsity": 0.8, "precision": "int8"}
    assert "The metrics are those of this file, in batches of 128.\n" in (folder / "README.md").read_text()
    assert about["compression"]["file_bytes"] == (folder / deploy.MODEL).stat().st_size
    assert about["compression"]["packed_bytes"] == (folder / PACKED).stat().st_size
    assert (
        "The model is compressed: 80% sparsity, int8. 80 % of its weights are zero."
        in (folder / "README.md").read_text()
    )
    assert 0.6 < about["test"]["accuracy"] <= 1


def test_the_variant_that_is_asked_for_is_selected(result: CompressionResult) -> None:
    assert result.chosen.recipe == Recipe(sparsity=0.8, precision="int8")
    assert "as asked" in result.why


def test_all_variants_are_saved(result: CompressionResult, home: Path) -> None:
    names = {Path(folder).name: name for name, folder in result.folders.items()}
    assert names == {
        "plain": "plain",
        "int8": "int8",
        "sparsity-0.8": "80% sparsity",
        "sparsity-0.8-int8": "80% sparsity, int8",
        "channels-0.5-int8": "50% fewer channels, int8",
    }
    assert {folder.name for folder in (home / "all").iterdir() if folder.is_dir() and folder.name in names} == {*names}
    for name, about in names.items():
        assert deploy.read(home / "all" / name).model["variant"] == about


def test_the_sensitivity_of_each_layer_is_reported(result: CompressionResult) -> None:
    assert len(result.sensitivity) >= 2
    assert all(0 <= accuracy <= 1 for accuracy in result.sensitivity.values())


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe(precision="int9"), "unknown precision 'int9'; did you mean 'int8'"),
        (Recipe.of({"rank": 0.5}), "unknown compression setting 'rank'"),
    ],
)
def test_an_invalid_recipe_is_rejected_before_any_work(tmp_path: Path, recipe: Recipe, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compress(tmp_path, recipe)


def test_invalid_options_are_rejected_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown optimize_for 'speed'; known: energy, latency, size"):
        compress(tmp_path, RECIPES, optimize_for="speed")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown variant 'int9'; did you mean 'int8'"):
        compress(tmp_path, RECIPES, options=CompressOptions(take="int9"))
    with pytest.raises(InputError, match="epochs must be a whole number of at least 1"):
        compress(tmp_path, RECIPES, options=CompressOptions(epochs=0))
    with pytest.raises(InputError, match="max_metric_loss must be a number of at least 0"):
        compress(tmp_path, RECIPES, options=CompressOptions(max_metric_loss=float("nan")))
    with pytest.raises(InputError, match="there is no model"):  # the next check: the options are accepted
        compress(tmp_path / "a.onnx", RECIPES, options=CompressOptions(allow_slower="10%", take="sparsity-0.8-int8"))


def test_folders_that_cannot_be_written_are_rejected_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("save", "save_all"):
        with pytest.raises(InputError, match=f"{name} must be a folder, but .*/file is a file"):
            compress(tmp_path, RECIPES, **{name: tmp_path / "file"})  # type: ignore[arg-type]
    for save in ("all", "all/int8", "all/plain"):
        with pytest.raises(InputError, match="save and save_all must be different folders"):
            compress(tmp_path, RECIPES, save=tmp_path / save, save_all=tmp_path / "all")


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


def test_training_with_fake_quantization_follows_a_loss_by_quantization_alone(
    model_folder: Path, home: Path, tmp_path: Path
) -> None:
    trained = TrainedModel.read(open_folder(model_folder, trust=True, home=home))
    pruned = Recipe(sparsity=0.97, precision="int8")
    reports: list[str] = []

    def built(limit: float) -> list[BuiltVariant]:
        folder = tmp_path / str(limit)
        folder.mkdir()
        builder = VariantBuilder(trained, folder, max_metric_loss=limit, epochs=1, report=reports.append)
        return builder.build([pruned])

    plain, variant = built(0.05)
    assert plain.metrics["accuracy"] - variant.metrics["accuracy"] > 0.05, "pruning costs more than is allowed"
    assert variant.notes == ()
    assert not any("fake quantization" in report for report in reports)
    assert "1 epoch of quantization-aware training changed accuracy from" in built(-1.0)[1].notes[0]


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


def test_a_variant_that_cannot_be_built_does_not_end_the_others(
    onnx_file: Path, model_folder: Path, home: Path
) -> None:
    int4, stored, mixed = (Recipe(precision=name) for name in ("int4", "int8-weight-only", "mixed"))
    reason = "the model has no linear layer of at least 4,096 weights for int4; use int8-weight-only"
    result = compress(onnx_file, [int4, stored], home=home)
    assert [variant.recipe for variant in result.variants] == [stored]
    assert result.failures == {"int4": reason}
    with pytest.raises(ModelError, match=f"int4: {reason}"):
        compress(onnx_file, int4, home=home)
    with pytest.raises(ModelError, match=f"int4: {reason}"):
        compress(onnx_file, [int4, stored], options=CompressOptions(take="int4"), home=home)
    tiny = CompressOptions(require={"encoded_bytes": at_most(10)})
    result = compress(model_folder, [mixed, stored], options=tiny, home=home)
    assert [variant.recipe for variant in result.variants] == [stored]
    assert "mixed precision cannot meet" in result.failures["mixed"]


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


def test_samples_have_the_names_of_the_inputs(onnx_file: Path, home: Path, tmp_path: Path) -> None:
    with np.load(onnx_file.with_name("samples.npz")) as arrays:
        inputs = arrays["input0"]
    np.save(tmp_path / "one.npy", inputs)
    int8 = Recipe(precision="int8")
    unnamed = compress(onnx_file, int8, options=CompressOptions(samples=tmp_path / "one.npy"), home=home)
    assert unnamed.variants[0].notes == (), "the agreement is not on random inputs"
    for names in (["y"], ["arr_0"], ["input0", "y"]):
        np.savez(tmp_path / "samples.npz", **dict.fromkeys(names, np.zeros_like(inputs)))
        message = f"the inputs of the model are input0, but .*samples.npz has {', '.join(names)}; write"
        with pytest.raises(InputError, match=message):
            compress(onnx_file, int8, options=CompressOptions(samples=tmp_path / "samples.npz"), home=home)


@pytest.mark.parametrize("has_samples", [True, False])
def test_a_model_with_a_fixed_batch_size_of_one_is_compressed(
    onnx_file: Path, home: Path, tmp_path: Path, has_samples: bool
) -> None:
    fixed = _with_batch_size(onnx_file, 1, tmp_path / "fixed.onnx")
    recipes = [Recipe(precision="int8-dynamic"), *([Recipe(precision="int8")] if has_samples else [])]
    samples = onnx_file.with_name("samples.npz") if has_samples else None
    options = CompressOptions(samples=samples, take="int8-dynamic")
    result = compress(fixed, recipes, options=options, save=tmp_path / "deploy", home=home)
    card = (tmp_path / "deploy" / "README.md").read_text()
    assert "The metrics are those of this file, in batches of 1; they vary with the batch, whose range" in card
    assert all(variant.metrics["agreement"] > 0.8 for variant in result.variants)
    assert deploy.load(tmp_path / "deploy")(np.zeros((3, 1, 8, 8), "float32")).shape == (3, 5)
    with pytest.raises(ModelError, match=r"fixed\.onnx has a fixed batch size of 4"):
        compress(_with_batch_size(onnx_file, 4, fixed), recipes, options=options, home=home)


def _with_batch_size(source: Path, size: int, target: Path) -> Path:
    model = onnx.load(str(source))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = size
    onnx.save(model, str(target))
    return target


def test_the_precision_of_each_layer_is_on_the_card(model_folder: Path, home: Path, tmp_path: Path) -> None:
    mixed = Recipe(precision="mixed")
    options = CompressOptions(max_metric_loss=0.05, require={"encoded_bytes": at_most(9_000)}, take=mixed)
    result = compress(model_folder, mixed, options=options, save=tmp_path / "deploy", home=home)
    assert result.plain.smallest_bytes > 9_000 >= result.chosen.smallest_bytes
    precisions = [layer.precision for layer in result.chosen.layers]
    assert len(set(precisions)) > 1, "the requirement is met without some layers"
    about = deploy.read(tmp_path / "deploy").model["compression"]
    assert [layer["precision"] for layer in about["layers"]] == precisions
    card = (tmp_path / "deploy" / "README.md").read_text()
    for layer in result.chosen.layers:
        assert f"| {layer.layer} | {layer.precision} |" in card
        assert layer.why in card
    with pytest.raises(ModelError, match="mixed precision cannot meet encoded_bytes<=10 B"):
        compress(model_folder, mixed, options=CompressOptions(require={"encoded_bytes": at_most(10)}), home=home)
    with pytest.raises(InputError, match="unknown requirement 'acuracy'; did you mean 'accuracy'"):
        compress(model_folder, mixed, options=CompressOptions(require={"acuracy": at_most(1)}), home=home)


def test_a_model_that_violates_a_requirement_is_saved_only_if_it_is_asked_for(
    onnx_file: Path, home: Path, tmp_path: Path
) -> None:
    fp16, bounds = Recipe(precision="fp16"), {"encoded_bytes": at_most(100)}
    result = compress(
        onnx_file, fp16, options=CompressOptions(require=bounds, allow_slower=9.0), save=tmp_path / "deploy", home=home
    )
    assert (result.chosen.recipe, result.is_feasible, result.folder) == (fp16, False, "")
    assert not (tmp_path / "deploy").exists()
    asked = CompressOptions(require=bounds, take="fp16")
    result = compress(onnx_file, fp16, options=asked, save=tmp_path / "deploy", home=home)
    assert (result.is_feasible, result.folder) == (False, str(tmp_path / "deploy"))
    assert (tmp_path / "deploy" / deploy.MODEL).is_file()


def test_mixed_precision_of_an_onnx_file_meets_a_latency(onnx_file: Path, home: Path) -> None:
    options = CompressOptions(samples=onnx_file.with_name("samples.npz"), require={"latency_s": at_most(10.0)})
    result = compress(onnx_file, Recipe(precision="mixed"), options=options, home=home)
    assert {layer.precision for layer in result.variants[0].layers} == {"fp32"}, "the plain model is fast enough"


def test_the_agreement_is_that_of_the_output_that_agrees_least(home: Path, tmp_path: Path) -> None:
    class TwoHeads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classes, self.value = torch.nn.Linear(16, 5), torch.nn.Linear(16, 1)
            torch.nn.init.ones_(self.value.weight)
            self.value.weight.data[0, 0] = 1000.0  # per channel, int8 rounds all others to zero

        def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.classes(inputs), self.value(inputs * torch.tensor([0.0] + [1.0] * 15))

    inputs = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "samples.npz", input0=inputs.numpy())
    model = export(TwoHeads(), [inputs], tmp_path / "model.onnx")
    options = CompressOptions(samples=tmp_path / "samples.npz")
    result = compress(model, Recipe(precision="int8-dynamic"), options=options, home=home)
    assert result.variants[0].metrics["agreement"] < 0.8
