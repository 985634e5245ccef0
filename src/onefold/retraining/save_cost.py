"""The memory and the disk space that saving a model takes."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from onefold.model_folder import PREVIOUS

REPORT_BYTES = 16_000_000  # modules and text of the report
RUNTIME_BYTES = 30_000_000  # modules of onnxruntime, which checks an ONNX file
CHECK_COPIES = 2.5  # memory of onnxruntime relative to the weights; measured: 2.3
EXPORT_BYTES = 70_000_000  # modules of the exporter and of onnxruntime
# The exporter holds weights, folded weights, the ONNX graph, and its serialized form at the same time: 3.0 to 3.9 times
# the weights were measured.
EXPORT_COPIES = 4.2


def save_bytes(network: nn.Module, *, is_served: bool, is_exchanged: bool = False) -> int:
    """Return the predicted bytes of memory that saving a network adds.

    Args:
        network: The network.
        is_served: Whether it has an ONNX file.
        is_exchanged: Whether the weights in that file are exchanged, instead of exporting the network again.
    """
    largest = max((tensor.nbytes for tensor in (*network.parameters(), *network.buffers())), default=0)
    if is_exchanged:
        return REPORT_BYTES + RUNTIME_BYTES + round(CHECK_COPIES * weight_bytes(network))
    if is_served:
        return REPORT_BYTES + EXPORT_BYTES + round(EXPORT_COPIES * weight_bytes(network))
    return REPORT_BYTES + largest


def weight_bytes(network: nn.Module) -> int:
    """Return the bytes of all weights and buffers."""
    return sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))


def written_bytes(network: nn.Module, folder: Path | None) -> int:
    """Return the bytes that saving a network writes onto the disk: a copy of its folder, if any, and new files."""
    entries = [] if folder is None else [entry for entry in folder.iterdir() if entry.name != PREVIOUS]
    files = [file for entry in entries for file in (entry.rglob("*") if entry.is_dir() else [entry])]
    copied = sum(file.stat().st_size for file in files if file.is_file())
    exported = sum(file.stat().st_size for file in entries if file.suffix == ".onnx")
    return copied + exported + weight_bytes(network)
