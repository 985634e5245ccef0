"""Apply the graph-stage methods of a recipe to an ONNX file."""

from __future__ import annotations

from pathlib import Path

from onefold.compression.compressor import CompressedGraph, Samples
from onefold.compression.registry import active_methods
from onefold.compression.requirements import Requirements
from onefold.vocabulary.variants import Recipe


def compress_graph(
    model: Path, recipe: Recipe, samples: Samples | None, requirements: Requirements | None = None
) -> tuple[Path, CompressedGraph]:
    """Write the compressed model beside `model`; return its file and what became of its layers.

    The file is `model` itself if the recipe has no graph-stage method. `samples` is the calibration set.
    """
    graph = CompressedGraph()
    for method, _ in active_methods(recipe):
        if method.stage == "graph":
            target = model.with_name(f"{model.stem}-{method.name}.onnx")
            done = method.compressor.compress_within(model, target, samples, requirements or Requirements())
            graph = CompressedGraph(graph.uncompressed + done.uncompressed, graph.layers + done.layers)
            model = target
    return model, graph
