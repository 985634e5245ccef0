"""The memory that saving a model takes, on top of the process with the network and no training state."""

from __future__ import annotations

from torch import nn

REPORT_BYTES = 16_000_000  # modules and text of the report
EXPORT_BYTES = 70_000_000  # modules of the exporter and of onnxruntime
# The exporter holds weights, folded weights, the ONNX graph, and its serialized form at the same time: 3.0 to 3.9 times
# the weights were measured. onnxruntime, which checks the result afterwards, takes 2.3 times.
EXPORT_COPIES = 4.2


def save_bytes(network: nn.Module, *, is_served: bool) -> int:
    """Return the predicted bytes that saving a network adds; `is_served` if it is exported to ONNX again."""
    sizes = [tensor.nbytes for tensor in (*network.parameters(), *network.buffers())]
    if is_served:
        return REPORT_BYTES + EXPORT_BYTES + round(EXPORT_COPIES * sum(sizes))
    return REPORT_BYTES + max(sizes, default=0)
