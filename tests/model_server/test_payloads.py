"""Bodies from strangers: JSON and .npy."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from onefold.model_server.payloads import BadPayload, array_of_npy, arrays_of_json, json_of, npy_of

NAMES, DTYPES = ("x", "length"), ("float32", "int64")


def body(**inputs: object) -> bytes:
    return json.dumps({"inputs": inputs}).encode()


def test_inputs_by_name_and_of_a_single_one() -> None:
    x, length = arrays_of_json(body(length=[2], x=[[1, 2.5]]), NAMES, DTYPES)
    assert (x.dtype, x.tolist()) == (np.float32, [[1, 2.5]])
    assert (length.dtype, length.tolist()) == (np.int64, [2])
    (only,) = arrays_of_json(b'{"inputs": [[1], [2]]}', ("x",), ("float32",))
    assert only.shape == (2, 1)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", 'an object with "inputs"'),
        (b'{"inputs": [1]}', 'give "inputs" by name: x, length'),
        (body(x=[1]), "the model takes the inputs x, length; got x"),
        (body(x=[[1], [1, 2]], length=[1]), "no array of float32"),
        (body(x=["a"], length=[1]), "numbers are needed"),
        (body(x=[1], length=[1.5]), "must be integers"),
        (body(x=[1], length=[10**30]), "no array of int64"),
    ],
)
def test_bad_json_is_refused(content: bytes, complaint: str) -> None:
    with pytest.raises(BadPayload, match=complaint):
        arrays_of_json(content, NAMES, DTYPES)


@given(arrays.arrays(st.sampled_from(("float32", "int64", "uint8")), arrays.array_shapes(min_dims=1, max_side=5)))
def test_npy_round_trips(array: Any) -> None:
    for order in ("C", "F"):
        read = array_of_npy(npy_of(np.asarray(array, order=order)))  # type: ignore[call-overload]
        np.testing.assert_array_equal(read, array)


@given(st.binary(max_size=200), st.integers(0, 100))
def test_damaged_npy_is_refused_or_read(noise: bytes, at: int) -> None:
    content = npy_of(np.arange(4.0))
    damaged_header = b"\x93NUMPY\x01\x00" + len(noise).to_bytes(2, "little") + noise
    for damaged in (damaged_header, noise, content[:at] + noise + content[at + len(noise) :], content[:-1]):
        try:
            array_of_npy(damaged)
        except BadPayload:
            continue


def test_npy_may_neither_unpickle_nor_claim_more_than_it_has() -> None:
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(BadPayload, match="arrays of objects"):
        array_of_npy(stream.getvalue())
    content = npy_of(np.zeros(4))
    assert b"(4,), }          " in content
    with pytest.raises(BadPayload, match="shorter or longer"):
        array_of_npy(content.replace(b"(4,), }          ", b"(4000000000,), } "))


def test_outputs_that_are_not_finite_are_null() -> None:
    assert json.loads(json_of([np.array([[1.0, np.nan, np.inf]])], ["y"])) == {"outputs": [[1.0, None, None]]}
    assert json.loads(json_of([np.zeros(1), np.ones(1)], ["a", "b"])) == {"outputs": {"a": [0.0], "b": [1.0]}}
