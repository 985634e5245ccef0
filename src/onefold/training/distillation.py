"""Knowledge distillation (Hinton et al. 2015): train a network on the class scores of another one, besides the targets.

The loss is `(1 - weight) * loss + weight * T² * KL(softmax(teacher / T) || softmax(student / T))`. It replaces the
`loss` of the workload, which needs no change: the teacher sees the inputs that the student was called with.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from onefold.training.trained_model import TrainedModel
from onefold.vocabulary.errors import ModelError, WorkloadError
from onefold.vocabulary.workload import Workload

TEMPERATURE = 4.0


def soft_target_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = TEMPERATURE) -> torch.Tensor:
    """Return T² times the mean divergence of the softened class probabilities; its gradient hardly depends on T."""
    log_student = functional.log_softmax(student / temperature, dim=1)
    log_teacher = functional.log_softmax(teacher / temperature, dim=1)
    divergence = functional.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)
    return temperature**2 * divergence


def check_class_scores(trained: TrainedModel) -> None:
    """Raise ModelError unless the network returns class scores, one per class and sample, for targets that are indices.

    Distillation is undefined for other outputs.
    """
    batch = next(iter(trained.splits.train.share(0.0, at_least=2).batches(2)))
    if not isinstance(batch, (tuple, list)):
        raise ModelError(
            f"distillation needs batches that are tuples, but got {type(batch).__name__}; train without it"
        )
    *inputs, targets = batch
    trained.network.eval()
    with torch.no_grad():
        scores = trained.workload.predictions(trained.network(*inputs))
    is_scores = isinstance(scores, torch.Tensor) and scores.dim() == 2 and scores.shape[1] > 1
    is_labels = isinstance(targets, torch.Tensor) and targets.dim() == 1 and not targets.is_floating_point()
    if is_scores and is_labels:
        return
    shapes = [
        tuple(part.shape) if isinstance(part, torch.Tensor) else type(part).__name__ for part in (scores, targets)
    ]
    raise ModelError(
        "distillation needs a classifier, with scores of shape (samples, classes) and class indices as targets, "
        f"but got predictions {shapes[0]} and targets {shapes[1]}; train without it"
    )


@contextmanager
def distilled(
    workload: Workload, student: torch.nn.Module, teacher: torch.nn.Module, weight: float
) -> Iterator[Workload]:
    """Return the workload with a loss that also compares the student with the teacher; the workload itself stays as is.

    Raises WorkloadError at the end of the block if the workload trained without calling its `loss`.
    """
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    used = 0

    def remember(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen[:] = [(args, kwargs)]

    def loss(outputs: Any, targets: Any, config: Any) -> Any:
        nonlocal used
        hard = workload.loss(outputs, targets, config)
        if not seen or not torch.is_grad_enabled():
            return hard
        used += 1
        args, kwargs = seen[0]
        with torch.no_grad():
            scores = workload.predictions(teacher(*args, **kwargs))
        soft = soft_target_loss(workload.predictions(outputs), scores)
        return (1 - weight) * hard + weight * soft

    copied = copy.copy(workload)
    copied.loss = loss  # type: ignore[method-assign]
    teacher.eval()
    handle = student.register_forward_pre_hook(remember, with_kwargs=True)
    try:
        yield copied
    finally:
        handle.remove()
    if not used:
        raise WorkloadError(
            f"distillation needs the loss of {type(workload).__name__}, but its training does not call self.loss; "
            "call it in step or train_epoch, or train without distillation"
        )
