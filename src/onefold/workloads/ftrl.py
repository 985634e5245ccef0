"""The FTRL-Proximal optimizer (McMahan et al. 2013), which torch lacks, with the defaults of Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from onefold.vocabulary.errors import InputError


class Ftrl(torch.optim.Optimizer):
    """Follow the regularized leader, with per-coordinate learning rates.

    With `l1`, `l2` and `beta` at 0 this equals AdaGrad from the second step on. The first step also multiplies a weight
    by 1 - sqrt(n0 / n1), where n0 is `initial_accumulator_value` and n1 the accumulator after the step, since `linear`
    is initialized to 0: the initial values of weights with small first gradients are almost lost.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 0.0,
    ) -> None:
        if lr <= 0 or initial_accumulator_value <= 0 or learning_rate_power > 0 or min(l1, l2, beta) < 0:
            raise InputError(
                "Ftrl needs lr > 0, initial_accumulator_value > 0, learning_rate_power <= 0 and l1, l2, beta >= 0, "
                f"but got {lr}, {initial_accumulator_value}, {learning_rate_power}, {l1}, {l2} and "
                f"{beta}"
            )
        defaults = dict(lr=lr, learning_rate_power=learning_rate_power, l1=l1, l2=l2, beta=beta)
        super().__init__(params, {**defaults, "initial_accumulator_value": initial_accumulator_value})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every weight that has a gradient, and return the loss of `closure` if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group)
        return loss

    def _update(self, weight: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["accumulator"] = torch.full_like(weight, group["initial_accumulator_value"])
            state["linear"] = torch.zeros_like(weight)
        accumulator, linear, lr = state["accumulator"], state["linear"], group["lr"]
        before = accumulator.pow(-group["learning_rate_power"])
        accumulator.addcmul_(gradient, gradient)
        after = accumulator.pow(-group["learning_rate_power"])
        linear.add_(gradient).addcmul_(after - before, weight, value=-1 / lr)
        quadratic = after.div_(lr).add_(2 * group["l2"] + group["beta"] / lr)
        weight.copy_((linear.clamp(-group["l1"], group["l1"]) - linear).div_(quadratic))
