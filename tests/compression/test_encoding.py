"""Packing ONNX files is lossless."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from onefold.compression.encoding import ENCODINGS, MAGIC, pack, unpack
from onefold.compression.magnitude_pruning import PruningMasks
from onefold.serving.export import export
from onefold.vocabulary.errors import ModelError


def model_of(*arrays: np.ndarray) -> bytes:
    weights = [numpy_helper.from_array(array, f"weight{index}") for index, array in enumerate(arrays)]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])], weights)  # fmt: skip
    return helper.make_model(graph).SerializeToString(deterministic=True)


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    zeros=st.floats(0, 1),
    kind=st.sampled_from(["float32", "int8", "uint8", "int64", "float16"]),
    seed=st.integers(0, 99),
)
def test_any_weights_are_restored_bit_by_bit(
    encoding: str, shape: list[int], zeros: float, kind: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    array = (rng.normal(size=shape) * 50).astype(kind)
    array[rng.random(shape) < zeros] = 0
    special = np.array([0.0, -0.0, np.nan, np.inf] * 20, dtype="float32")  # signed zero and NaN payloads must survive
    model = model_of(array, special)
    assert unpack(pack(model, encoding)) == model


def test_a_file_that_protobuf_would_not_restore_is_packed_whole() -> None:
    model = model_of(np.ones(100, "float32")) + b"\xfa\x3f\x01x"  # an unknown field
    assert unpack(pack(model, "deflate")) == model


def test_sparse_weights_are_packed_smaller(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    dense = export(network, [torch.rand(8, 256)], tmp_path / "dense.onnx").read_bytes()
    PruningMasks(network).prune(0.9)
    sparse = export(network, [torch.rand(8, 256)], tmp_path / "sparse.onnx").read_bytes()
    for encoding in ENCODINGS:
        assert len(pack(sparse, encoding)) < 0.25 * len(pack(dense, encoding))
        onnx.checker.check_model(onnx.load_from_string(unpack(pack(sparse, encoding))))


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04zip", b"ONEFOLD1deflate xxxx", b"ONEFOLD1lzma    xxxx"])
def test_other_files_are_rejected(damage: bytes) -> None:
    with pytest.raises(ModelError, match=r"bad magic number|is corrupt"):
        unpack(damage)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_decompression_bomb_is_rejected(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(np.zeros(1_000_000, np.float32))
    packed = pack(model, encoding)
    assert len(packed) < len(model) / 10
    monkeypatch.setattr("onefold.compression.encoding.MAX_BYTES", len(model) // 2)
    with pytest.raises(ModelError, match=r"the packed model is corrupt: .* more than"):
        unpack(packed)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_truncated_file_is_rejected(encoding: str) -> None:
    packed = pack(model_of(np.arange(10_000, dtype=np.float32)), encoding)
    for length in (20, len(packed) // 2, len(packed) - 1):
        with pytest.raises(ModelError, match="the packed model is corrupt"):
            unpack(packed[:length])


def test_negative_sizes_do_not_hide_a_decompression_bomb() -> None:
    sizes = [1 << 45, -(1 << 45)]
    entries = [{"place": 0, "item": 1, "bytes": size, "form": "sparse"} for size in sizes]
    parts = [model_of(np.ones(4, np.float32)), b"", b""]
    header = json.dumps({"weights": entries, "parts": [len(part) for part in parts]}).encode()
    content = struct.pack("<I", len(header)) + header + b"".join(parts)
    with pytest.raises(ModelError, match="a tensor has a negative size"):
        unpack(MAGIC + b"deflate " + zlib.compress(content))
