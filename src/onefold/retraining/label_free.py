"""Adaptation to new data without labels, by entropy minimization (Tent, Wang et al. 2021).

The statistics of BatchNorms are re-estimated, and the affine parameters of normalization layers are trained for
confident predictions. Samples that are too uncertain are left out, and others count less the more uncertain they are
(EATA, Niu et al. 2022). Replayed samples of the original data keep their labels, and their loss.

Entropy is lowest for a collapsed model, which predicts one class for all inputs. So models are compared by the mutual
information of inputs and predictions on held-out inputs, which is 0 for a collapsed model, and a model is rejected if
its predictions are less diverse than those of the given one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from onefold.arrays.missing_targets import UNKNOWN
from onefold.retraining.given_network import GivenNetwork
from onefold.retraining.job import RetrainingJob
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.records import Config, Metrics
from onefold.vocabulary.workload import Workload

METRIC, DIVERSITY = "mutual information", "diversity"
MAX_RELIABLE_ENTROPY = 0.4  # of a sample that is trained on, relative to the highest possible entropy
NORMALIZATIONS = (
    nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm,
)  # fmt: skip


class LabelFreeWorkload(Workload):
    """A classification workload, for data whose targets are UNKNOWN."""

    def __init__(self, labeled: Workload) -> None:
        self.labeled = labeled  # for samples that have targets

    def predictions(self, outputs: Any) -> Any:
        return self.labeled.predictions(outputs)

    def loss(self, outputs: Any, targets: Any, config: Config) -> Any:
        """Return the weighted entropy of the reliable samples, and the loss of those that have targets."""
        logits, is_unknown = self.predictions(outputs), _is_unknown(targets)
        entropies = _entropies(logits[is_unknown].float())
        threshold = MAX_RELIABLE_ENTROPY * math.log(logits.shape[1])
        weights = torch.where(entropies < threshold, (threshold - entropies).exp(), 0.0).detach()
        loss = (weights * entropies).sum() / max(1, entropies.numel()) * float(is_unknown.float().mean())
        if not bool(is_unknown.all()):
            labeled = self.labeled.loss(logits[~is_unknown], targets[~is_unknown], config)
            loss = loss + labeled * float((~is_unknown).float().mean())
        return loss

    def evaluate(self, model: Any, batches: Iterable[Any], config: Config) -> Metrics:  # noqa: ARG002
        """Return the mutual information of inputs and predictions in nats, and the entropy of the mean prediction."""
        entropy, count, total = 0.0, 0, torch.zeros(1)
        for *inputs, _ in batches:
            logits = self.predictions(model(*inputs)).float()
            entropies = _entropies(logits)
            entropy, count = entropy + float(entropies.sum()), count + entropies.numel()
            total = total + logits.softmax(1).movedim(1, -1).flatten(0, -2).sum(0).cpu()
        mean = total / max(1, count)
        diversity = float(-(mean * mean.clamp_min(1e-12).log()).sum())
        information = diversity - entropy / max(1, count)
        return {METRIC: information, DIVERSITY: diversity, "loss": math.log(len(mean)) - information}


def adapt_without_labels(job: RetrainingJob, given: GivenNetwork) -> None:
    """Prepare a retraining on data without labels.

    Raises:
        DatasetError: The network has no normalization layers, or is no classifier.
    """
    weights = normalization_weights(job.network)
    if not weights:
        raise DatasetError(
            "the new data has no targets, and the model has no normalization layers with weights of their own "
            "(BatchNorm, LayerNorm, GroupNorm), which could be adapted without targets; add the targets"
        )
    outputs = _outputs(job)
    reference = job.data.reference
    has_numbers = reference is not None and reference.judged.few(1)[-1].is_floating_point()
    if has_numbers or (outputs is not None and (outputs.dim() < 2 or outputs.shape[1] < 2)):
        raise DatasetError(
            "the new data has no targets, and only a classifier, with a logit per class, can be adapted without them; "
            "add the targets"
        )
    job.reference_workload, job.workload = job.workload, LabelFreeWorkload(job.workload)
    job.reference_metric, job.metric = job.metric, METRIC
    given.trainable = weights


def normalization_weights(network: nn.Module) -> list[nn.Parameter]:
    """Return the affine parameters of all normalization layers."""
    layers = [module for module in network.modules() if isinstance(module, NORMALIZATIONS)]
    return [weight for layer in layers for weight in layer.parameters(recurse=False)]


def _outputs(job: RetrainingJob) -> Tensor | None:
    *inputs, _ = job.data.train.few(2)
    try:
        with torch.no_grad():
            outputs = job.workload.predictions(job.network(*inputs))
    except Exception:  # noqa: BLE001 - reported by the check of the data
        return None
    return outputs if isinstance(outputs, Tensor) else torch.zeros(1)


def _is_unknown(targets: Tensor) -> Tensor:
    return (targets == UNKNOWN).flatten(1).all(1) if targets.dim() > 1 else targets == UNKNOWN


def _entropies(logits: Tensor) -> Tensor:
    """Return the entropy of each prediction in nats; the classes are in the second dimension."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
