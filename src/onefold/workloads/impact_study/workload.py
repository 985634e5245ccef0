"""The base of the workloads: activations, losses and optimizers by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from onefold import Choice, Config, Float, Int, Workload
from onefold.vocabulary.space import Parameter
from onefold.workloads.ftrl import Ftrl

EPSILON = 1e-7  # as in Keras: added to probabilities, or their lower bound, before the logarithm

BATCH_SIZES = (16, 32, 64, 128, 256, 512)
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "sigmoid": nn.Sigmoid}


def poisson(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of p - y log p over all classes and samples.

    Probabilities sum to 1, so this is (1 + cross-entropy) / classes: the same optimum with smaller gradients.
    """
    predicted, expected = _probabilities(outputs, targets)
    return (predicted - expected * (predicted + EPSILON).log()).mean()


def kl_divergence(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over samples of the sum of y log(y / p) over classes.

    With one true class this is the cross-entropy, except that probabilities are clipped at `EPSILON`.
    """
    predicted, expected = (values.clamp(EPSILON, 1) for values in _probabilities(outputs, targets))
    return (expected * (expected / predicted).log()).sum(dim=1).mean()


def _probabilities(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the predicted probabilities and the one-hot targets."""
    predicted = outputs.float().softmax(dim=1)
    return predicted, functional.one_hot(targets, predicted.shape[1]).to(predicted.dtype)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "crossentropy": functional.cross_entropy,
    "poisson": poisson,
    "kl_divergence": kl_divergence,
}

# Defaults of Keras where those of torch differ.
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


def training_group(
    *, lr: float, batch_size: int, epochs: int, max_epochs: int = 10, batch_sizes: Sequence[int] = BATCH_SIZES
) -> dict[str, Parameter]:
    """Return the hyperparameters of training with these defaults; the ranges are those for a CPU unless given."""
    return {
        "loss": Choice(*LOSSES, default="crossentropy"),
        "optimizer": Choice(*OPTIMIZERS, default="adam"),
        "lr": Float(1e-4, 1e-1, log=True, default=lr),
        "batch_size": Choice(*batch_sizes, default=batch_size),
        "epochs": Int(1, max_epochs, default=epochs),
    }


class ImpactStudyWorkload(Workload):
    """A classifier whose loss and optimizer are hyperparameters.

    The metric `loss` is the configured one, so trials with different losses are compared by accuracy.
    """

    def loss(self, outputs: Any, targets: Any, config: Config) -> Any:
        return LOSSES[config.loss](outputs, targets)

    def optimizer(self, model: Any, config: Config) -> Any:
        return OPTIMIZERS[config.optimizer](model.parameters(), lr=config.lr)
