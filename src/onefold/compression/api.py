"""Variants of a trained model, each served for real, and the one to take.

found = compress("model/", Recipe(sparsity=0.8, precision="int8"), device="raspberry-pi-4", save="deploy/")
found.plain, found.variants, found.chosen, found.why

A model that was only exported can be quantised; pruning is followed by training, so it needs the model's own folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from onefold.compression import pack
from onefold.compression.measurement import timed, variant_of
from onefold.compression.onnx_builder import OnnxVariantBuilder
from onefold.compression.selection import AIMS, choose
from onefold.compression.variant_builder import BuiltVariant, Tell, VariantBuilder
from onefold.device import Device, open_session
from onefold.device.catalogue import HOST
from onefold.device.host import find_device, host
from onefold.serving import deploy
from onefold.serving.api import measure
from onefold.store.home import Home
from onefold.training.model_folder import CARD, WEIGHTS
from onefold.training.trained_model import TrainedModel
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.variants import Recipe, Variant
from onefold.vocabulary.workload import Workload

PACKED = "model.packed"


@dataclass(frozen=True)
class CompressionResult:
    """What compressing a model came to."""

    plain: Variant
    variants: tuple[Variant, ...]
    chosen: Variant
    why: str
    metric: str  # by which answers are judged
    device: str
    sensitivity: Mapping[str, float] = field(default_factory=dict)  # by layer: the metric when it alone is pruned
    folder: str = ""  # where the chosen one was saved


def compress(
    model: str | Path,
    recipe: Recipe | Sequence[Recipe],
    *,
    device: str | Device = HOST,
    aim: str = "size",
    drop: float = 0.01,
    epochs: int = 6,
    sensitive: bool = False,
    workload: Workload | None = None,
    samples: str | Path | None = None,
    save: str | Path | None = None,
    home: str | Path | None = None,
    tell: Tell = lambda _: None,
) -> CompressionResult:
    """Makes the variants that the recipes ask for, measures them beside the plain model, and chooses one.

    `aim` is what the choice makes small: size (packed), latency or energy. `drop` is what may be lost of the metric.
    `epochs` of training follow pruning; where integers lose more than `drop`, a few more follow that make up for it.
    Of an ONNX file, or of a deployment folder that has nothing else, only the precision can be reduced; `samples`, an
    .npz with an array per input, are what it is calibrated on and judged by.
    """
    recipes = [recipe] if isinstance(recipe, Recipe) else list(recipe)
    for one in recipes:
        one.check()
    if aim not in AIMS:
        raise InputError(f"a variant is chosen for {', '.join(AIMS)}, not for {aim!r}")
    if epochs < 1:
        raise InputError(f"pruning is followed by one epoch of training at least; got {epochs}")
    place, source = Home(home), Path(model)
    graph = _graph_of(source)
    if graph is not None and sensitive:
        raise InputError("the sensitivity of layers takes the folder that onefold tune … --save wrote, and not a graph")
    target = device if isinstance(device, Device) else find_device(device, place.devices)
    here = host(place.devices)
    with tempfile.TemporaryDirectory() as folder:
        workshop: VariantBuilder | OnnxVariantBuilder
        if graph is not None:
            workshop = OnnxVariantBuilder(graph, Path(folder), Path(samples) if samples is not None else None, tell)
        else:
            workshop = VariantBuilder(TrainedModel.read(source, workload), Path(folder), drop, epochs, tell)
        made = workshop.make(recipes)
        tell(f"measuring {len(made)} variants on {target.name}")
        with open_session(target, here) as session, place.locks.measurement():
            served = timed(session, [one.file for one in made])
        plain, *variants = (variant_of(one, served[one.file]) for one in made)
        taken = choose(plain, variants, workshop.metric, workshop.higher_is_better, aim, drop)
        result = CompressionResult(plain, tuple(variants), taken.chosen, str(taken), workshop.metric, target.name)
        if sensitive and isinstance(workshop, VariantBuilder):
            tell("pruning each layer by itself")
            result = replace(result, sensitivity=workshop.sensitivity(max(one.sparsity for one in recipes) or 0.5))
        if save is not None:
            tell(f"writing {save}")
            chosen = next(one for one in made if one.recipe == taken.chosen.recipe)
            _save(chosen, taken.chosen, workshop, target, Path(save), place)
            result = replace(result, folder=str(save))
    return result


def _graph_of(source: Path) -> Path | None:
    """The ONNX file, where that is all there is: no workload to judge its variants by, no weights to train on."""
    if source.suffix == ".onnx":
        if not source.is_file():
            raise InputError(f"there is no model {source}; give an ONNX file or a folder of a model")
        return source
    has_more = (source / CARD).is_file() and (source / WEIGHTS).is_file()
    return source / deploy.MODEL if (source / deploy.MODEL).is_file() and not has_more else None


def _save(
    made: BuiltVariant,
    chosen: Variant,
    workshop: VariantBuilder | OnnxVariantBuilder,
    device: Device,
    folder: Path,
    home: Home,
) -> None:
    """The deployment folder of the chosen variant, and its packed form beside it."""
    about = {
        **workshop.about,
        "variant": str(chosen.recipe),
        "metrics": dict(chosen.metrics),
        "test": workshop.test(made.file),
    }
    measure(made.file, device, save=folder, home=home.path, about=about)
    pack_beside(folder, chosen)


def pack_beside(folder: Path, variant: Variant) -> None:
    """Puts the packed form of a deployment folder's model beside it, in the encoding that makes it smallest."""
    smallest = min(variant.encoded_bytes, key=lambda encoding: variant.encoded_bytes[encoding])
    (folder / PACKED).write_bytes(pack((folder / deploy.MODEL).read_bytes(), smallest))
