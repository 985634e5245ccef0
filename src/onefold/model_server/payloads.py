"""The bodies of requests and replies: JSON, and the .npy format without pickled objects."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
JSON_TYPE, NPY_TYPE = "application/json", "application/x-npy"


class BadPayload(Exception):
    """A body that is not what it should be; the message is for the client."""


def arrays_of_json(body: bytes, names: Sequence[str], dtypes: Sequence[Any]) -> list[Array]:
    """Return the arrays of `{"inputs": [[…], …]}` or, by name, `{"inputs": {"x": [[…], …]}}`. Raises BadPayload."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise BadPayload("the body is not JSON") from None
    given = content.get("inputs") if isinstance(content, Mapping) else None
    if given is None:
        raise BadPayload('the body must be an object with "inputs"')
    if not isinstance(given, Mapping):
        if len(names) != 1:
            raise BadPayload(f'the model has {len(names)} inputs; give "inputs" by name: {", ".join(names)}')
        given = {names[0]: given}
    if set(given) != set(names):
        raise BadPayload(f"the model takes the inputs {', '.join(names)}; got {', '.join(map(str, given)) or 'none'}")
    return [_array(name, given[name], dtype) for name, dtype in zip(names, dtypes)]


def _array(name: str, values: Any, dtype: Any) -> Array:
    try:
        array = np.asarray(values)
        if array.dtype == object or (np.dtype(dtype).kind in "fiub" and array.dtype.kind not in "fiub"):
            raise ValueError("numbers are needed, in lists of equal length")
        converted = array.astype(dtype)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadPayload(f"the input {name} is no array of {np.dtype(dtype)}: {error}") from None
    if np.dtype(dtype).kind in "iu" and not np.array_equal(converted, array):
        raise BadPayload(f"the input {name} must be integers within {np.dtype(dtype)}")
    return converted


def array_of_npy(body: bytes) -> Array:
    """Return the array of an .npy file, without unpickling and in no more memory than the body. Raises BadPayload."""
    stream = io.BytesIO(body)
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, is_fortran, dtype = read(stream)
        if dtype.hasobject:
            raise BadPayload("arrays of objects are not accepted")
        count = math.prod(shape)
        if min(shape, default=1) < 0 or count * dtype.itemsize != len(body) - stream.tell():
            raise BadPayload("the body is shorter or longer than its header says")
        array = np.frombuffer(body, dtype, count, stream.tell())
        return array.reshape(shape, order="F" if is_fortran else "C")
    except BadPayload:
        raise
    except Exception:  # noqa: BLE001 - numpy parses headers as Python, and raises what its parsers raise
        raise BadPayload("the body is not an .npy file") from None


def npy_of(array: Array) -> bytes:
    """Return an array as an .npy file."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()


def json_of(outputs: Sequence[Array], names: Sequence[str]) -> bytes:
    """Return outputs as `{"outputs": […]}`, several by name; what is not finite is null, which JSON has for it."""
    lists = [_finite(array.tolist()) for array in outputs]
    content = lists[0] if len(lists) == 1 else dict(zip(names, lists))
    return json.dumps({"outputs": content}, allow_nan=False).encode()


def _finite(values: Any) -> Any:
    if isinstance(values, list):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values
