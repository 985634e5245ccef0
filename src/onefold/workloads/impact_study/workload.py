"""What the four subjects have in common: activations, losses and optimisers by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from onefold import Config, Workload
from onefold.workloads.ftrl import Ftrl

EPSILON = 1e-7  # Keras's: what is added to a probability, or what it is raised to, before its logarithm is taken

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "sigmoid": nn.Sigmoid}


def poisson(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean of p - y log p over all classes and samples.

    Probabilities sum to 1, so this is (1 + cross entropy) / classes: the same goal, with gradients that much smaller.
    """
    found, wanted = _probabilities(outputs, targets)
    return (found - wanted * (found + EPSILON).log()).mean()


def kl_divergence(outputs: Tensor, targets: Tensor) -> Tensor:
    """The sum of y log(y / p) over the classes.

    With a single true class this is the cross entropy, but for what clipping does to probabilities below `EPSILON`.
    """
    found, wanted = (each.clamp(EPSILON, 1) for each in _probabilities(outputs, targets))
    return (wanted * (wanted / found).log()).sum(dim=1).mean()


def _probabilities(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """What the network gives each class, and what it should."""
    found = outputs.float().softmax(dim=1)
    return found, functional.one_hot(targets, found.shape[1]).to(found.dtype)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "crossentropy": functional.cross_entropy,
    "poisson": poisson,
    "kl_divergence": kl_divergence,
}

# With the settings of Keras where torch's are others.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "rmsprop": partial(torch.optim.RMSprop, alpha=0.9, eps=EPSILON),
    "adam": partial(torch.optim.Adam, eps=EPSILON),
    "adadelta": partial(torch.optim.Adadelta, rho=0.95, eps=EPSILON),
    "adagrad": partial(torch.optim.Adagrad, initial_accumulator_value=0.1, eps=EPSILON),
    "adamax": partial(torch.optim.Adamax, eps=EPSILON),
    "nadam": partial(torch.optim.NAdam, eps=EPSILON),
    "ftrl": Ftrl,
}


class ImpactStudyWorkload(Workload):
    """A network that gives logits, with its loss and its optimiser in the configuration.

    The metric `loss` is the one that the configuration names: trials with different ones are compared by accuracy.
    """

    def loss(self, outputs: Any, targets: Any, config: Config) -> Any:
        return LOSSES[config.loss](outputs, targets)

    def optimizer(self, model: Any, config: Config) -> Any:
        return OPTIMIZERS[config.optimizer](model.parameters(), lr=config.lr)
