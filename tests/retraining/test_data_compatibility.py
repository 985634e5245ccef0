"""Whether new data can be learned from by a model is told before anything is touched."""

from __future__ import annotations

import copy
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


def complaint(network: nn.Module, inputs: Any, targets: Any, validation: Any = None) -> str:
    with pytest.raises(DatasetError) as error:
        check(network, inputs, targets, validation)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", KINDS)
def test_data_that_belong_to_a_model_pass_and_leave_it_alone(name: str) -> None:
    network = KINDS[name].network().eval()
    before = copy.deepcopy(network.state_dict())
    check(network, *KINDS[name].batch(20))
    assert all(torch.equal(value, network.state_dict()[key]) for key, value in before.items())
    assert all(weight.grad is None for weight in network.parameters())


def test_samples_of_another_shape_are_told() -> None:
    said = complaint(KINDS["residual"].network(), IMAGES[:, :1], LABELS)
    assert said.startswith("the model does not take the new data, with samples of shape (1, 8, 8) and torch.float32")


def test_samples_of_another_kind_are_told() -> None:
    said = complaint(KINDS["residual"].network(), (255 * IMAGES).astype(np.uint8), LABELS)
    assert "(3, 8, 8) and torch.int64" in said
    assert "(32,)" in complaint(KINDS["recurrent"].network(), np.full((50, 32), WORDS), LABELS)


def test_too_many_inputs_are_told() -> None:
    data = split_new_data(Data(train=(IMAGES, LABELS, LABELS)), CPU)
    with pytest.raises(DatasetError, match=r"\(3, 8, 8\) and \(\)"):
        check_compatible(KINDS["residual"].network().eval(), data, Workload(), Config())


@pytest.mark.parametrize("place", [0, 17, 49])
def test_a_class_that_the_model_does_not_know_is_told_wherever_it_stands(place: int) -> None:
    targets = LABELS.copy()
    targets[place] = 7
    said = complaint(KINDS["residual"].network(), IMAGES, targets)
    assert said.startswith("the new data has the class 7, but the model tells 5 classes apart, 0 to 4; give data")
    assert complaint(KINDS["residual"].network(), IMAGES, LABELS, (IMAGES, targets)) == said


def test_a_class_below_zero_is_told() -> None:
    targets = LABELS.copy()
    targets[20] = -1
    assert "the class -1, but the model tells 5" in complaint(KINDS["residual"].network(), IMAGES, targets)


def test_numbers_in_the_place_of_classes_are_told() -> None:
    said = complaint(KINDS["residual"].network(), IMAGES, LABELS.astype(np.float64))
    assert said.startswith("the loss cannot be told from targets of shape () and torch.float32: ")


def test_targets_of_another_shape_are_told() -> None:
    said = complaint(KINDS["residual"].network(), IMAGES, LABELS[:, None])
    assert said.startswith("the loss cannot be told from targets of shape (1,) and torch.int64: ")


def test_a_model_that_predicts_numbers_takes_them() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 1))
    check(network, IMAGES, LABELS.astype(np.float64))
    check(network, IMAGES, LABELS[:, None].astype(np.float32))


def test_a_loss_of_ones_own_is_asked() -> None:
    class Strict(Workload):
        def loss(self, outputs: Tensor, targets: Tensor, config: Config) -> Tensor:
            raise ValueError("pairs are wanted\nand nothing else")

    data = split_new_data(Data(train=(IMAGES, LABELS)), CPU)
    with pytest.raises(DatasetError, match=r"pairs are wanted$"):
        check_compatible(KINDS["residual"].network().eval(), data, Strict(), Config())


# What is wrong


def test_a_class_that_is_not_known_is_told_where_every_place_has_one() -> None:
    painter = nn.Conv2d(3, CLASSES, 1)
    targets = np.random.default_rng(0).integers(0, CLASSES, (50, 8, 8))
    check(painter, IMAGES, targets)
    targets[30, 2, 2] = 7
    assert "the class 7" in complaint(painter, IMAGES, targets)
