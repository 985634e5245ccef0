"""Adam and SGD, without what torch's own bring along.

Making a `torch.optim` optimizer imports torch's compiler, which takes 70 MB: a seventh of a limit of 500 MB. What is
remembered of a weight goes as soon as the weight is frozen, and stays when the plan changes in between.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

MOMENTUM, DECAY, SMALL = 0.9, 0.999, 1e-8


class LeanOptimizer:
    """Changes weights by their gradients."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._memory: dict[nn.Parameter, tuple[Tensor, ...]] = {}
        self._steps: dict[nn.Parameter, int] = {}

    def keep_only(self, weights: Iterable[nn.Parameter]) -> None:
        """Forgets what is known of all other weights."""
        stay = set(weights)
        self._memory = {one: known for one, known in self._memory.items() if one in stay}
        self._steps = {one: count for one, count in self._steps.items() if one in stay}

    @property
    def bytes(self) -> int:
        """Of what is remembered."""
        return sum(one.nbytes for known in self._memory.values() for one in known)

    def forget(self) -> None:
        """Begins anew, as after weights were put back."""
        self.keep_only(())

    @torch.no_grad()
    def apply(self, weights: Iterable[nn.Parameter], lr: float) -> None:
        """One update; gradients are back at zero afterwards."""
        for weight in weights:
            if weight.grad is None:
                continue
            if self.kind == "sgd":
                self._sgd(weight, weight.grad, lr)
            else:
                self._adam(weight, weight.grad, lr)
            weight.grad.zero_()

    def _sgd(self, weight: nn.Parameter, gradient: Tensor, lr: float) -> None:
        if weight not in self._memory:
            self._memory[weight] = (torch.zeros_like(weight),)
        (velocity,) = self._memory[weight]
        velocity.mul_(MOMENTUM).add_(gradient)
        weight.add_(velocity, alpha=-lr)

    def _adam(self, weight: nn.Parameter, gradient: Tensor, lr: float) -> None:
        if weight not in self._memory:
            self._memory[weight] = (torch.zeros_like(weight), torch.zeros_like(weight))
        mean, square = self._memory[weight]
        step = self._steps[weight] = self._steps.get(weight, 0) + 1
        mean.lerp_(gradient, 1 - MOMENTUM)
        square.mul_(DECAY).addcmul_(gradient, gradient, value=1 - DECAY)
        size = square.sqrt().div_((1 - DECAY**step) ** 0.5).add_(SMALL)
        weight.addcdiv_(mean, size, value=-lr / (1 - MOMENTUM**step))
