"""Where an ONNX file came from: exporters write stack traces and local paths of the user's sources into it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def strip_provenance(content: Any) -> bool:
    """Drop documentation and metadata of a model and all of its graphs, in place; return whether there was any."""
    found = False
    for part in (content, *_parts(content)):
        for field in ("doc_string", "metadata_props"):
            if any(descriptor.name == field for descriptor, _ in part.ListFields()):
                part.ClearField(field)
                found = True
    return found


def without_provenance(model: Path) -> None:
    """Drop documentation and metadata from an ONNX file, in place."""
    import onnx

    content = onnx.load(str(model), load_external_data=False)
    if strip_provenance(content):
        model.write_bytes(content.SerializeToString())


def _parts(content: Any) -> Iterator[Any]:
    """Yield the graphs, functions, nodes, values and tensors of a model."""
    yield from _parts_of_graph(content.graph)
    for function in content.functions:
        yield function
        yield from function.value_info
        yield from _parts_of_nodes(function.node)


def _parts_of_graph(graph: Any) -> Iterator[Any]:
    yield graph
    yield from (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    yield from _parts_of_nodes(graph.node)


def _parts_of_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield attribute
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _parts_of_graph(graph)
