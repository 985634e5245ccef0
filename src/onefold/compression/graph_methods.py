"""Apply the graph-stage methods of a recipe to an ONNX file."""

from __future__ import annotations

from pathlib import Path

from onefold.compression.compressor import Samples
from onefold.compression.registry import active_methods
from onefold.vocabulary.variants import Recipe


def compress_graph(model: Path, recipe: Recipe, samples: Samples | None) -> tuple[Path, tuple[str, ...]]:
    """Write the compressed model beside `model`; return its file and the layers that could not be compressed.

    The file is `model` itself if the recipe has no graph-stage method. `samples` is the calibration set.
    """
    uncompressed: tuple[str, ...] = ()
    for method, _ in active_methods(recipe):
        if method.stage == "graph":
            target = model.with_name(f"{model.stem}-{method.name}.onnx")
            uncompressed += method.compressor.compress_onnx(model, target, samples)
            model = target
    return model, uncompressed
