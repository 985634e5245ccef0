"""Programs of torch.export: what a network is saved as that cannot be exported to ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.outputs import tensors_in

# Where a node came from: lines and local paths of the user's sources.
_PROVENANCE = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "torch_fn", "fwd_source_fn_stack")


def save_program(network: Any, samples: Sequence[Any], file: Path, *, batch_size: int | None = None) -> None:
    """Write a network as a program for any batch size, or for a fixed one; it returns all tensors as a tuple.

    Raises ModelError with the reason if the network cannot be traced.
    """
    import torch

    inputs = tuple(torch.as_tensor(array)[: batch_size or len(array)].cpu() for array in samples)
    dynamic = None if batch_size else (tuple({0: torch.export.Dim("batch", min=1)} for _ in inputs),)

    class Program(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network.eval()

        def forward(self, *inputs: Any) -> Any:
            return tuple(tensors_in(self.network(*inputs)))

    try:
        with torch.no_grad():
            program = torch.export.export(Program().eval(), inputs, dynamic_shapes=dynamic)
    except Exception as error:  # networks fail in many ways
        raise ModelError(f"PyTorch cannot trace the network: {headline(error)}") from error
    for node in program.graph.nodes:
        for name in _PROVENANCE:
            node.meta.pop(name, None)
    program._example_inputs = None  # the samples are saved beside it
    torch.export.save(program, str(file))
