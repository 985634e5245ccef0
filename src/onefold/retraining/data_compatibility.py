"""Checks that a model can be trained on new data, before anything is changed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from onefold.arrays.missing_targets import MissingTargets
from onefold.retraining.samples import NewData, Samples
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.records import Config
from onefold.vocabulary.workload import Workload


def check_compatible(network: nn.Module, data: NewData, workload: Workload, config: Config) -> None:
    """Run the network and the loss on two samples of each split.

    Raises:
        DatasetError: The network rejects the inputs, the loss rejects the targets, or a class is out of range.
    """
    reference = () if data.reference is None else (data.reference.judged, data.reference.replayed)
    for samples in (data.train, data.validation, *reference):
        *inputs, targets = samples.few(2)
        shapes = " and ".join(str(tuple(tensor.shape[1:])) for tensor in inputs)
        try:
            with torch.no_grad():
                outputs = network(*inputs)
        except Exception as error:
            raise DatasetError(
                f"the model rejects the new data, samples of shape {shapes} and {inputs[0].dtype}: {headline(error)}"
            ) from error
        # A loss of the user's may compare other outputs with the targets than the default one does.
        predictions = workload.predictions(outputs) if type(workload).loss is Workload.loss else outputs
        has_classes = isinstance(predictions, Tensor) and not targets.is_floating_point() and predictions.dim() > 1
        is_labeled = not isinstance(samples.arrays[-1], MissingTargets)
        if has_classes and is_labeled and predictions.shape[2:] == targets.shape[1:]:
            _check_classes(samples, predictions.shape[1])
        try:
            workload.loss(outputs, targets, config)
        except Exception as error:
            raise DatasetError(
                f"the loss rejects targets of shape {tuple(targets.shape[1:])} and {targets.dtype}: {headline(error)}"
            ) from error


def _check_classes(samples: Samples, classes: int) -> None:
    targets = np.concatenate([part.ravel() for part in samples.targets()])
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise DatasetError(
            f"the new data has class {high if high >= classes else low}, but the model has {classes} classes, 0 to "
            f"{classes - 1}; use data with these classes, or train a model with more outputs"
        )
