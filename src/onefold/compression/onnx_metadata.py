"""Strip names and documentation from ONNX files.

In a small quantized network, the names of values take as many bytes as the weights.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from onefold.serving.onnx_provenance import strip_provenance

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def strip_metadata(model: Path) -> None:
    """Shorten the names of all values but inputs and outputs, and drop documentation and metadata, in place.

    A model with control flow (Loop, If, Scan) keeps its names, since its subgraphs refer to outer ones.
    """
    import onnx

    content = onnx.load(str(model))
    graph = content.graph
    strip_provenance(content)
    if any(_has_subgraph(node) for node in graph.node):
        model.write_bytes(content.SerializeToString(deterministic=True))
        return
    reserved = {value.name for value in (*graph.input, *graph.output)} | {""}
    short_names = (name for name in map(_short_name, count()) if name not in reserved)
    names: dict[str, str] = {name: name for name in reserved}
    for weight in graph.initializer:
        weight.name = names.setdefault(weight.name, next(short_names))
    for node in graph.node:
        for values in (node.input, node.output):
            for index, name in enumerate(values):
                if name not in names:
                    names[name] = next(short_names)
                values[index] = names[name]
        node.ClearField("name")
    del graph.value_info[:]
    model.write_bytes(content.SerializeToString(deterministic=True))


def _has_subgraph(node: Any) -> bool:
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def _short_name(number: int) -> str:
    """Return a, b, …, Z, aa, ab, …"""
    name = LETTERS[number % len(LETTERS)]
    while number >= len(LETTERS):
        number = number // len(LETTERS) - 1
        name = LETTERS[number % len(LETTERS)] + name
    return name
