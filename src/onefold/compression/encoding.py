"""A model's file packed, and unpacked bit by bit as it was.

packed = pack(Path("model.onnx").read_bytes(), "deflate")
unpack(packed)                                              # the same bytes

Weights are taken out of the file. Those that are mostly zero are stored as a map of where they are not, and the others'
bytes; bytes of equal meaning (all signs and exponents, say) are put side by side. Then everything is encoded: `deflate`
is LZ77 with Huffman's codes, `zstd` is Zstandard.
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

MAGIC = b"ONEFOLD1"
SMALL = 64  # bytes; smaller weights stay in the file
SPARSE = 0.25  # the share of zeros from which a map of them pays
LEVELS = {"deflate": 9, "zstd": 19}

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

    return zstandard.ZstdDecompressor().decompress(content)


ENCODINGS = {
    "deflate": _Encoding(lambda content: zlib.compress(content, LEVELS["deflate"]), zlib.decompress),
    "zstd": _Encoding(_zstd_encode, _zstd_decode),
}


def pack(model: bytes, encoding: str = "zstd") -> bytes:
    """The model's file, packed."""
    parted = _parted(model)
    content = parted if parted is not None and _joined(parted) == model else _framed({"whole": True}, [model])
    return MAGIC + encoding.encode().ljust(8) + ENCODINGS[encoding].encode(content)


def unpack(packed: bytes) -> bytes:
    """The model's file, bit by bit as it was; raises ModelError for what `pack` did not write."""
    name = packed[len(MAGIC) : len(MAGIC) + 8].decode("ascii", "replace").strip()
    if packed[: len(MAGIC)] != MAGIC or name not in ENCODINGS:
        raise ModelError("this is no model that Onefold packed")
    try:
        return _joined(ENCODINGS[name].decode(packed[len(MAGIC) + 8 :]))
    except Exception as error:  # each library has its own
        raise ModelError(f"the packed model is damaged: {error}") from error


def _parted(model: bytes) -> bytes | None:
    """The file without its weights, and each of them in the form that packs best."""
    import onnx

    graph = onnx.load_from_string(model)
    forms, parts = [], []
    for place, weight in enumerate(graph.graph.initializer):
        raw = weight.raw_data
        if len(raw) < SMALL:
            continue
        item = len(raw) // max(1, int(np.prod(weight.dims)))
        weight.ClearField("raw_data")
        form, content = _packed(np.frombuffer(raw, np.uint8), max(1, item))
        forms.append({"place": place, "item": item, "bytes": len(raw), **form})
        parts += content
    return _framed({"weights": forms}, [graph.SerializeToString(deterministic=True), *parts])


def _packed(raw: Bytes, item: int) -> tuple[dict[str, Any], list[bytes]]:
    if item < 1 or len(raw) % item:
        return {"form": "dense", "item": 1}, [raw.tobytes()]
    values = raw.reshape(-1, item)
    there = values.any(axis=1)
    if 1 - there.mean() >= SPARSE:
        return {"form": "sparse"}, [np.packbits(there).tobytes(), _side_by_side(values[there])]
    return {"form": "dense"}, [_side_by_side(values)]


def side_by_side_or_sparse(weights: NDArray[Any]) -> bytes:
    """Weights in the form that packs best, before they are encoded."""
    raw = np.frombuffer(np.ascontiguousarray(weights).tobytes(), np.uint8)
    return b"".join(_packed(raw, weights.itemsize)[1])


def _side_by_side(values: Bytes) -> bytes:
    """The first bytes of all values, then all second ones."""
    return np.ascontiguousarray(values.T).tobytes()


def _joined(content: bytes) -> bytes:
    import onnx

    header, parts = _unframed(content)
    if header.get("whole"):
        return next(parts)
    graph = onnx.load_from_string(next(parts))
    for form in header["weights"]:
        count = form["bytes"] // form["item"]
        if form["form"] == "sparse":
            there = np.unpackbits(np.frombuffer(next(parts), np.uint8), count=count).astype(bool)
            values = np.zeros((count, form["item"]), np.uint8)
            values[there] = _apart(next(parts), form["item"])
        else:
            values = _apart(next(parts), form["item"])
        graph.graph.initializer[form["place"]].raw_data = values.tobytes()
    written: bytes = graph.SerializeToString(deterministic=True)
    return written


def _apart(content: bytes, item: int) -> Bytes:
    return np.ascontiguousarray(np.frombuffer(content, np.uint8).reshape(item, -1).T)


def _framed(header: dict[str, Any], parts: list[bytes]) -> bytes:
    told = json.dumps({**header, "parts": [len(part) for part in parts]}).encode()
    return struct.pack("<I", len(told)) + told + b"".join(parts)


def _unframed(content: bytes) -> tuple[dict[str, Any], Iterator[bytes]]:
    (length,) = struct.unpack_from("<I", content)
    header = json.loads(content[4 : 4 + length])

    def parts() -> Iterator[bytes]:
        at = 4 + length
        for size in header["parts"]:
            yield content[at : at + size]
            at += size

    return header, parts()
