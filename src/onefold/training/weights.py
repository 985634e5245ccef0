"""The weights in the folder of a trained model, as safetensors.

Weights are written and loaded piece by piece: a device that can barely hold a network cannot hold it twice.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from onefold.model_folder import LEGACY_WEIGHTS, WEIGHTS, find_weights

CHUNK_BYTES = 2**23  # of weights that are read at once
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


def write_weights(folder: Path, state: Mapping[str, Any]) -> None:
    """Write a state dict into a folder, one tensor at a time.

    What safetensors cannot store (extra state that is not a tensor, quantized tensors) goes into a file of torch, which
    is read without unpickling code.
    """
    for stale in (WEIGHTS, LEGACY_WEIGHTS):
        (folder / stale).unlink(missing_ok=True)
    if all(_is_storable(value) for value in state.values()):
        with (folder / WEIGHTS).open("wb") as file:
            _write_safetensors(file, state)
    else:
        buffer = io.BytesIO()  # torch.save to a file hides a full disk behind a RuntimeError
        torch.save(dict(state), buffer)
        (folder / LEGACY_WEIGHTS).write_bytes(buffer.getbuffer())


def read_weights(folder: Path) -> dict[str, Any]:
    """Return the state dict in a folder, on the CPU. Raises what torch or safetensors raise for a damaged file."""
    path = find_weights(folder)
    if path.name == WEIGHTS:
        return dict(load_file(path))
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    is_plain = all(member.compress_type == zipfile.ZIP_STORED for member in members)  # as torch.save writes them
    if not is_plain or sum(member.file_size for member in members) > path.stat().st_size:
        raise ValueError(f"{path.name} claims more than it has")
    return torch.load(path, map_location="cpu", weights_only=True)  # type: ignore[no-any-return]


def load_weights_into(network: nn.Module, folder: Path) -> None:
    """Load the weights in a folder into a network, piece by piece.

    Raises RuntimeError if they are those of another network, and what torch or safetensors raise for a damaged file.
    """
    path = find_weights(folder)
    if path.name != WEIGHTS:
        network.load_state_dict(read_weights(folder))
        return
    missing = set(network.state_dict())
    unexpected: list[str] = []
    for chunk in _chunks(path):
        result = network.load_state_dict(chunk, strict=False)
        missing &= set(result.missing_keys)
        unexpected += result.unexpected_keys
    if missing or unexpected:
        raise RuntimeError(
            f"the weights are those of another network: without {sorted(missing)[:3]}, with {unexpected[:3]}"
        )


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the content of a tensor in row-major order; without a copy if it is on the CPU and contiguous."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    content: memoryview = flat.view(torch.uint8).numpy().data
    return content


def _is_storable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and value.dtype in DTYPES


def _write_safetensors(file: BinaryIO, state: Mapping[str, Tensor]) -> None:
    ordered = sorted(state.items(), key=lambda entry: (-entry[1].element_size(), entry[0]))  # keeps all aligned
    entries, offset = {}, 0
    for name, tensor in ordered:
        size = tensor.nelement() * tensor.element_size()
        entries[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    file.write(len(header).to_bytes(8, "little") + header)
    for _, tensor in ordered:
        file.write(tensor_bytes(tensor))


def _chunks(path: Path) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of a file in parts. They are read, not mapped: each mapped page would cost a page fault."""
    with safe_open(path, framework="pt"):  # checks the header
        pass
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(header_bytes))
        entries.pop("__metadata__", None)
        chunk: dict[str, Tensor] = {}
        size = 0
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"][0]):
            if size >= CHUNK_BYTES:
                yield chunk
                chunk, size = {}, 0
            tensor = torch.empty(entry["shape"], dtype=_TORCH_DTYPES[entry["dtype"]])
            file.seek(8 + header_bytes + entry["data_offsets"][0])
            if file.readinto(tensor_bytes(tensor)) != tensor.nbytes:
                raise SafetensorError(f"{path} ends within the tensor {name}")
            chunk[name], size = tensor, size + tensor.nbytes
        yield chunk
