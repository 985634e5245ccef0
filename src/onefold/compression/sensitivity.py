"""How much each layer minds being pruned: one at a time, without training afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch

from onefold.compression.magnitude_pruning import PruningMasks, prunable


def sensitivity(
    network: torch.nn.Module, sparsity: float, score: Callable[[torch.nn.Module], float]
) -> Mapping[str, float]:
    """By layer: the score of the network when that layer alone is pruned to the given sparsity."""
    found = {}
    for name in prunable(network):
        trial = copy.deepcopy(network)
        PruningMasks(trial).prune(sparsity, only=name)
        found[name] = score(trial)
    return found
