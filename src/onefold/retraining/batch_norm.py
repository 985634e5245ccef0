"""Re-estimation of BatchNorm statistics on new data.

After a distribution shift the running mean and variance are wrong, and small training batches estimate them poorly.
A forward pass over some of the new data, which keeps no activations, estimates them well.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

BatchNorm = nn.modules.batchnorm._BatchNorm


def batch_norms(network: nn.Module) -> list[nn.Module]:
    """Return the BatchNorm modules that track running statistics."""
    return [module for module in network.modules() if isinstance(module, BatchNorm) and module.track_running_stats]


def running_statistics(network: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Return the buffers of all BatchNorms, each with a copy of its values."""
    return [(buffer, buffer.clone()) for norm in batch_norms(network) for buffer in norm.buffers()]


@torch.no_grad()
def reestimate_statistics(network: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> int:
    """Replace the running statistics of all BatchNorms by those of these batches, targets last.

    Returns the number of samples used.
    """
    norms = batch_norms(network)
    modes = [(module, module.training) for module in network.modules()]
    momenta = [norm.momentum for norm in norms]
    network.eval()
    for norm in norms:
        norm.reset_running_stats()  # type: ignore[operator]
        norm.train()
    seen = 0
    try:
        for *inputs, targets in batches:
            if len(targets) == 1 and seen:
                continue  # a single sample has no variance
            seen += len(targets)
            for norm in norms:
                norm.momentum = len(targets) / seen  # type: ignore[assignment] # weights every sample equally
            network(*inputs)
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        for module, training in modes:
            module.training = training
    return seen
