"""The weights in the folder of a trained model, as safetensors."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from onefold.model_folder import LEGACY_WEIGHTS, WEIGHTS, find_weights


def write_weights(folder: Path, state: Mapping[str, Any]) -> None:
    """Write a state dict into a folder.

    What safetensors cannot store (extra state that is not a tensor, quantized tensors) goes into a file of torch, which
    is read without unpickling code.
    """
    try:
        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}  # no shared memory
        name, content = WEIGHTS, save(tensors)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError):
        buffer = io.BytesIO()  # torch.save to a file hides a full disk behind a RuntimeError
        torch.save(dict(state), buffer)
        name, content = LEGACY_WEIGHTS, buffer.getvalue()
    for stale in (WEIGHTS, LEGACY_WEIGHTS):
        (folder / stale).unlink(missing_ok=True)
    (folder / name).write_bytes(content)


def read_weights(folder: Path) -> dict[str, Any]:
    """Return the state dict in a folder, on the CPU. Raises what torch or safetensors raise for a damaged file."""
    path = find_weights(folder)
    if path.name == WEIGHTS:
        return dict(load_file(path))
    return torch.load(path, map_location="cpu", weights_only=True)  # type: ignore[no-any-return]
