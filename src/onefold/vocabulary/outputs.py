"""The outputs of a network: a tensor, or a mapping, tuple, list or dataclass of such."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

LOGITS = "logits"  # the name of the predictions, as libraries of transformers have it
Parts = list[tuple[Any, Any]]  # a key, field or index, and what is there


def parts(outputs: Any) -> Parts | None:
    """Return what a mapping, tuple, list or dataclass holds; None for anything else."""
    if isinstance(outputs, Mapping):
        return [*outputs.items()]
    if is_dataclass(outputs) and not isinstance(outputs, type):
        return [(field.name, getattr(outputs, field.name)) for field in fields(outputs)]
    if isinstance(outputs, (tuple, list)):
        names = getattr(outputs, "_fields", range(len(outputs)))
        return [*zip(names, outputs)]
    return None


def predictions_in(outputs: Any) -> Any:
    """Return the tensor of predictions: the outputs themselves, what is called "logits", or else the first tensor.

    Nested structures are searched in their order. Outputs without a tensor are returned as they are.
    """
    inside = parts(outputs)
    if inside is None:
        return outputs
    named = [part for key, part in inside if key == LOGITS and part is not None]
    return next(
        (found for found in map(_first_tensor, [*named, *(part for _, part in inside)]) if found is not None), outputs
    )


def _first_tensor(outputs: Any) -> Any:
    inside = parts(outputs)
    if inside is None:
        return outputs if hasattr(outputs, "shape") else None
    found = predictions_in(outputs)
    return found if hasattr(found, "shape") else None


def joined(batches: Sequence[Any], join: Callable[[list[Any]], Any]) -> Any:
    """Return the outputs of several batches as one, with tensors joined by `join` and other values of the first."""
    first = batches[0]
    inside = parts(first)
    if inside is None:
        return join([*batches]) if hasattr(first, "shape") else first
    others = [parts(batch) or [] for batch in batches]
    found = {key: joined([other[index][1] for other in others], join) for index, (key, _) in enumerate(inside)}
    if isinstance(first, Mapping):
        kind: Any = type(first)
        return found if kind is dict else kind(**found) if is_dataclass(first) else kind(found)
    if is_dataclass(first) and not isinstance(first, type):
        return replace(first, **found)
    values = [*found.values()]
    return type(first)(*values) if hasattr(first, "_fields") else type(first)(values)
