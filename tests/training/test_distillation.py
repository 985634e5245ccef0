"""Distillation: the loss, how it gets into unmodified workloads, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from onefold.testing.toy import Lines, Spirals
from onefold.training.distillation import check_class_scores, distilled, soft_target_loss
from onefold.training.splits import open_splits
from onefold.training.trained_model import TrainedModel
from onefold.vocabulary.errors import ModelError, WorkloadError
from onefold.vocabulary.records import Config
from onefold.vocabulary.workload import Workload

CONFIG = Config(width=8, layers=1, lr=0.01, batch_size=32)
SEEDS, TEMPERATURES = st.integers(0, 999), st.floats(0.5, 20)


def scores(seed: int) -> torch.Tensor:
    return 3 * torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def opened(workload: Workload, config: Config = CONFIG) -> TrainedModel:
    torch.manual_seed(0)
    return TrainedModel(workload, config, workload.build(config), open_splits(workload, torch.device("cpu")))


@given(SEEDS, SEEDS, TEMPERATURES)
def test_the_loss_is_the_divergence_of_softened_probabilities(one: int, other: int, temperature: float) -> None:
    student, teacher = scores(one), scores(other)
    p, q = (functional.softmax(each / temperature, dim=1) for each in (teacher, student))
    expected = temperature**2 * float((p * (p / q).log()).sum(dim=1).mean())
    assert float(soft_target_loss(student, teacher, temperature)) == pytest.approx(expected, abs=1e-9)
    assert expected >= -1e-12


@given(SEEDS, TEMPERATURES, st.floats(-5, 5))
def test_scores_that_differ_by_a_constant_are_equal(seed: int, temperature: float, shift: float) -> None:
    student = scores(seed).requires_grad_()
    loss = soft_target_loss(student, scores(seed) + shift, temperature)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-9)
    assert student.grad is not None
    assert float(student.grad.abs().max()) == pytest.approx(0.0, abs=1e-9)


def trained(weight: float, workload: Workload) -> dict[str, Any]:
    torch.manual_seed(1)
    model = opened(workload)
    teacher = copy.deepcopy(model.network)
    student = copy.deepcopy(model.network)
    torch.nn.init.normal_(student[0].weight)  # type: ignore[index]
    optimizer = workload.optimizer(student, CONFIG)
    batches = list(model.splits.train.batches(32))
    with distilled(workload, student, teacher, weight) as taught:
        reported = taught.train_epoch(student.train(), batches, optimizer, CONFIG)
    assert not student._forward_pre_hooks
    with torch.no_grad():
        inputs = torch.cat([batch[0] for batch in batches])
        agreement = soft_target_loss(student.eval()(inputs), teacher.eval()(inputs))
    return {**student.state_dict(), "reported": reported, "agreement": float(agreement)}


def test_an_unmodified_workload_follows_the_teacher() -> None:
    workload = Spirals()
    alone, taught = trained(0.0, workload), trained(1.0, workload)
    assert taught["agreement"] < 0.5 * alone["agreement"]
    assert "loss" not in vars(workload)  # the workload itself is as before


def test_without_weight_the_training_is_that_of_the_workload() -> None:
    workload = Spirals()
    torch.manual_seed(1)
    model = opened(workload)
    student = copy.deepcopy(model.network)
    torch.nn.init.normal_(student[0].weight)  # type: ignore[index]
    workload.train_epoch(
        student.train(), list(model.splits.train.batches(32)), workload.optimizer(student, CONFIG), CONFIG
    )
    expected, actual = student.state_dict(), trained(0.0, workload)
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_a_workload_that_does_not_call_its_loss_is_refused() -> None:
    class OwnLoss(Spirals):
        def step(self, model: Any, batch: Any, optimizer: Any, config: Config) -> Any:
            *inputs, targets = batch
            loss = functional.cross_entropy(model(*inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

    with pytest.raises(WorkloadError, match=r"does not call self\.loss"):
        trained(0.5, OwnLoss())


def test_only_class_scores_can_be_distilled() -> None:
    check_class_scores(opened(Spirals()))
    with pytest.raises(ModelError, match=r"needs a classifier.*predictions \(2, 1\)"):
        check_class_scores(opened(Lines(), Config(lr=0.01)))
