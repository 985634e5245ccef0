"""`onefold.compress`: build variants of a trained model, measure each on a device, and select one.

result = compress("model/", Recipe(sparsity=0.8, precision="int8"), device="raspberry-pi-4", save="deploy/")
result.plain, result.variants, result.chosen, result.why
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onefold.compression.encoding import pack_smallest
from onefold.compression.file_properties import file_properties
from onefold.compression.measurement import Repeated, measure_single_sample, to_variant
from onefold.compression.onnx_builder import OnnxVariantBuilder
from onefold.compression.registry import check_recipe
from onefold.compression.requirements import Requirements
from onefold.compression.selection import SelectionCriteria, SelectionOptions, VariantCost, select_variant
from onefold.compression.variant_builder import BuiltVariant, VariantBuilder
from onefold.device import Device, open_session, quiet_host
from onefold.device.catalog import HOST
from onefold.device.host import find_device, host
from onefold.model_folder import check_target, has_weights, new_generation, open_folder, saving
from onefold.processes import scratch_folder
from onefold.runtimes.registry import selected_runtimes
from onefold.serving import deploy
from onefold.serving.api import MeasureStage, PointMeasured, measure_file
from onefold.serving.options import ServingOptions
from onefold.store.home import Home
from onefold.training.trained_model import TrainedModel
from onefold.vocabulary.argument_checks import suggest_fields, suggest_keywords
from onefold.vocabulary.errors import InputError, ModelError
from onefold.vocabulary.forks import check_distill
from onefold.vocabulary.guarded_callback import GuardedCallback
from onefold.vocabulary.requirement import Bound
from onefold.vocabulary.variants import COMPRESSION, Recipe, Variant
from onefold.vocabulary.workload import Workload

PACKED = "model.packed"
DEFAULT_SENSITIVITY_SPARSITY = 0.5


@suggest_fields
@dataclass(frozen=True, slots=True)
class CompressOptions:
    """How variants are trained and judged."""

    max_metric_loss: float = 0.01  # of the workload's metric; a variant that loses more is refused
    epochs: int = 6  # of fine-tuning after pruning; a third of them for quantization-aware training
    samples: str | Path | None = None  # calibration set of an ONNX file: an .npz file with one array per input, by name
    sensitivity: bool = False  # also measure the metric with each layer pruned alone
    allow_slower: float | str = SelectionOptions.allow_slower  # by which a variant may be slower: 0.1 or "10%"
    take: str | Recipe | None = None  # the variant to select whatever it costs: a recipe, or its name such as "int8"
    distill: float = 0.0  # weight of the plain model's class scores in the loss of fine-tuning
    require: Mapping[str, Bound] = field(default_factory=dict)  # by metric, latency_s, encoded_bytes, size_bytes, …
    runtimes: tuple[str, ...] = ()  # that a variant which is saved is also converted for, such as openvino, or all

    def check(self) -> None:
        """Raise InputError for values out of range."""
        if not (isinstance(self.epochs, int) and self.epochs >= 1):
            raise InputError(
                f"epochs must be a whole number of at least 1, since training follows pruning, but got {self.epochs!r}"
            )
        check_distill(self.distill)
        selected_runtimes(self.runtimes)

    def selection(self, optimize_for: VariantCost, recipes: Sequence[Recipe]) -> SelectionOptions:
        """Return how one of the variants with these recipes is selected; raises InputError for an invalid option."""
        take = self.take.folder_name if isinstance(self.take, Recipe) else self.take
        options = SelectionOptions(optimize_for, self.max_metric_loss, self.allow_slower, take)
        options.check(recipes)
        return options


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
    is_feasible: bool  # whether the selected variant meets the requirements; if not, it is the nearest one
    metric: str  # by which variants are judged
    device: str
    sensitivity: Mapping[str, float] = field(default_factory=dict)  # by layer: the metric with that layer pruned alone
    failures: Mapping[str, str] = field(default_factory=dict)  # by recipe: why its variant could not be built
    folder: str = ""  # deployment folder of the selected variant, if one was written
    folders: Mapping[str, str] = field(default_factory=dict)  # by variant: deployment folders, if all were written


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
    save_all: str | Path | None = None,
    trust: bool = False,
    home: str | Path | None = None,
    on_event: Callable[[CompressionEvent], None] | None = None,
) -> CompressionResult:
    """Build variants of a model, measure them beside the plain model, and select one.

    The selected variant is the cheapest one that loses no more than `options.max_metric_loss` of the metric and is not
    slower than the plain model by more than `options.allow_slower`; the plain model if there is none. `options.take`
    selects a variant by its name. `options.require` refuses variants that violate a requirement, also the plain model,
    and goes before `options.allow_slower`; requirements on size and latency say how far `precision="mixed"` goes. If
    nothing meets the requirements, the nearest one is selected, and `save` writes nothing unless `take` asks for it.

    Args:
        model: Folder of a trained model, written by `Result.save` or `onefold tune --save`. An ONNX file, or a
            deployment folder that holds nothing else, supports recipes with a reduced precision only.
        recipe: One or several recipes; each of them becomes a variant.
        device: Name of the device to measure on, or the device itself.
        optimize_for: What to minimize: "size" (of the packed file), "latency" or "energy".
        options: Fine-tuning, calibration set and the allowed loss of the metric.
        workload: The workload of a model folder whose card names none.
        save: Write the deployment folder of the selected variant here.
        save_all: Write the deployment folders of all variants, and of the plain model, into this folder.
        trust: Import the workload that the card of a model folder names, though this home did not write the folder.
        home: Folder of studies and devices; by default $ONEFOLD_HOME or the user's data folder.
        on_event: Called with each progress event.

    Returns:
        All variants with their measured properties, the reasons why others could not be built, and the selected one.

    Raises:
        InputError: If a recipe, an option or the model's path is invalid.
        ModelError: If the model cannot be compressed as any of the recipes asks for, or as the one to take does.
        DeviceError: If the device cannot be measured.
        UntrustedFolder: If the card of the model names a workload of a folder that is not trusted.
    """
    recipes = [recipe] if isinstance(recipe, Recipe) else list(recipe)
    for each in recipes:
        check_recipe(each)
    options = options or CompressOptions()
    options.check()
    selection_options = options.selection(optimize_for, recipes)
    _check_targets(save, save_all, recipes)
    home_folder, source = Home(home), Path(model)
    onnx_file = _onnx_file(source)
    if onnx_file is not None and options.sensitivity:
        raise InputError(f"layer sensitivity needs the folder of a trained model, but {source} holds only an ONNX file")
    if onnx_file is not None and options.distill:
        raise InputError(f"distillation needs the folder of a trained model, but {source} holds only an ONNX file")
    target = device if isinstance(device, Device) else find_device(device, home_folder.devices)

    notify = GuardedCallback(on_event)

    def report(message: str) -> None:
        notify(CompressionEvent(message))

    def latency_s(file: Path) -> float:
        return _measure_latency([file], target, home_folder)[file].fastest.latency_s

    requirements = Requirements(options.require, latency_s)
    with scratch_folder() as folder:
        builder: VariantBuilder | OnnxVariantBuilder
        if onnx_file is not None:
            samples = Path(options.samples) if options.samples is not None else None
            builder = OnnxVariantBuilder(onnx_file, folder, samples, report, requirements)
        else:
            builder = VariantBuilder(
                TrainedModel.read(open_folder(source, trust=trust, home=home_folder.path), workload),
                folder,
                max_metric_loss=options.max_metric_loss,
                epochs=options.epochs,
                report=report,
                requirements=requirements,
                distill=options.distill,
            )
        built = builder.build(recipes, skip_failures=True)
        _check_failures(builder.failures, is_any_built=len(built) > 1, take=selection_options.take)
        report(f"measuring {len(built)} variants on {target.name}")
        plain, *variants = _measure(built, target, home_folder)
        criteria = SelectionCriteria(builder.metric, builder.higher_is_better, selection_options, options.require)
        selection = select_variant(plain, variants, criteria)
        sensitivity: Mapping[str, float] = {}
        if options.sensitivity and isinstance(builder, VariantBuilder):
            report("measuring the sensitivity of each layer")
            sensitivity = builder.sensitivity(max(each.sparsity for each in recipes) or DEFAULT_SENSITIVITY_SPARSITY)
        is_wanted = selection.is_feasible or options.take is not None
        saved_in = Path(save) if save is not None and is_wanted else None
        deployed = {}
        for variant, file in zip((plain, *variants), built):
            folders = [saved_in] if saved_in is not None and variant is selection.chosen else []
            if save_all is not None:
                deployed[str(variant.recipe)] = Path(save_all) / variant.recipe.folder_name
                folders.append(deployed[str(variant.recipe)])
            for target_folder in folders:
                report(f"writing {target_folder}")
                with saving(target_folder):
                    _deploy(file, variant, builder, target, target_folder, home_folder, options, report)
    return CompressionResult(
        plain=plain,
        variants=tuple(variants),
        chosen=selection.chosen,
        why=str(selection),
        is_feasible=selection.is_feasible,
        metric=builder.metric,
        device=target.name,
        sensitivity=sensitivity,
        failures={str(recipe): reason for recipe, reason in builder.failures.items()},
        folder=str(saved_in) if saved_in is not None else "",
        folders={name: str(path) for name, path in deployed.items()},
    )


def _check_targets(save: str | Path | None, save_all: str | Path | None, recipes: Sequence[Recipe]) -> None:
    """Raise InputError if the variants cannot be written into these folders, or two of them into the same one."""
    if save is not None:
        check_target(save, "save")
    if save_all is None:
        return
    check_target(save_all, "save_all", is_replaced=False)
    folders = [Path(save_all) / recipe.folder_name for recipe in (Recipe(), *recipes)]
    for folder in folders:
        check_target(folder, "save_all")
    if save is not None and Path(save).resolve() in {path.resolve() for path in (Path(save_all), *folders)}:
        raise InputError(f"save and save_all must be different folders, but both would write into {save}")


def _check_failures(failures: Mapping[Recipe, str], *, is_any_built: bool, take: str | None) -> None:
    """Raise ModelError if the variant to take could not be built, or none at all."""
    if is_any_built:
        failures = {recipe: why for recipe, why in failures.items() if take is not None and recipe.is_named(take)}
    if failures:
        reasons = [f"{recipe}: {why}" for recipe, why in failures.items()]
        raise ModelError("; ".join(reasons))


def _measure(built: Sequence[BuiltVariant], device: Device, home: Home) -> list[Variant]:
    served = _measure_latency([variant.file for variant in built], device, home)
    return [to_variant(variant, served[variant.file]) for variant in built]


def _measure_latency(files: Sequence[Path], device: Device, home: Home) -> Mapping[Path, Repeated]:
    opened = open_session(device, host(home.devices), pairings=home.pairings)
    with opened as session, quiet_host(session, home.locks.measurement):
        return measure_single_sample(session, files)


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
    options: CompressOptions,
    report: Callable[[str], None],
) -> None:
    about = {
        **builder.provenance,
        "variant": str(chosen.recipe),
        COMPRESSION: file_properties(built.file, chosen.recipe, chosen.layers, builder.batch_size),
        "metrics": dict(chosen.metrics),
        "test": builder.test(built.file),
    }

    def on_event(event: PointMeasured | MeasureStage) -> None:
        if isinstance(event, MeasureStage):
            report(event.message)

    serving = ServingOptions(runtimes=options.runtimes)
    deployment = measure_file(
        built.file, [device], serving, home, about, require=options.require, scoring=builder.scoring, on_event=on_event
    )
    write_variant(folder, built.file, deployment, home)


def write_variant(folder: Path, model: Path, deployment: deploy.Deployment, home: Home) -> None:
    """Write the deployment folder of a variant, with its packed model."""
    with new_generation(folder, home=home.path) as new:
        deploy.write_files(new, model, deployment)
        write_packed(new)


def write_packed(folder: Path) -> None:
    """Write the packed model of a folder beside it, in the encoding that makes it smallest."""
    (folder / PACKED).write_bytes(pack_smallest((folder / deploy.MODEL).read_bytes()))
