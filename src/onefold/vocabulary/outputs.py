"""The outputs of a network: a tensor, or a mapping, tuple, list or dataclass of such."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

LOGITS = "logits"  # the name of the predictions, as libraries of transformers have it


def parts(outputs: Any) -> list[tuple[Any, Any]] | None:
    """Return the entries of a mapping, tuple, list or dataclass with their keys; None for anything else."""
    if isinstance(outputs, Mapping):
        return [*outputs.items()]
    if is_dataclass(outputs) and not isinstance(outputs, type):
        return [(field.name, getattr(outputs, field.name)) for field in fields(outputs)]
    if isinstance(outputs, (tuple, list)):
        return [*zip(getattr(outputs, "_fields", range(len(outputs))), outputs)]
    return None


def predictions_in(outputs: Any) -> Any:
    """Return the tensor of predictions: what is called "logits", or else the first tensor of samples.

    Entries are searched in their order, nested ones too. A tensor, and outputs without one, are returned as they are.
    """
    inside = parts(outputs)
    if inside is None:
        return outputs
    entries = [entry for _, entry in sorted(inside, key=lambda part: part[0] != LOGITS)]
    nested = map(predictions_in, entries)
    return next((entry for entry in nested if _is_tensor(entry) and entry.shape), outputs)


def tensors_in(outputs: Any) -> list[Any]:
    """Return all tensors of samples in their order, nested ones too; single numbers, such as a loss, are left out."""
    return [tensor for _, tensor in _named(outputs, ())]


def names_in(outputs: Any) -> list[str]:
    """Return the names of `tensors_in`: their keys, or `output` and their number; of nested ones, joined by dots."""
    return [".".join(path) or "output" for path, _ in _named(outputs, ())]


def with_tensors(outputs: Any, tensors: Sequence[Any]) -> Any:
    """Return outputs with other values for `tensors_in`; as they are if there are more or fewer.

    A single tensor is returned for a list of one, and a tuple for several.
    """
    if len(tensors) != len(tensors_in(outputs)):
        return tensors[0] if len(tensors) == 1 else tuple(tensors)
    remaining = iter(tensors)
    return joined([outputs], lambda given: next(remaining) if given[0].shape else given[0])


def _named(outputs: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inside = parts(outputs)
    if inside is None:
        if _is_tensor(outputs) and outputs.shape:
            yield path, outputs
        return
    for key, part in inside:
        name = key if isinstance(key, str) else str(key) if path else f"output{key}"
        yield from _named(part, (*path, name))


def joined(batches: Sequence[Any], join: Callable[[list[Any]], Any]) -> Any:
    """Return the outputs of several batches as one: tensors joined by `join`, other values as in the first batch."""
    first = batches[0]
    inside = parts(first)
    if inside is None:
        return join([*batches]) if _is_tensor(first) else first
    others = [parts(batch) or [] for batch in batches]
    values = {key: joined([other[index][1] for other in others], join) for index, (key, _) in enumerate(inside)}
    kind: Any = type(first)
    if isinstance(first, Mapping):
        return values if kind is dict else kind(**values) if is_dataclass(first) else kind(values)
    if is_dataclass(first):
        return replace(first, **values)  # type: ignore[type-var]
    return kind(*values.values()) if hasattr(first, "_fields") else kind(values.values())


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape")
