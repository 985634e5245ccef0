"""`onefold.compress`: build variants of a trained model, measure each on a device, and select one.

result = compress("model/", Recipe(sparsity=0.8, precision="int8"), device="raspberry-pi-4", save="deploy/")
result.plain, result.variants, result.chosen, result.why
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onefold.compression.encoding import pack
from onefold.compression.measurement import measure_single_sample, to_variant
from onefold.compression.onnx_builder import OnnxVariantBuilder
from onefold.compression.registry import check_recipe
from onefold.compression.selection import SelectionCriteria, VariantCost, check_optimize_for, select_variant
from onefold.compression.variant_builder import BuiltVariant, VariantBuilder
from onefold.device import Device, open_session
from onefold.device.catalog import HOST
from onefold.device.host import find_device, host
from onefold.model_folder import has_weights, new_generation, open_folder
from onefold.processes import scratch_folder
from onefold.serving import deploy
from onefold.serving.api import measure
from onefold.store.home import Home
from onefold.training.trained_model import TrainedModel
from onefold.vocabulary.argument_checks import suggest_fields, suggest_keywords
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.guarded_callback import GuardedCallback
from onefold.vocabulary.variants import Recipe, Variant
from onefold.vocabulary.workload import Workload

PACKED = "model.packed"
DEFAULT_SENSITIVITY_SPARSITY = 0.5


@suggest_fields
@dataclass(frozen=True, slots=True)
class CompressOptions:
    """How variants are trained and judged."""

    max_metric_loss: float = 0.01  # of the workload's metric; a variant that loses more is refused
    epochs: int = 6  # of fine-tuning after pruning; a third of them for quantization-aware training
    samples: str | Path | None = None  # calibration set of an ONNX file: an .npz file with one array per input
    sensitivity: bool = False  # also measure the metric with each layer pruned alone

    def check(self) -> None:
        """Raise InputError for values out of range."""
        if self.epochs < 1:
            raise InputError(f"epochs must be at least 1, since fine-tuning follows pruning, but got {self.epochs}")
        if not self.max_metric_loss >= 0:
            raise InputError(f"max_metric_loss must be at least 0, but got {self.max_metric_loss}")


@dataclass(frozen=True, slots=True)
class CompressionEvent:
    """A step of `compress` has begun or ended, as a message for people."""

    message: str


@dataclass(frozen=True)
class CompressionResult:
    """The plain model, its variants, and the selected one."""

    plain: Variant
    variants: tuple[Variant, ...]
    chosen: Variant
    why: str
    metric: str  # by which variants are judged
    device: str
    sensitivity: Mapping[str, float] = field(default_factory=dict)  # by layer: the metric with that layer pruned alone
    folder: str = ""  # deployment folder of the selected variant, if one was written


@suggest_keywords
def compress(
    model: str | Path,
    recipe: Recipe | Sequence[Recipe],
    *,
    device: str | Device = HOST,
    optimize_for: VariantCost = "size",
    options: CompressOptions | None = None,
    workload: Workload | None = None,
    save: str | Path | None = None,
    trust: bool = False,
    home: str | Path | None = None,
    on_event: Callable[[CompressionEvent], None] | None = None,
) -> CompressionResult:
    """Build variants of a model, measure them beside the plain model, and select one.

    The selected variant is the cheapest one that loses no more than `options.max_metric_loss` of the metric and is not
    slower than the plain model; the plain model if there is none.

    Args:
        model: Folder of a trained model, written by `Result.save` or `onefold tune --save`. An ONNX file, or a
            deployment folder that holds nothing else, supports recipes with a reduced precision only.
        recipe: One or several recipes; each of them becomes a variant.
        device: Name of the device to measure on, or the device itself.
        optimize_for: What to minimize: "size" (of the packed file), "latency" or "energy".
        options: Fine-tuning, calibration set and the allowed loss of the metric.
        workload: The workload of a model folder whose card names none.
        save: Write the deployment folder of the selected variant here.
        trust: Import the workload that the card of a model folder names, though this home did not write the folder.
        home: Folder of studies and devices; by default $ONEFOLD_HOME or the user's data folder.
        on_event: Called with each progress event.

    Returns:
        All variants with their measured properties, and the selected one.

    Raises:
        InputError: If a recipe, an option or the model's path is invalid.
        ModelError: If the model cannot be compressed as a recipe asks for.
        DeviceError: If the device cannot be measured.
        UntrustedFolder: If the card of the model names a workload of a folder that is not trusted.
    """
    recipes = [recipe] if isinstance(recipe, Recipe) else list(recipe)
    for each in recipes:
        check_recipe(each)
    options = options or CompressOptions()
    options.check()
    check_optimize_for(optimize_for)
    home_folder, source = Home(home), Path(model)
    onnx_file = _onnx_file(source)
    if onnx_file is not None and options.sensitivity:
        raise InputError(f"layer sensitivity needs the folder of a trained model, but {source} holds only an ONNX file")
    target = device if isinstance(device, Device) else find_device(device, home_folder.devices)

    notify = GuardedCallback(on_event)

    def report(message: str) -> None:
        notify(CompressionEvent(message))

    with scratch_folder() as folder:
        builder: VariantBuilder | OnnxVariantBuilder
        if onnx_file is not None:
            samples = Path(options.samples) if options.samples is not None else None
            builder = OnnxVariantBuilder(onnx_file, folder, samples, report)
        else:
            builder = VariantBuilder(
                TrainedModel.read(open_folder(source, trust=trust, home=home_folder.path), workload),
                folder,
                max_metric_loss=options.max_metric_loss,
                epochs=options.epochs,
                report=report,
            )
        built = builder.build(recipes)
        report(f"measuring {len(built)} variants on {target.name}")
        plain, *variants = _measure(built, target, home_folder)
        criteria = SelectionCriteria(builder.metric, builder.higher_is_better, optimize_for, options.max_metric_loss)
        selection = select_variant(plain, variants, criteria)
        sensitivity: Mapping[str, float] = {}
        if options.sensitivity and isinstance(builder, VariantBuilder):
            report("measuring the sensitivity of each layer")
            sensitivity = builder.sensitivity(max(each.sparsity for each in recipes) or DEFAULT_SENSITIVITY_SPARSITY)
        if save is not None:
            report(f"writing {save}")
            chosen = next(variant for variant in built if variant.recipe == selection.chosen.recipe)
            _deploy(chosen, selection.chosen, builder, target, Path(save), home_folder)
    return CompressionResult(
        plain=plain,
        variants=tuple(variants),
        chosen=selection.chosen,
        why=str(selection),
        metric=builder.metric,
        device=target.name,
        sensitivity=sensitivity,
        folder=str(save) if save is not None else "",
    )


def _measure(built: Sequence[BuiltVariant], device: Device, home: Home) -> list[Variant]:
    with open_session(device, host(home.devices)) as session, home.locks.measurement():
        served = measure_single_sample(session, [variant.file for variant in built])
    return [to_variant(variant, served[variant.file]) for variant in built]


def _onnx_file(source: Path) -> Path | None:
    """Return the ONNX file if there are no weights to train and no workload to score with."""
    if source.suffix == ".onnx":
        if not source.is_file():
            raise InputError(f"there is no model {source}; give an ONNX file or the folder of a trained model")
        return source
    if has_weights(source) or not (source / deploy.MODEL).is_file():
        return None
    return open_folder(source).file(deploy.MODEL)


def _deploy(
    built: BuiltVariant,
    chosen: Variant,
    builder: VariantBuilder | OnnxVariantBuilder,
    device: Device,
    folder: Path,
    home: Home,
) -> None:
    about = {
        **builder.provenance,
        "variant": str(chosen.recipe),
        "metrics": dict(chosen.metrics),
        "test": builder.test(built.file),
    }
    deployment = measure(built.file, device, home=home.path, origin=about)
    write_variant(folder, built.file, deployment, chosen, home)


def write_variant(folder: Path, model: Path, deployment: deploy.Deployment, variant: Variant, home: Home) -> None:
    """Write the deployment folder of a variant, with its packed model."""
    with new_generation(folder, home=home.path) as new:
        deploy.write_files(new, model, deployment)
        _write_packed(new, variant)


def _write_packed(folder: Path, variant: Variant) -> None:
    """Write the packed model in the encoding that makes the variant smallest."""
    smallest = min(variant.encoded_bytes, key=lambda encoding: variant.encoded_bytes[encoding])
    (folder / PACKED).write_bytes(pack((folder / deploy.MODEL).read_bytes(), smallest))
