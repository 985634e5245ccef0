"""New classes: growth of the head, initial weights of the new rows, and the loss to train them with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from onefold.retraining.job import RetrainingJob
from onefold.retraining.samples import MIN_SAMPLES, Samples
from onefold.training.classification_head import ClassificationHead, GrownHead, find_head
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import DatasetError

GROWTH_REPLAYED_SHARE = 0.5  # of the samples of an update, while new classes are learned
INITIAL_MARGIN = 1.0  # by which a new logit exceeds the highest old one at the mean features of its class
MIN_CLASS_SHARE = 1e-4  # of a class that does not occur


def class_counts(samples: Samples) -> NDArray[np.int64] | None:
    """Return how often each class occurs; None if a target is negative. Reads all targets, and no inputs."""
    counts = np.zeros(0, np.int64)
    for targets in samples.targets():
        if int(targets.min()) < 0:
            return None
        counts_read = np.bincount(targets.ravel(), minlength=len(counts))
        counts_read[: len(counts)] += counts
        counts = counts_read
    return counts


def grow_for_new_classes(job: RetrainingJob) -> GrownHead | None:
    """Grow the head of the network by the classes of the new data that it lacks; None if it has them all.

    Raises:
        DatasetError: The head is not found, the loss does not accept more classes, or class numbers have gaps.
    """
    *inputs, targets = job.data.train.few(2)
    try:
        with torch.no_grad():
            logits = job.network(*inputs)
    except Exception:  # noqa: BLE001 - reported by the check of the data
        return None
    if not isinstance(logits, Tensor) or logits.dim() < 2 or targets.is_floating_point():
        return None
    counts = class_counts(job.data.train) if logits.shape[2:] == targets.shape[1:] else None
    old = logits.shape[1]
    if counts is None or len(counts) <= old:
        return None
    described = f"the new data has class {len(counts) - 1}, but the model has {old} classes, 0 to {old - 1}"
    if rare := np.flatnonzero(counts[old:] < MIN_SAMPLES).tolist():
        raise DatasetError(
            f"{described}; classes are added up to the highest number, each from at least {MIN_SAMPLES} training "
            f"samples, but class {old + rare[0]} has {counts[old + rare[0]]}: correct the labels, number the new "
            "classes without gaps, or collect more samples"
        )
    head = find_head(job.network, inputs, old)
    if head is None:
        raise DatasetError(
            f"{described}, and it has no last nn.Linear or 1x1 convolution to which classes could be added; "
            "use data with these classes, or train a model with more outputs"
        )
    _check_loss(job, logits, targets, len(counts))
    return head.grow(len(counts))


def initialize_new_classes(job: RetrainingJob, head: GrownHead, count: int, batch_size: int) -> None:
    """Point the row of each new class from the mean of all old features to the mean of its own, on `count` samples.

    Rows have the mean norm of the old ones; biases let a new class win by a margin at its mean. Where the features
    cannot be matched with targets, new rows are the mean of the old ones.
    """
    old, reference = head.old_classes, job.data.reference
    sums, counts, winning = (
        torch.zeros(head.classes, head.features),
        torch.zeros(head.classes),
        torch.zeros(head.classes),
    )
    others = [] if reference is None else [reference.replayed.first(count)]
    for features, targets in _features(job.network, head, [job.data.train.first(count), *others], batch_size):
        weight, bias = head.weight.detach()[:old].flatten(1).float(), head.bias
        logits = features @ weight.T + (0.0 if bias is None else bias.detach()[:old].float())
        sums.index_add_(0, targets, features.cpu())
        winning.index_add_(0, targets, logits.amax(1).cpu())
        counts += torch.bincount(targets, minlength=head.classes)
    _write_rows(head, sums, counts, winning)


def _write_rows(head: GrownHead, sums: Tensor, counts: Tensor, winning: Tensor) -> None:
    old = head.old_classes
    rows = head.weight.detach()[:old].flatten(1).float().cpu()
    biases = torch.zeros(old) if head.bias is None else head.bias.detach()[:old].float().cpu()
    origin = sums[:old].sum(0) / counts[:old].sum() if counts[:old].sum() else sums.sum(0) / counts.sum().clamp_min(1)
    for label in range(old, head.classes):
        row, bias = rows.mean(0), biases.mean()
        mean = sums[label] / counts[label].clamp_min(1)
        if counts[label] and float((mean - origin).norm()) > 0:
            row = functional.normalize(mean - origin, dim=0) * rows.norm(dim=1).mean()
            bias = winning[label] / counts[label] + INITIAL_MARGIN - row @ mean
        with torch.no_grad():
            head.weight[label] = row.reshape(head.weight.shape[1:]).to(head.weight)
            if head.bias is not None:
                head.bias[label] = bias.to(head.bias)


def _features(
    network: nn.Module, head: ClassificationHead, parts: Iterable[Samples], batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the inputs of the head, a row for each target."""
    seen: list[Tensor] = []
    handle = head.module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        for *inputs, targets in chain.from_iterable(part.batches(batch_size) for part in parts):
            seen.clear()
            with torch.no_grad():
                network(*inputs)
            rows = _as_rows(seen[0], head.module, targets)
            if rows is not None:
                yield rows.float(), targets.reshape(-1).cpu()
    finally:
        handle.remove()


def _as_rows(features: Tensor, module: nn.Module, targets: Tensor) -> Tensor | None:
    if not isinstance(module, nn.Linear):
        features = features.movedim(1, -1)
    if targets.dim() == 1 and features.dim() > 2:  # pooled after the head
        features = features.flatten(1, -2).mean(1)
    return features.flatten(0, -2) if features.shape[:-1] == targets.shape else None


def class_log_priors(job: RetrainingJob, classes: int) -> Tensor:
    """Return the logarithm of the share of each class in the updates, for a balanced softmax (Ren et al. 2020).

    Added to the logits while training, it keeps the network from preferring the classes that it sees most; rows of
    classes that it does not see are left alone.
    """
    shares = _shares(job.data.train, classes)
    if job.data.reference is not None:
        replayed = _shares(job.data.reference.replayed, classes)
        shares = (1 - GROWTH_REPLAYED_SHARE) * shares + GROWTH_REPLAYED_SHARE * replayed
    return torch.from_numpy(np.log(np.maximum(shares, MIN_CLASS_SHARE))).float()


def _shares(samples: Samples, classes: int) -> NDArray[np.float64]:
    counts = class_counts(samples)
    shares = np.zeros(classes) if counts is None else np.pad(counts[:classes], (0, max(0, classes - len(counts))))
    return np.asarray(shares / max(1, shares.sum()), np.float64)


def _check_loss(job: RetrainingJob, logits: Tensor, targets: Tensor, classes: int) -> None:
    """Raise DatasetError unless the loss takes that many classes."""
    wider = torch.zeros(len(logits), classes, *logits.shape[2:], dtype=logits.dtype, device=logits.device)
    try:
        finite = bool(torch.isfinite(job.workload.loss(wider, targets, job.config)))
        reason = "" if finite else "it is not finite"
    except Exception as error:  # noqa: BLE001 - of the user
        reason = headline(error)
    if reason:
        raise DatasetError(
            f"the new data has class {classes - 1}, but the loss of the workload does not take {classes} classes "
            f"({reason}); use data with the {logits.shape[1]} classes of the model"
        )
