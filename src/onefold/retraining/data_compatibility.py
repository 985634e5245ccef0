"""Whether the new data can be learned from by this model, told before anything is touched."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from onefold.retraining.samples import NewData, Samples
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.records import Config
from onefold.vocabulary.workload import Workload


def check_compatible(network: nn.Module, data: NewData, workload: Workload, config: Config) -> None:
    """Raises DatasetError for inputs that the model does not take and for classes that it does not know."""
    for samples in (data.train, data.validation):
        *inputs, targets = samples.batch(slice(0, 2))
        shapes = " and ".join(str(tuple(one.shape[1:])) for one in inputs)
        try:
            with torch.no_grad():
                outputs = network(*inputs)
        except Exception as error:
            told = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DatasetError(
                f"the model does not take the new data, with samples of shape {shapes} and {inputs[0].dtype}: {told}"
            ) from error
        has_classes = isinstance(outputs, Tensor) and not targets.is_floating_point() and outputs.dim() > 1
        if has_classes and outputs.shape[2:] == targets.shape[1:]:
            _check_classes(samples, outputs.shape[1])
        try:
            workload.loss(outputs, targets, config)
        except Exception as error:
            told = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DatasetError(
                f"the loss cannot be told from targets of shape {tuple(targets.shape[1:])} and {targets.dtype}: {told}"
            ) from error


def _check_classes(samples: Samples, known: int) -> None:
    targets = np.concatenate([batch[-1].cpu().numpy().ravel() for batch in _targets(samples)])
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= known:
        other = high if high >= known else low
        raise DatasetError(
            f"the new data has the class {other}, but the model tells {known} classes apart, 0 to {known - 1}; "
            "give data with those classes, or train a model with more outputs"
        )


def _targets(samples: Samples) -> list[tuple[Tensor, ...]]:
    """The targets alone: inputs may be large."""
    only = Samples(samples.arrays[-1:], samples.rows, samples.device)
    return list(only.batches(4096))
