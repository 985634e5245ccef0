"""Zeros among the weights: the smallest first, over the whole network.

masks = PruningMasks(network)
for epoch in range(epochs):
    masks.prune(gradual(0.8, epoch + 1, ramp))
    ...                                         # train; after each step: masks.apply()

torch's own pruning puts other parameters in the place of the weights, which an optimiser that exists does not notice.
"""

from __future__ import annotations

import torch

from onefold.vocabulary.errors import ModelError

LEAST = 0.02  # of the weights of a layer stay: a layer of zeros lets nothing through


class PruningMasks:
    """Which weights of a network stay zero."""

    def __init__(self, network: torch.nn.Module) -> None:
        self._weights = prunable(network)
        if not self._weights:
            raise ModelError(
                "the network has no weights that can be pruned: matrices of layers such as Linear, Conv2d, Embedding "
                "or LSTM, as parameters of the module"
            )
        self._kept = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in self._weights.items()}

    def prune(self, sparsity: float, only: str | None = None) -> None:
        """Makes zero the smallest weights of the whole network, or of one layer, until this share of them is."""
        chosen = {name: weight for name, weight in self._weights.items() if only in (None, name)}
        sizes = torch.cat([_rank(weight).flatten() for weight in chosen.values()])
        count = min(round(sparsity * len(sizes)), int(torch.isfinite(sizes).sum()))
        kept = torch.ones(len(sizes), dtype=torch.bool)
        kept[sizes.topk(count, largest=False).indices] = False
        for (name, weight), part in zip(chosen.items(), torch.split(kept, [w.numel() for w in chosen.values()])):
            self._kept[name] = part.view_as(weight).to(weight.device)
        self.apply()

    def keep_zeros(self) -> None:
        """Takes the zeros that there are for pruned ones."""
        self._kept = {name: weight.detach() != 0 for name, weight in self._weights.items()}

    def apply(self) -> None:
        """Makes zero again what an optimiser has moved."""
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.mul_(self._kept[name])

    @property
    def sparsity(self) -> float:
        """The share of the weights that are zero."""
        zeros = sum(int((~kept).sum()) for kept in self._kept.values())
        return zeros / sum(kept.numel() for kept in self._kept.values())


def prunable(network: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The weights that can be pruned, by name: matrices and kernels, not the few numbers of norms and biases."""
    return {name: weight for name, weight in network.named_parameters() if weight.ndim >= 2}


def gradual(target: float, step: int, steps: int) -> float:
    """The share of zeros after some of the steps to a target: fast at first, when there is much to spare."""
    left = max(0.0, 1 - step / max(1, steps))
    return target * (1 - left**3)


def _rank(weight: torch.Tensor) -> torch.Tensor:
    """How large each weight is among its like: its square over the sum of those that are not smaller (LAMP).

    So layers whose weights are small by nature, beside an embedding's, do not lose them all. The few largest of a layer
    count as larger than all others.
    """
    squares = weight.detach().cpu().flatten().double().square()
    ordered, places = squares.sort(descending=True, stable=True)
    share = torch.empty_like(squares)
    share[places] = ordered / ordered.cumsum(0).clamp_min(torch.finfo(torch.float64).tiny)
    share[places[: max(1, round(LEAST * len(squares)))]] = torch.inf
    return share.view(weight.shape)
