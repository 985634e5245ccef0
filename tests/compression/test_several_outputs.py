"""Compression of networks with several outputs whose metrics read more than one of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from onefold import (
    Budget,
    Choice,
    CompressOptions,
    Data,
    Objective,
    ParallelismOptions,
    Recipe,
    Space,
    Workload,
    compress,
    deploy,
    tune,
)
from onefold.study.api import single_trial


@dataclass
class Outputs:
    """Two heads."""

    classes: torch.Tensor
    value: torch.Tensor


class TwoHeads(nn.Module):
    """A network that returns its heads as a tuple, a mapping or a dataclass."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.classes, self.value, self.kind = nn.Linear(16, 32), nn.Linear(32, 3), nn.Linear(32, 1), kind

    def forward(self, inputs: torch.Tensor) -> Any:
        features = self.body(inputs).relu()
        heads = (self.classes(features), self.value(features))
        return heads if self.kind == "tuple" else Outputs(*heads) if self.kind == "dataclass" else {
            "classes": heads[0], "aux": {"value": heads[1]}
        }  # fmt: skip


class TwoTasks(Workload):
    """Classification and regression at once."""

    space = Space(kind=Choice("tuple", "mapping", "dataclass", default="tuple"))
    objective = Objective(maximize="accuracy")

    def build(self, config: Any) -> nn.Module:
        return TwoHeads(str(config["kind"]))

    def data(self) -> Data:
        inputs = torch.randn(600, 16, generator=torch.Generator().manual_seed(0))
        targets = inputs[:, :3].argmax(dim=1)
        return Data((inputs[:400], targets[:400]), (inputs[400:500], targets[400:500]), (inputs[500:], targets[500:]))

    def heads(self, outputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(outputs, Outputs):
            return outputs.classes, outputs.value
        return outputs if isinstance(outputs, tuple) else (outputs["classes"], outputs["aux"]["value"])

    def loss(self, outputs: Any, targets: torch.Tensor, config: Any) -> Any:
        classes, value = self.heads(outputs)
        return nn.functional.cross_entropy(classes, targets) + (value[:, 0] - targets).square().mean()

    def metrics(self, outputs: Any, targets: torch.Tensor, config: Any) -> dict[str, float]:
        classes, value = self.heads(outputs)
        accuracy = (classes.argmax(dim=1) == targets).float().mean()
        return {"accuracy": float(accuracy), "mae": float((value[:, 0] - targets).abs().mean())}


@pytest.mark.parametrize("kind", ["tuple", "mapping", "dataclass"])
def test_every_head_is_scored_protected_and_served(
    kind: str, tmp_path: Path, calibrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "devices").symlink_to(calibrated)
    study = single_trial(TwoTasks(), {"kind": kind}, epochs=1, knobs="off", threads=1, name=kind)
    folder = study.run().save(tmp_path / "model")
    recipe, options = Recipe(channels=0.5, precision="int8"), CompressOptions(epochs=1, take="50% fewer channels, int8")
    result = compress(folder, recipe, workload=TwoTasks(), options=options, save=tmp_path / "deploy")
    assert all(set(variant.metrics) == {"accuracy", "mae"} for variant in (result.plain, *result.variants))
    classes, value = deploy.load(tmp_path / "deploy")(np.zeros((3, 16), "float32"))
    assert (classes.shape, value.shape) == ((3, 3), (3, 1))
    assert set(deploy.read(tmp_path / "deploy").model["test"]) == {"accuracy", "mae"}


class PredictsAux(TwoTasks):
    """The default metrics read another output than the first one."""

    loss, metrics = Workload.loss, Workload.metrics

    def predictions(self, outputs: Any) -> Any:
        return outputs["aux"]["classes"]

    def build(self, config: Any) -> nn.Module:
        return SwappedHeads()


class SwappedHeads(TwoHeads):
    """The head that is trained comes last."""

    def __init__(self) -> None:
        super().__init__("mapping")

    def forward(self, inputs: torch.Tensor) -> Any:
        features = self.body(inputs).relu()
        return {"logits": self.value(features), "aux": {"classes": self.classes(features)}}


def test_a_served_study_has_the_head_that_its_workload_predicts_with(
    tmp_path: Path, calibrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "devices").symlink_to(calibrated)
    result = tune(
        PredictsAux(), budget=Budget(trials=1, max_epochs=2), device="host", knobs="off", name="aux",
        parallelism=ParallelismOptions(1, 1, engine="inline"),
    )  # fmt: skip
    served = deploy.load(result.save(tmp_path / "deploy"))
    inputs, targets = PredictsAux().data().test
    logits, classes = served(inputs.numpy())
    assert (logits.shape, classes.shape) == ((100, 1), (100, 3))
    assert np.mean(classes.argmax(axis=1) == targets.numpy()) == pytest.approx(result.test["accuracy"])
