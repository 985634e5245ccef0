"""Lossless packing of ONNX files by entropy coding: DEFLATE or Zstandard.

packed = pack(Path("model.onnx").read_bytes(), "deflate")
unpack(packed)                                              # the same bytes

Weights are stored apart from the graph. A mostly zero tensor is stored as a bitmap and its nonzero values. The bytes of
multi-byte values are transposed into planes (all exponents together), which entropy coders compress better.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.quantities import size

MAGIC = b"ONEFOLD1"
MIN_TENSOR_BYTES = 64  # smaller tensors stay in the graph
MIN_SPARSITY = 0.25  # from which a bitmap is smaller
LEVELS = {"deflate": 9, "zstd": 19}
MAX_BYTES = 2**31  # the limit of protobuf, and so of an ONNX file

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Encoding:
    encode: Callable[[bytes], bytes]
    decode: Callable[[bytes], bytes]


def _zstd_encode(content: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=LEVELS["zstd"]).compress(content)


def _zstd_decode(content: bytes) -> bytes:
    import zstandard

    with zstandard.ZstdDecompressor().stream_reader(content) as reader:
        return _checked_size(reader.read(MAX_BYTES + 1))


def _deflate_decode(content: bytes) -> bytes:
    decoder = zlib.decompressobj()
    decoded = _checked_size(decoder.decompress(content, MAX_BYTES + 1))
    if not decoder.eof:
        raise ValueError("it ends early")
    return decoded


def _checked_size(content: bytes) -> bytes:
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than the {size(MAX_BYTES)} of an ONNX file")
    return content


ENCODINGS = {
    "deflate": _Encoding(lambda content: zlib.compress(content, LEVELS["deflate"]), _deflate_decode),
    "zstd": _Encoding(_zstd_encode, _zstd_decode),
}


def pack(model: bytes, encoding: str = "zstd") -> bytes:
    """Return the content of an ONNX file, packed. `unpack` restores it bit by bit."""
    split = _split_weights(model)
    content = split if _join_weights(split) == model else _join_parts({"whole": True}, [model])
    return MAGIC + encoding.encode().ljust(8) + ENCODINGS[encoding].encode(content)


def pack_smallest(model: bytes) -> bytes:
    """Return the content of an ONNX file, packed in the encoding that makes it smallest."""
    return min((pack(model, encoding) for encoding in ENCODINGS), key=len)


def unpack(packed: bytes) -> bytes:
    """Return the content of the ONNX file that `pack` was given; raises ModelError for anything else."""
    name = packed[len(MAGIC) : len(MAGIC) + 8].decode("ascii", "replace").strip()
    if packed[: len(MAGIC)] != MAGIC or name not in ENCODINGS:
        raise ModelError("not a file written by onefold compress: bad magic number")
    try:
        return _join_weights(ENCODINGS[name].decode(packed[len(MAGIC) + 8 :]))
    except Exception as error:  # each library raises its own exceptions
        raise ModelError(f"the packed model is corrupt: {error}") from error


def tensor_payload(values: NDArray[Any]) -> bytes:
    """Return a tensor as `pack` stores it, before entropy coding."""
    raw = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
    return b"".join(_tensor_parts(raw, values.itemsize)[1])


def _split_weights(model: bytes) -> bytes:
    """Return the graph without its large tensors, followed by each of them as bitmap and byte planes."""
    import onnx

    graph = onnx.load_from_string(model)
    entries, parts = [], []
    for index, tensor in enumerate(graph.graph.initializer):
        raw = tensor.raw_data
        if len(raw) < MIN_TENSOR_BYTES:
            continue
        item = len(raw) // max(1, int(np.prod(tensor.dims)))
        tensor.ClearField("raw_data")
        entry, content = _tensor_parts(np.frombuffer(raw, np.uint8), max(1, item))
        entries.append({"place": index, "item": item, "bytes": len(raw), **entry})
        parts += content
    return _join_parts({"weights": entries}, [graph.SerializeToString(deterministic=True), *parts])


def _tensor_parts(raw: Bytes, item: int) -> tuple[dict[str, Any], list[bytes]]:
    if item < 1 or len(raw) % item:
        return {"form": "dense", "item": 1}, [raw.tobytes()]
    values = raw.reshape(-1, item)
    nonzero = values.any(axis=1)
    if 1 - nonzero.mean() >= MIN_SPARSITY:
        return {"form": "sparse"}, [np.packbits(nonzero).tobytes(), _to_planes(values[nonzero])]
    return {"form": "dense"}, [_to_planes(values)]


def _to_planes(values: Bytes) -> bytes:
    """Return the first bytes of all values, then all second bytes, and so on."""
    return np.ascontiguousarray(values.T).tobytes()


def _from_planes(content: bytes, item: int) -> Bytes:
    return np.ascontiguousarray(np.frombuffer(content, np.uint8).reshape(item, -1).T)


def _join_weights(content: bytes) -> bytes:
    import onnx

    header, parts = _split_parts(content)
    if header.get("whole"):
        return next(parts)
    graph = onnx.load_from_string(next(parts))
    if any(entry["bytes"] < 0 for entry in header["weights"]):
        raise ValueError("a tensor has a negative size")
    if sum(entry["bytes"] for entry in header["weights"]) > MAX_BYTES:
        raise ValueError(f"its weights have more than the {size(MAX_BYTES)} of an ONNX file")
    for entry in header["weights"]:
        count = entry["bytes"] // entry["item"]
        if entry["form"] == "sparse":
            nonzero = np.unpackbits(np.frombuffer(next(parts), np.uint8), count=count).astype(bool)
            values = np.zeros((count, entry["item"]), np.uint8)
            values[nonzero] = _from_planes(next(parts), entry["item"])
        else:
            values = _from_planes(next(parts), entry["item"])
        graph.graph.initializer[entry["place"]].raw_data = values.tobytes()
    written: bytes = graph.SerializeToString(deterministic=True)
    return written


def _join_parts(header: dict[str, Any], parts: list[bytes]) -> bytes:
    """Return a length-prefixed JSON header with the sizes of the parts, then the parts."""
    text = json.dumps({**header, "parts": [len(part) for part in parts]}).encode()
    return struct.pack("<I", len(text)) + text + b"".join(parts)


def _split_parts(content: bytes) -> tuple[dict[str, Any], Iterator[bytes]]:
    (length,) = struct.unpack_from("<I", content)
    header = json.loads(content[4 : 4 + length])

    def parts() -> Iterator[bytes]:
        start = 4 + length
        for length_bytes in header["parts"]:
            yield content[start : start + length_bytes]
            start += length_bytes

    return header, parts()
