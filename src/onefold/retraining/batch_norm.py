"""What batch norms know of the data, measured on the new data.

A batch norm scales by the mean and the variance of its inputs. On data from elsewhere those are wrong, and small
batches tell them badly. Passing some of the new data forward, which keeps nothing and so needs little memory, tells
them well.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from onefold.retraining.training_step import Norm


def batch_norms(network: nn.Module) -> list[nn.Module]:
    """The batch norms that keep statistics."""
    return [one for one in network.modules() if isinstance(one, Norm) and one.track_running_stats]


@torch.no_grad()
def reestimate_statistics(network: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> int:
    """Replaces the statistics of all batch norms by those of these batches, the targets last; counts the samples."""
    norms = batch_norms(network)
    modes = [(module, module.training) for module in network.modules()]
    before = [norm.momentum for norm in norms]
    network.eval()
    for norm in norms:
        norm.reset_running_stats()  # type: ignore[operator]
        norm.train()
    seen = 0
    try:
        for *inputs, targets in batches:
            if len(targets) == 1 and seen:
                continue  # a variance of one is none
            seen += len(targets)
            for norm in norms:
                norm.momentum = len(targets) / seen  # type: ignore[assignment] # every sample counts the same
            network(*inputs)
    finally:
        for norm, momentum in zip(norms, before):
            norm.momentum = momentum
        for module, training in modes:
            module.training = training
    return seen
