"""The form of a model for one runtime: its files, and what they do not say of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

MAX_ARGUMENTS, MAX_DIMENSIONS, MAX_NAME = 64, 16, 300
MAX_SIZE = 2**31
DTYPES = (
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
)


@dataclass(frozen=True)
class Argument:
    """An input or an output of a model."""

    name: str
    dtype: str  # of numpy
    shape: tuple[Optional[int], ...]  # None for a dynamic dimension; the first one is the batch  # noqa: UP045


@dataclass(frozen=True)
class Form:
    """A model in the format of a runtime. It is opened by its first file; others, such as the weights, lie beside."""

    runtime: str
    files: tuple[str, ...]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    batch_size: Optional[int] = None  # the only one that it takes; None for any  # noqa: UP045


def form_from_json(value: object) -> Form:
    """Return the form in JSON that anybody may have written. Raises ValueError."""
    table = _table(value, "a form")
    names, batch_size = table.get("files"), table.get("batch_size")
    if not isinstance(names, (list, tuple)) or not 1 <= len(names) <= 4:
        raise ValueError("a form has one to four files")
    if batch_size is not None and not _is_size(batch_size):
        raise ValueError("the batch_size of a form must be a positive integer or null")
    return Form(
        _text(table.get("runtime")),
        tuple(_text(name) for name in names),
        _arguments(table.get("inputs")),
        _arguments(table.get("outputs")),
        batch_size,
    )


def form_to_json(form: Form) -> dict[str, Any]:
    """Return a form as JSON."""
    return {
        "runtime": form.runtime,
        "files": list(form.files),
        "inputs": [_argument_to_json(argument) for argument in form.inputs],
        "outputs": [_argument_to_json(argument) for argument in form.outputs],
        "batch_size": form.batch_size,
    }


def _argument_to_json(argument: Argument) -> dict[str, Any]:
    return {"name": argument.name, "dtype": argument.dtype, "shape": list(argument.shape)}


def _arguments(value: object) -> tuple[Argument, ...]:
    if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= MAX_ARGUMENTS:
        raise ValueError(f"a form has 1 to {MAX_ARGUMENTS} inputs, and as many outputs")
    return tuple(_argument(_table(each, "an input or output of a form")) for each in value)


def _argument(table: Mapping[str, Any]) -> Argument:
    shape = table.get("shape")
    if not isinstance(shape, (list, tuple)) or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"the shape of an input or output has at most {MAX_DIMENSIONS} dimensions")
    if not all(size is None or size == 0 or _is_size(size) for size in shape):
        raise ValueError("a dimension must be an integer or null")
    if table.get("dtype") not in DTYPES:
        raise ValueError(f"the dtype of an input or output must be one of {', '.join(DTYPES)}")
    return Argument(_text(table.get("name")), table["dtype"], tuple(shape))


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < MAX_SIZE


def _text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
        raise ValueError("a name in a form must be a short text")
    return value


def _table(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a JSON object")
    return value
