"""The PyTorch network of a model to convert, and its inputs."""

from __future__ import annotations

from typing import Any

from onefold.runtimes.runtime import Source
from onefold.vocabulary.errors import ModelError


def torch_module(source: Source) -> Any:
    """Return the network of a model for one sample. Raises ModelError if there is no equivalent."""
    if not source.is_onnx:
        raise ModelError("only models that can be exported to ONNX can be converted")
    from onefold.runtimes.onnx_network import OnnxNetwork  # imports torch

    return OnnxNetwork.read(source.model)


def single_sample_inputs(source: Source) -> tuple[Any, ...]:
    """Return one sample of each input as a tensor."""
    import torch

    return tuple(torch.from_numpy(array[:1].copy()) for array in source.samples)
