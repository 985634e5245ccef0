"""Unstructured magnitude pruning over the whole network, ranked by LAMP scores.

masks = PruningMasks(network)
for epoch in range(epochs):
    masks.prune(sparsity_schedule(0.8, epoch + 1, ramp))
    ...                                         # train; after each step: masks.apply()

torch.nn.utils.prune replaces parameters; existing optimizers would keep references to the old ones and update the
wrong tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from onefold.compression.compressor import Compressor, FineTuning, StepCallback
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.records import Value

MIN_DENSITY = 0.02  # share of each layer's weights that is never pruned: a layer of zeros blocks the signal
LEARNING_RATE_FACTOR = 0.5


class MagnitudePruning(Compressor):
    """Set the smallest weights to zero, gradually, while the network trains; the setting is the final sparsity."""

    def compress(self, network: torch.nn.Module, value: Value, fine_tuning: FineTuning) -> None:
        """Raise the sparsity along a cubic schedule over the first two thirds of the epochs."""
        masks, ramp = PruningMasks(network), max(1, 2 * fine_tuning.epochs // 3)
        fine_tuning.run(
            network,
            learning_rate_factor=LEARNING_RATE_FACTOR,
            before_epoch=lambda epoch: masks.prune(sparsity_schedule(_share(value), epoch + 1, ramp)),
            after_step=masks.apply,
        )

    def preserve(self, network: torch.nn.Module, value: Value) -> StepCallback:  # noqa: ARG002
        """Keep the present zeros."""
        return PruningMasks.of_zeros(network).apply


class PruningMasks:
    """Which weights of a network are pruned."""

    def __init__(self, network: torch.nn.Module) -> None:
        self._weights = prunable_weights(network)
        if not self._weights:
            raise ModelError(
                "the network has no weights to prune; expected parameters with two or more dimensions, as those of "
                "Linear, Conv2d, Embedding or LSTM"
            )
        self._kept = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in self._weights.items()}

    @classmethod
    def of_zeros(cls, network: torch.nn.Module) -> PruningMasks:
        """Return masks that treat every present zero as pruned."""
        masks = cls(network)
        masks._kept = {name: weight.detach() != 0 for name, weight in masks._weights.items()}
        return masks

    def prune(self, sparsity: float, only: str | None = None) -> None:
        """Set the weights with the lowest LAMP scores to zero, of the whole network or of the layer `only`."""
        chosen = {name: weight for name, weight in self._weights.items() if only in (None, name)}
        scores = torch.cat([_lamp_scores(weight).flatten() for weight in chosen.values()])
        count = min(round(sparsity * len(scores)), int(torch.isfinite(scores).sum()))
        kept = torch.ones(len(scores), dtype=torch.bool)
        kept[scores.topk(count, largest=False).indices] = False
        for (name, weight), part in zip(chosen.items(), torch.split(kept, [w.numel() for w in chosen.values()])):
            self._kept[name] = part.view_as(weight).to(weight.device)
        self.apply()

    def apply(self) -> None:
        """Reset pruned weights to zero after an optimizer step."""
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.mul_(self._kept[name])

    @property
    def sparsity(self) -> float:
        """Return the share of the prunable weights that are pruned."""
        zeros = sum(int((~kept).sum()) for kept in self._kept.values())
        return zeros / sum(kept.numel() for kept in self._kept.values())


def prunable_weights(network: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return matrices and convolution kernels by name; biases and normalization parameters are not pruned."""
    return {name: weight for name, weight in network.named_parameters() if weight.ndim >= 2}


def sparsity_schedule(target: float, step: int, steps: int) -> float:
    """Return the sparsity after `step` of `steps`, on the cubic schedule of Zhu and Gupta (2017)."""
    remaining = max(0.0, 1 - step / max(1, steps))
    return target * (1 - remaining**3)


def layer_sensitivity(
    network: torch.nn.Module, sparsity: float, score: Callable[[torch.nn.Module], float]
) -> dict[str, float]:
    """Return, by layer, the score of the network with only that layer pruned and no fine-tuning."""
    scores = {}
    for name in prunable_weights(network):
        pruned = copy.deepcopy(network)
        PruningMasks(pruned).prune(sparsity, only=name)
        scores[name] = score(pruned)
    return scores


def _lamp_scores(weight: torch.Tensor) -> torch.Tensor:
    """Return layer-adaptive magnitude scores (Lee et al. 2021): w² over the sum of all w'² >= w² in the layer.

    The largest MIN_DENSITY of the layer score infinity, so that they are never pruned.
    """
    squares = weight.detach().cpu().flatten().double().square()
    ordered, places = squares.sort(descending=True, stable=True)
    scores = torch.empty_like(squares)
    scores[places] = ordered / ordered.cumsum(0).clamp_min(torch.finfo(torch.float64).tiny)
    scores[places[: max(1, round(MIN_DENSITY * len(squares)))]] = torch.inf
    return scores.view(weight.shape)


def _share(value: Value) -> float:
    return float(value or 0.0)
