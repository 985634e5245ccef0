"""Incompatible data is rejected before anything is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_networks import CLASSES, KINDS, WORDS
from torch import Tensor, nn

from onefold.retraining.data_compatibility import check_compatible
from onefold.retraining.samples import split_new_data
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.records import Config
from onefold.vocabulary.workload import Data, Workload

CPU = torch.device("cpu")
IMAGES = np.random.default_rng(0).random((50, 3, 8, 8)).astype(np.float32)
LABELS = np.arange(50) % CLASSES


def check(network: nn.Module, inputs: Any, targets: Any, validation: Any = None) -> None:
    data = split_new_data(Data(train=(inputs, targets), validation=validation), CPU)
    check_compatible(network.eval(), data, Workload(), Config())


def message(network: nn.Module, inputs: Any, targets: Any, validation: Any = None) -> str:
    with pytest.raises(DatasetError) as error:
        check(network, inputs, targets, validation)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", KINDS)
def test_compatible_data_passes_and_leaves_the_model_unchanged(name: str) -> None:
    network = KINDS[name].network().eval()
    before = copy.deepcopy(network.state_dict())
    check(network, *KINDS[name].batch(20))
    assert all(torch.equal(value, network.state_dict()[key]) for key, value in before.items())
    assert all(weight.grad is None for weight in network.parameters())


def test_inputs_of_another_shape_are_rejected() -> None:
    said = message(KINDS["residual"].network(), IMAGES[:, :1], LABELS)
    assert said.startswith("the model rejects the new data, samples of shape (1, 8, 8) and torch.float32")


def test_inputs_of_another_type_or_range_are_rejected() -> None:
    said = message(KINDS["residual"].network(), (255 * IMAGES).astype(np.uint8), LABELS)
    assert "(3, 8, 8) and torch.int64" in said
    assert "(32,)" in message(KINDS["recurrent"].network(), np.full((50, 32), WORDS), LABELS)


def test_too_many_inputs_are_rejected() -> None:
    data = split_new_data(Data(train=(IMAGES, LABELS, LABELS)), CPU)
    with pytest.raises(DatasetError, match=r"\(3, 8, 8\) and \(\)"):
        check_compatible(KINDS["residual"].network().eval(), data, Workload(), Config())


@pytest.mark.parametrize("place", [0, 17, 49])
def test_an_unknown_class_is_rejected_at_any_position(place: int) -> None:
    targets = LABELS.copy()
    targets[place] = 7
    said = message(KINDS["residual"].network(), IMAGES, targets)
    assert said.startswith("the new data has class 7, but the model has 5 classes, 0 to 4; use data")
    assert message(KINDS["residual"].network(), IMAGES, LABELS, (IMAGES, targets)) == said


def test_a_negative_class_is_rejected() -> None:
    targets = LABELS.copy()
    targets[20] = -1
    assert "class -1, but the model has 5" in message(KINDS["residual"].network(), IMAGES, targets)


def test_float_targets_of_a_classifier_are_rejected() -> None:
    said = message(KINDS["residual"].network(), IMAGES, LABELS.astype(np.float64))
    assert said.startswith("the loss rejects targets of shape () and torch.float32: ")


def test_targets_of_another_shape_are_rejected() -> None:
    said = message(KINDS["residual"].network(), IMAGES, LABELS[:, None])
    assert said.startswith("the loss rejects targets of shape (1,) and torch.int64: ")


def test_a_regression_model_accepts_float_targets() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 1))
    check(network, IMAGES, LABELS.astype(np.float64))
    check(network, IMAGES, LABELS[:, None].astype(np.float32))


def test_a_custom_loss_is_used() -> None:
    class Strict(Workload):
        def loss(self, outputs: Tensor, targets: Tensor, config: Config) -> Tensor:
            raise ValueError("pairs are wanted\nand nothing else")

    data = split_new_data(Data(train=(IMAGES, LABELS)), CPU)
    with pytest.raises(DatasetError, match=r"pairs are wanted$"):
        check_compatible(KINDS["residual"].network().eval(), data, Strict(), Config())


# Regressions


def test_an_unknown_class_is_rejected_in_segmentation_targets() -> None:
    painter = nn.Conv2d(3, CLASSES, 1)
    targets = np.random.default_rng(0).integers(0, CLASSES, (50, 8, 8))
    check(painter, IMAGES, targets)
    targets[30, 2, 2] = 7
    assert "class 7" in message(painter, IMAGES, targets)


class Returning(nn.Module):
    """A linear layer that returns its result in a structure."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.wrap = nn.Linear(4, CLASSES), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.layer(x))


@pytest.mark.parametrize("wrap", [lambda x: {"logits": x}, lambda x: (x, x.sum())])
def test_classes_are_counted_in_the_predictions(wrap: Callable[[Tensor], Any]) -> None:
    inputs = torch.randn(50, 4)
    check(Returning(wrap), inputs, LABELS)
    assert f"the model has {CLASSES} classes" in message(Returning(wrap), inputs, LABELS + 1)
