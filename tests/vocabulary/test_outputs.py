"""Predictions among the outputs of a network, and outputs of several batches as one."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from onefold.vocabulary.outputs import joined, names_in, parts, predictions_in, tensors_in, with_tensors
from onefold.vocabulary.records import Config
from onefold.vocabulary.workload import Workload

LOGITS, OTHER, SCALAR = torch.eye(3), torch.ones(3, 2), torch.tensor(0.5)
Pair = namedtuple("Pair", ["other", "logits"])


@dataclass
class Record:
    """Outputs as a dataclass."""

    loss: Tensor | None
    logits: Tensor
    others: tuple[Tensor, ...] = ()


STRUCTURES = {
    "dict": {"other": OTHER, "logits": LOGITS},
    "ordered": OrderedDict(other=OTHER, logits=LOGITS),
    "only": {"scores": LOGITS},
    "tuple": (LOGITS, OTHER),
    "list with a loss": [SCALAR, LOGITS],
    "named tuple": Pair(OTHER, LOGITS),
    "dataclass": Record(None, LOGITS, (OTHER,)),
    "dataclass with a loss": Record(SCALAR, LOGITS),
    "nested": ({"nothing": None}, {"hidden": OTHER, "logits": LOGITS}),
    "tensor": LOGITS,
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_predictions_are_called_logits_or_come_first(name: str) -> None:
    assert predictions_in(STRUCTURES[name]) is LOGITS


@pytest.mark.parametrize("outputs", [None, {}, (), {"name": "x"}, SCALAR, 3.0])
def test_outputs_without_predictions_are_returned_as_they_are(outputs: Any) -> None:
    assert predictions_in(outputs) is outputs


@pytest.mark.parametrize("name", STRUCTURES)
def test_tensors_are_put_back_where_they_were(name: str) -> None:
    outputs = STRUCTURES[name]
    again = with_tensors(outputs, [tensor + 1 for tensor in tensors_in(outputs)])
    assert type(again) is type(outputs)
    assert torch.equal(predictions_in(again), LOGITS + 1)
    assert len(set(names_in(outputs))) == len(tensors_in(outputs))


def test_tensors_are_named_by_their_keys() -> None:
    assert names_in(STRUCTURES["dataclass with a loss"]) == ["logits"]
    assert names_in(STRUCTURES["dataclass"]) == ["logits", "others.0"]
    assert names_in(STRUCTURES["nested"]) == ["output1.hidden", "output1.logits"]
    assert names_in(STRUCTURES["tuple"]) == ["output0", "output1"]
    assert names_in(LOGITS) == ["output"]


@pytest.mark.parametrize("name", STRUCTURES)
def test_joined_batches_have_the_structure_of_one(name: str) -> None:
    outputs = joined([STRUCTURES[name]] * 2, lambda tensors: torch.cat(tensors) if tensors[0].dim() else tensors[0])
    assert type(outputs) is type(STRUCTURES[name])
    assert torch.equal(predictions_in(outputs), torch.cat([LOGITS, LOGITS]))
    assert [key for key, _ in parts(outputs) or ()] == [key for key, _ in parts(STRUCTURES[name]) or ()]


BATCHES = [(LOGITS, torch.tensor([0, 1, 0])), (LOGITS[:2], torch.tensor([0, 1]))]


@pytest.mark.parametrize("wrap", [lambda x: {"logits": x}, lambda x: (x, x.sum()), lambda x: Record(x.sum(), x)])
def test_the_default_workload_trains_and_scores_any_outputs(wrap: Any) -> None:
    workload, config = Workload(), Config()
    plain = workload.evaluate(lambda x: x, BATCHES, config)
    assert workload.evaluate(wrap, BATCHES, config) == plain
    assert plain["accuracy"] == pytest.approx(0.8)
    inputs, targets = BATCHES[0]
    assert workload.loss(wrap(inputs), targets, config) == workload.loss(inputs, targets, config)


class TwoLosses(Workload):
    """A workload whose loss and metrics use all outputs."""

    def loss(self, outputs: Any, targets: Any, config: Config) -> Any:
        return super().loss(outputs, targets, config) + outputs["auxiliary"].mean()

    def metrics(self, outputs: Any, targets: Any, config: Config) -> dict[str, float]:
        rows = float(len(outputs["features"]))
        return {**super().metrics(outputs, targets, config), "rows": rows, "auxiliary": float(outputs["auxiliary"])}


def test_overridden_metrics_get_all_outputs_of_all_batches() -> None:
    def network(x: Tensor) -> dict[str, Tensor]:
        return {"features": x, "logits": x, "auxiliary": x.sum()}

    metrics = TwoLosses().evaluate(network, BATCHES, Config())
    assert metrics["rows"] == 5.0
    assert metrics["auxiliary"] == pytest.approx(2.5)  # the mean of the batches
    assert metrics["loss"] > Workload().evaluate(network, BATCHES, Config())["loss"]


def test_the_predictions_may_be_chosen() -> None:
    class Second(Workload):
        def predictions(self, outputs: Any) -> Any:
            return outputs[1]

    metrics = Second().evaluate(lambda x: (-x, x), BATCHES, Config())
    assert metrics["accuracy"] == pytest.approx(0.8)
