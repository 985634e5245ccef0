"""Adam and SGD without the dependencies of `torch.optim`.

Creating a `torch.optim` optimizer imports torch's compiler, which takes 70 MB: a seventh of a limit of 500 MB. Here the
state of a parameter is also dropped as soon as it is frozen, and kept when the plan changes in between.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # SGD uses the first as its momentum


class LeanOptimizer:
    """Adam, or SGD with momentum, over parameters that may change between steps."""

    def __init__(self, kind: str) -> None:
        """Create an optimizer without parameters; `kind` is "adam" or "sgd"."""
        self.kind = kind
        self._state: dict[nn.Parameter, tuple[Tensor, ...]] = {}
        self._steps: dict[nn.Parameter, int] = {}

    def retain(self, parameters: Iterable[nn.Parameter]) -> None:
        """Drop the state of all other parameters."""
        retained = set(parameters)
        self._state = {weight: state for weight, state in self._state.items() if weight in retained}
        self._steps = {weight: steps for weight, steps in self._steps.items() if weight in retained}

    @property
    def state_bytes(self) -> int:
        """Return the bytes of the optimizer state."""
        return sum(tensor.nbytes for state in self._state.values() for tensor in state)

    def reset(self) -> None:
        """Drop all state, as after weights were restored."""
        self.retain(())

    @torch.no_grad()
    def step(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        """Update the parameters that have a gradient, and zero their gradients."""
        for weight in parameters:
            if weight.grad is None:
                continue
            if self.kind == "sgd":
                self._sgd(weight, weight.grad, lr)
            else:
                self._adam(weight, weight.grad, lr)
            weight.grad.zero_()

    def _sgd(self, weight: nn.Parameter, gradient: Tensor, lr: float) -> None:
        if weight not in self._state:
            self._state[weight] = (torch.zeros_like(weight),)
        (velocity,) = self._state[weight]
        velocity.mul_(BETA1).add_(gradient)
        weight.add_(velocity, alpha=-lr)

    def _adam(self, weight: nn.Parameter, gradient: Tensor, lr: float) -> None:
        if weight not in self._state:
            self._state[weight] = (torch.zeros_like(weight), torch.zeros_like(weight))
        mean, square = self._state[weight]
        step = self._steps[weight] = self._steps.get(weight, 0) + 1
        mean.lerp_(gradient, 1 - BETA1)
        square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        denominator = square.sqrt().div_((1 - BETA2**step) ** 0.5).add_(EPSILON)
        weight.addcdiv_(mean, denominator, value=-lr / (1 - BETA1**step))
