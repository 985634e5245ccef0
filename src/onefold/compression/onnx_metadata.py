"""A model's file without what only people read: long names, and notes of whoever exported it.

In a small network quantised layer by layer, names take as much room as weights.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any


def strip_metadata(model: Path) -> None:
    """Gives every value of a model's file a short name, in place; those of inputs and outputs stay."""
    import onnx

    found = onnx.load(str(model))
    graph = found.graph
    if any(_graphs(node) for node in graph.node):
        return  # what a loop reads from outside is named inside too
    outside = {each.name for each in (*graph.input, *graph.output)} | {""}
    fresh = (short for short in map(_short, count()) if short not in outside)
    names: dict[str, str] = {name: name for name in outside}
    for weight in graph.initializer:
        weight.name = names.setdefault(weight.name, next(fresh))
        weight.ClearField("doc_string")
    for node in graph.node:
        for values in (node.input, node.output):
            for place, name in enumerate(values):
                if name not in names:
                    names[name] = next(fresh)
                values[place] = names[name]
        node.ClearField("name")
        node.ClearField("doc_string")
    del graph.value_info[:]
    del found.metadata_props[:]
    found.ClearField("doc_string")
    model.write_bytes(found.SerializeToString(deterministic=True))


def _graphs(node: Any) -> bool:
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def _short(number: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    text = letters[number % len(letters)]
    while number >= len(letters):
        number = number // len(letters) - 1
        text = letters[number % len(letters)] + text
    return text
