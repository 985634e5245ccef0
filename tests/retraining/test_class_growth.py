"""New classes are learned, and the old ones are kept."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_controller import CPU, Starving, accuracy, is_unchanged, retraining, weights_of
from torch import Tensor, nn
from torch.nn import functional

from onefold import datasets
from onefold.retraining.class_growth import class_counts, class_log_priors
from onefold.retraining.evaluation import MAX_REFERENCE_LOSS
from onefold.retraining.samples import split_new_data, split_reference
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.records import Config
from onefold.vocabulary.workload import Data, Workload

OLD, NEW = range(8), (8, 9)


def digits_of(part: Any, labels: Any) -> Any:
    images, targets = part
    chosen = np.isin(targets, list(labels))
    return images[chosen], targets[chosen]


def classifier(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes),
    )  # fmt: skip


@pytest.fixture(scope="session")
def eight() -> nn.Module:
    """A network that has seen the digits 0 to 7."""
    torch.manual_seed(0)
    network = classifier(8)
    images, labels = (torch.from_numpy(part) for part in digits_of(datasets.digits().train, OLD))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(7):
        for places in torch.randperm(len(labels)).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(network(images[places]), labels[places]).backward()
            optimizer.step()
    return network.eval()


@pytest.fixture
def network(eight: nn.Module) -> nn.Module:
    return copy.deepcopy(eight)


@pytest.fixture(scope="session")
def fresh() -> Data:
    """Digits 8 and 9 alone."""
    return Data(digits_of(datasets.digits().train, NEW))


def reference() -> Any:
    return split_reference(Data(digits_of(datasets.digits().validation, OLD)), CPU)


def test_new_digits_are_learned_and_the_old_ones_kept(network: nn.Module, fresh: Data) -> None:
    test = datasets.digits().test
    old, new = digits_of(test, OLD), digits_of(test, NEW)
    before = accuracy(network, old)
    work = retraining(network, fresh, 2.0)
    work.job.data = replace(work.job.data, reference=reference())
    signature = work.job.signature
    result = work.run()
    assert result.kept_new
    assert result.before == 0.0  # the given model has no such classes
    assert result.reference_before is not None
    assert result.reference_after is not None
    assert result.reference_after >= result.reference_before - MAX_REFERENCE_LOSS
    assert accuracy(network, old) > before - 0.05
    assert accuracy(network, new) > 0.7
    assert result.grown is not None
    assert (result.grown.module, result.grown.before, result.grown.classes) == ("10", 8, 10)
    assert network[10].out_features == 10
    assert all(weight.requires_grad for weight in network.parameters())
    assert work.job.signature != signature
    assert "2 new classes, from 8 on; the layer 10 has 10 now" in result.notes[0]
    assert sum(item.weight_bytes for item in result.layers) == sum(weight.nbytes for weight in network.parameters())


def test_without_a_reference_set_the_report_says_that_nothing_is_known(network: nn.Module, fresh: Data) -> None:
    result = retraining(network, fresh).run()
    assert result.kept_new
    assert result.grown is not None
    assert "Without a reference set, nothing is known of the old classes." in result.notes[0]


def test_a_model_that_is_kept_has_its_given_head(network: nn.Module, fresh: Data) -> None:
    given, head = weights_of(network), network[10].weight
    workload = Starving()  # cannot evaluate the new model
    result = retraining(network, fresh, workload=workload, on_event=workload.on_event).run()
    assert not result.kept_new
    assert result.grown is None
    assert network[10].weight is head
    assert is_unchanged(network, given)
    assert "they were not learned" in result.notes[0]


class Failing(Workload):
    """A workload whose loss fails once training has begun."""

    calls = 0

    def loss(self, outputs: Any, targets: Any, config: Config) -> Any:
        self.calls += 1
        if self.calls > 40:
            raise ValueError("broken")
        return super().loss(outputs, targets, config)


def test_an_error_gives_the_head_back(network: nn.Module, fresh: Data) -> None:
    given = weights_of(network)
    with pytest.raises(ValueError, match="broken"):
        retraining(network, fresh, workload=Failing()).run()
    assert is_unchanged(network, given)
    assert network[10].out_features == 8
    assert all(weight.requires_grad for weight in network.parameters())


def test_planning_gives_the_head_back(network: nn.Module, fresh: Data) -> None:
    given = weights_of(network)
    assert retraining(network, fresh).plan_only()
    assert is_unchanged(network, given)


class Strict(Workload):
    """A workload with a weight for each of its classes."""

    def loss(self, outputs: Any, targets: Any, config: Config) -> Any:
        return functional.cross_entropy(outputs, targets, torch.ones(8))


class Headless(nn.Module):
    """A network whose logits are distances to prototypes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.prototypes = nn.Linear(64, 16), nn.Parameter(torch.randn(8, 16))

    def forward(self, x: Tensor) -> Tensor:
        return -torch.cdist(self.body(x.flatten(1)), self.prototypes)


@pytest.mark.parametrize(
    ("change", "more", "why"),
    [
        (None, {"new_classes": False}, "the new data has class 9, but the model has 8 classes, 0 to 7; use data"),
        (None, {"workload": Strict()}, "the loss of the workload does not take 10 classes"),
        (10, {}, "class 8 has 0: correct the labels, number the new classes without gaps"),
        (-5, {}, "the new data has class .*, but the model has 8 classes, 0 to 7; use data"),
    ],
)
def test_classes_that_cannot_be_learned_are_an_error(
    network: nn.Module, fresh: Data, change: int | None, more: dict[str, Any], why: str
) -> None:
    given = weights_of(network)
    images, labels = fresh.train
    if change is not None:
        labels = np.where(labels == 8, change, labels)
    with pytest.raises(DatasetError, match=why) as error:
        retraining(network, Data((images, labels)), **more).run()
    assert "\n" not in str(error.value)
    assert is_unchanged(network, given)


def test_a_model_without_a_plain_head_is_an_error(fresh: Data) -> None:
    with pytest.raises(DatasetError, match=r"no last nn.Linear or 1x1 convolution .*; use data with these classes, or"):
        retraining(Headless(), fresh).run()


def test_a_dense_head_grows(fresh: Data) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    images = fresh.train[0][:60]
    targets = (images[:, 0] > 0.3).astype(np.int64) + (images[:, 0] > 0.7)
    result = retraining(network, Data((images, targets))).run()
    assert result.kept_new
    assert network[2].weight.shape == (3, 8, 1, 1)


def test_the_prior_is_the_share_of_each_class_in_the_updates(fresh: Data) -> None:
    work = retraining(classifier(10), fresh)
    work.job.data = replace(work.job.data, reference=reference())
    shares = class_log_priors(work.job, 10).exp()
    assert float(shares.sum()) == pytest.approx(1.0)
    assert float(shares[8:].sum()) == pytest.approx(0.5)
    counts = class_counts(split_new_data(fresh, CPU).train)
    assert counts is not None
    assert counts[:8].sum() == 0
