"""Forks of a trial in a worker process: build the variant of a checkpoint, score its file, keep the file."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onefold.compression.encoding import pack_smallest
from onefold.compression.file_properties import file_properties
from onefold.compression.onnx_module import OnnxModule
from onefold.compression.registry import active_methods, check_recipe, needs_training
from onefold.compression.variant_builder import VariantBuilder
from onefold.processes import scratch_folder
from onefold.serving.export import samples_beside
from onefold.serving.signature import architecture
from onefold.training.trained_model import TrainedModel
from onefold.vocabulary.errors import NotANumber
from onefold.vocabulary.forks import ENCODED_BYTES, ForkOptions
from onefold.vocabulary.records import Metrics
from onefold.vocabulary.variants import COMPRESSION, Recipe


def split_recipes(options: ForkOptions) -> tuple[tuple[Recipe, ...], tuple[tuple[Recipe, int], ...]]:
    """Return the recipes that need no training, and the others with their epochs.

    Every method that changes the network is followed by `options.epochs`. Raises InputError for an unknown setting.
    """
    for recipe in options.recipes:
        check_recipe(recipe)
    scored = tuple(recipe for recipe in options.recipes if not needs_training(recipe))
    trained = (
        (recipe, options.epochs * sum(method.stage != "graph" for method, _ in active_methods(recipe)))
        for recipe in options.recipes
        if needs_training(recipe)
    )
    return scored, tuple(trained)


def build_fork(trained: TrainedModel, recipe: Recipe, file: Path, *, epochs: int, options: ForkOptions) -> Metrics:
    """Write the variant of a trained network to the ONNX file, and return the metrics of this file.

    `epochs` are those of all fine-tuning together, after each kind of pruning. Without any, the network is compressed
    as it is: no training follows a loss through quantization either. Raises ModelError if the network does not support
    the recipe, and NotANumber for a metric that is not finite.
    """
    stages = sum(method.stage != "graph" for method, _ in active_methods(recipe))
    with scratch_folder() as folder:
        builder = VariantBuilder(
            trained,
            folder,
            max_metric_loss=options.max_metric_loss if epochs else math.inf,
            epochs=epochs // max(1, stages),
            report=lambda _: trained.tick(),
            distill=options.distill if epochs else 0.0,
        )
        _, variant = builder.build([recipe])
        metrics = {
            **variant.metrics,
            ENCODED_BYTES: float(packed_bytes(variant.file)),
            "parameters": float(architecture(variant.exact).parameters),
        }
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise NotANumber(f"{name} of the variant '{recipe}' is {value}")
        for source, target in ((variant.file, file), (samples_beside(variant.file), samples_beside(file))):
            complete = target.with_name(f"{target.name}.new")
            shutil.copyfile(source, complete)
            complete.replace(target)
    return metrics


def packed_bytes(model: Path) -> int:
    """Return the size of a model file in the encoding that makes it smallest."""
    return len(pack_smallest(model.read_bytes()))


def card_of_fork(trained: TrainedModel, recipe: Recipe, model: Path) -> Mapping[str, Any]:
    """Return what the card of a fork says of its very file: how it is compressed, and its metrics on test data."""
    return {
        "variant": str(recipe),
        COMPRESSION: file_properties(model, recipe),
        "test": trained.test(OnnxModule(model, trained.outputs)),
    }
