"""Export a network for PyTorch itself, where no other runtime can have it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onefold.agent.forms import Argument, Form
from onefold.runtimes.forms import write_forms
from onefold.runtimes.pytorch import PytorchRuntime
from onefold.runtimes.torch_program import load_program, save_program
from onefold.serving.export import SAMPLES, TOLERANCE, exported_outputs, samples_beside, worst_difference
from onefold.vocabulary.attention import without_fused_attention
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint

_VARYING = re.compile(r"#.*|, scope: \S+|___torch_mangle_\d+\.")  # lines of sources, and numbers of classes


def export_program(network: Any, samples: Sequence[Any], path: Path, reason: str) -> Path:
    """Write a network as a program that PyTorch serves, with a few samples and its description beside it.

    Args:
        network: The network.
        samples: One tensor or array per input, the batch first.
        path: The file, with the suffix .pt.
        reason: Why it cannot be exported to ONNX.

    Returns:
        `path`.

    Raises:
        ModelError: The program cannot be traced, or answers otherwise than the network.
    """
    import torch

    arrays = [np.ascontiguousarray(torch.as_tensor(values)[:SAMPLES].cpu().numpy()) for values in samples]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(samples_beside(path), **{f"input{at}": array for at, array in enumerate(arrays)})  # type: ignore[arg-type]
    inputs = tuple(Argument(f"input{at}", each.dtype.name, (None, *each.shape[1:])) for at, each in enumerate(arrays))
    with torch.no_grad(), without_fused_attention():
        network = exported_outputs(network.cpu().eval(), arrays)
        try:
            outputs = network(*(torch.from_numpy(array) for array in arrays))
        except Exception as error:  # networks fail in many ways
            raise ModelError(reason) from error
    tensors = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    made = tuple(
        Argument(f"output{at}", tensor.numpy().dtype.name, (None, *tensor.shape[1:]))
        for at, tensor in enumerate(tensors)
    )
    for batch_size in (None, 1):
        save_program(network, arrays, path, batch_size=batch_size)
        form = Form(PytorchRuntime.name, (path.name,), inputs, made, batch_size)
        loaded = PytorchRuntime().open([path], ServingPoint(runtime=PytorchRuntime.name), form)
        if worst_difference(network, loaded, arrays) <= TOLERANCE:
            parameters = sum(parameter.numel() for parameter in network.parameters())
            about = {"signature": _signature(path), "parameters": parameters, "reason": reason}
            write_forms(path, [form], {"architecture": about})
            return path
    path.unlink()
    raise ModelError(f"{reason}; PyTorch's own trace of it answers otherwise too, so that nothing can serve it")


def _signature(path: Path) -> str:
    """Return a hash of the program without the values of its weights."""
    program = load_program(path)
    shapes = [(name, tuple(value.shape), str(value.dtype)) for name, value in program.state_dict().items()]
    graph = _VARYING.sub("", str(program.inlined_graph))
    return hashlib.sha256(f"{graph}{shapes}".encode()).hexdigest()[:32]
