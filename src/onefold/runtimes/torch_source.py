"""The PyTorch network of a model to convert, and its inputs."""

from __future__ import annotations

from typing import Any

from onefold.runtimes.runtime import Source


def torch_module(source: Source, *, single_sample: bool = True) -> Any:
    """Return the network of a model, for one sample or for any number. Raises ModelError."""
    if source.is_onnx:
        from onefold.runtimes.onnx_network import OnnxNetwork  # imports torch

        return OnnxNetwork.read(source.model, single_sample=single_sample)
    import torch

    return torch.export.load(str(source.model)).module()


def single_sample_inputs(source: Source) -> tuple[Any, ...]:
    """Return one sample of each input as a tensor."""
    import torch

    return tuple(torch.from_numpy(array[:1].copy()) for array in source.samples)
