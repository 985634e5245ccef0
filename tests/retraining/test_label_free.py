"""Adaptation without labels: better on shifted inputs, and never collapsed."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_controller import accuracy, convolutional, is_unchanged, reference_of, retraining, weights_of
from torch import Tensor, nn

from onefold import datasets, retrain
from onefold.arrays.missing_targets import UNKNOWN, MissingTargets
from onefold.baselines import shifted_datasets
from onefold.datasets.new_data import read_data
from onefold.retraining.evaluation import MAX_REFERENCE_LOSS, Evaluation
from onefold.retraining.label_free import DIVERSITY, METRIC, LabelFreeWorkload, normalization_weights
from onefold.retraining.options import RetrainingOptions
from onefold.vocabulary.errors import DatasetError, InputError
from onefold.vocabulary.records import Config
from onefold.vocabulary.workload import Data, Workload


@pytest.fixture(scope="session")
def normed() -> nn.Module:
    """A network with BatchNorms, trained on clean digits."""
    torch.manual_seed(0)
    network = convolutional()
    network[6] = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU())  # type: ignore[operator]
    images, labels = (torch.from_numpy(part) for part in datasets.digits().train)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(6):
        for places in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images[places]), labels[places]).backward()
            optimizer.step()
    return network.eval()


@pytest.fixture
def network(normed: nn.Module) -> nn.Module:
    return copy.deepcopy(normed)


@pytest.fixture(scope="session")
def fog() -> Data:
    return shifted_datasets.corrupted_digits("fog", 3)


def test_a_model_adapts_to_fog_without_labels(network: nn.Module, fog: Data) -> None:
    before, given = accuracy(network, fog.test), weights_of(network)
    learns = [weight.requires_grad for weight in network.parameters()]
    result = retraining(network, Data(fog.train[0])).run()
    assert result.kept_new
    assert result.metric == METRIC
    assert result.before < result.after <= math.log(10)
    assert accuracy(network, fog.test) > before + 0.1
    assert [weight.requires_grad for weight in network.parameters()] == learns
    adapted = {name for name, value in network.state_dict().items() if not torch.equal(value, given[name])}
    assert adapted
    assert all(name.startswith(("2.", "6.0.")) for name in adapted)  # the BatchNorms
    said = " ".join(result.notes)
    assert "has no labels" in said
    assert "accuracy on the new data is unknown" in said
    assert "nothing is known of the original data" in said


def test_the_original_data_bounds_the_adaptation(network: nn.Module, fog: Data) -> None:
    work = retraining(network, Data((fog.train[0],)))
    work.job.data = replace(work.job.data, reference=reference_of(datasets.digits()))
    result = work.run()
    assert result.reference_before is not None
    assert result.reference_after is not None
    assert result.reference_after >= result.reference_before - MAX_REFERENCE_LOSS
    assert "accuracy" in result.notes[-1]
    assert result.metric == METRIC


def test_inputs_without_content_change_nothing(network: nn.Module) -> None:
    given = weights_of(network)
    result = retraining(network, Data(np.zeros((200, 1, 8, 8), np.float32))).run()
    assert not result.kept_new
    assert is_unchanged(network, given)


def test_a_collapsed_model_is_not_better() -> None:
    diverse, collapsed = Evaluation(0.5, 1.8, True), Evaluation(1.5, 0.8, True, is_diverse=False)
    assert not collapsed.is_better_than(diverse)
    assert diverse.is_better_than(collapsed)


def predicting(logits: Tensor) -> Any:
    return LabelFreeWorkload(Workload()).evaluate(
        lambda x: x, [(logits, torch.full((len(logits),), UNKNOWN))], Config()
    )


def test_the_criterion_is_zero_for_one_class_and_for_undecided_predictions() -> None:
    confident = 100 * torch.eye(4)
    assert predicting(confident)[METRIC] == pytest.approx(math.log(4), abs=1e-4)
    assert predicting(confident)[DIVERSITY] == pytest.approx(math.log(4), abs=1e-4)
    assert predicting(confident[:1].expand(4, 4))[METRIC] == pytest.approx(0.0, abs=1e-4)
    assert predicting(torch.zeros(4, 4))[METRIC] == pytest.approx(0.0, abs=1e-4)
    assert predicting(100 * torch.eye(4)[:, :, None, None].expand(4, 4, 2, 2))["loss"] == pytest.approx(0.0, abs=1e-4)


def test_the_loss_leaves_uncertain_samples_out_and_uses_known_labels() -> None:
    loss, config = LabelFreeWorkload(Workload()).loss, Config()
    uncertain, certain = torch.zeros(2, 4), torch.tensor([[3.0, 0, 0, 0]]).expand(2, 4)
    unknown = torch.full((2,), UNKNOWN)
    assert float(loss(uncertain, unknown, config)) == 0.0
    assert float(loss(certain, unknown, config)) > 0.0
    assert float(loss(uncertain, torch.zeros(2, dtype=torch.long), config)) == pytest.approx(math.log(4))
    mixed = loss(torch.cat([uncertain, uncertain]), torch.tensor([0, 1, UNKNOWN, UNKNOWN]), config)
    assert float(mixed) == pytest.approx(math.log(4) / 2)


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "the model has no normalization layers with weights"),
        (nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 1)), "only a classifier"),
    ],
)
def test_models_that_cannot_be_adapted_are_an_error(network: nn.Module, fog: Data, why: str) -> None:
    given = weights_of(network)
    with pytest.raises(DatasetError, match=why) as error:
        retraining(network, Data(fog.train[0])).run()
    assert "\n" not in str(error.value)
    assert is_unchanged(network, given)


def test_layers_of_all_kinds_are_adapted(fog: Data) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10), nn.LayerNorm(10)
    )
    assert len(normalization_weights(network)) == 4
    assert retraining(network, Data(fog.train[0])).run().windows  # torch's GroupNorm crashes if it is channels-last


def test_a_folder_may_have_inputs_alone(tmp_path: Path, network: nn.Module, fog: Data) -> None:
    np.save(tmp_path / "inputs.npy", fog.train[0])
    with pytest.raises(DatasetError, match=r"has no targets.npy"):
        read_data(tmp_path)
    data = read_data(tmp_path, needs_targets=False)
    assert isinstance(data.train[-1], MissingTargets)
    assert data.train[-1][np.array([0, 5])].tolist() == [UNKNOWN, UNKNOWN]
    home = RetrainingOptions(home=tmp_path / "home")
    with pytest.raises((DatasetError, InputError)) as error:
        retrain(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), tmp_path, options=home)
    assert "the new data has no targets" in str(error.value)


def test_labels_in_one_split_alone_are_an_error(fog: Data, network: nn.Module) -> None:
    with pytest.raises(DatasetError, match="labels in one split alone"):
        retraining(network, Data(fog.train[0], fog.validation))
