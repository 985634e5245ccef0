"""Traced programs of PyTorch: what a network is saved as that cannot be exported to ONNX."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onefold.vocabulary.attention import without_fused_attention
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.outputs import tensors_in

_DEBUG = ".debug_pkl"  # lines and local paths of the user's sources


def save_program(network: Any, samples: Sequence[Any], file: Path, *, batch_size: int | None = None) -> None:
    """Write a network as a TorchScript program, traced with the samples or with so many of them.

    It returns all tensors of the network's outputs as a tuple. Raises ModelError with the reason if the network cannot
    be traced; whether the program answers like the network for other samples is for the caller to check.
    """
    import torch

    jit: Any = torch.jit  # untyped
    inputs = tuple(torch.as_tensor(array)[: batch_size or len(array)].cpu() for array in samples)

    class Program(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network.eval()

        def forward(self, *inputs: Any) -> Any:
            return tuple(tensors_in(self.network(*inputs)))

    buffer = io.BytesIO()
    try:
        with torch.no_grad(), warnings.catch_warnings(), without_fused_attention():
            warnings.simplefilter("ignore")  # what is constant in the trace
            jit.save(jit.trace(Program().eval(), inputs, check_trace=False), buffer)
    except Exception as error:  # networks fail in many ways
        raise ModelError(f"PyTorch cannot trace the network: {headline(error)}") from error
    buffer.seek(0)
    _write_without_sources(buffer, file)


def load_program(file: Path) -> Any:
    """Return the function of a program."""
    import torch

    jit: Any = torch.jit  # untyped
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return jit.load(str(file), map_location="cpu")


def _write_without_sources(buffer: io.BytesIO, file: Path) -> None:
    """Write a program without the records that say where its lines come from."""
    import torch

    reader = torch._C.PyTorchFileReader(buffer)
    writer = torch._C.PyTorchFileWriter(str(file))
    for name in reader.get_all_records():
        if not name.endswith(_DEBUG) and name not in (".data/serialization_id", "version", "byteorder"):
            content = reader.get_record(name)
            writer.write_record(name, content, len(content))
    writer.write_end_of_file()
