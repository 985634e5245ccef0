"""The trainers of this package fulfill the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_contract import TrainerContract, trained

from onefold import Config
from onefold.testing.toy import Spirals
from onefold.training.calls import export_network
from onefold.training.function_trainer import FunctionTrainer, Run
from onefold.training.trainer import Trainer
from onefold.training.workload_trainer import WorkloadTrainer
from onefold.vocabulary.errors import WorkloadError

CONFIG = Config(width=8, layers=1, batch_size=32, optimizer="adam", lr=0.01)


class TestWorkloadTrainer(TrainerContract):
    config = CONFIG

    @pytest.fixture
    def open_trainer(self) -> Callable[[Path], Trainer]:
        return lambda folder: WorkloadTrainer(Spirals(), folder, exporter=export_network)

    def test_exports_the_weights_of_a_trial(self, trainer: WorkloadTrainer, tmp_path: Path) -> None:
        trained(trainer, self.assignment(2))
        weights = "trials/00000-rung0.pt"
        model = trainer.open_model(CONFIG, weights)
        exported = trainer.export(CONFIG, "best/model.onnx", weights)
        with torch.no_grad():
            expected = model.network(model.samples(4)[0])
        assert onnx_outputs(exported, model.samples(4)[0].numpy()) == pytest.approx(expected.numpy(), abs=1e-5)

    def test_exports_the_network_that_the_workload_serves(self, tmp_path: Path) -> None:
        class Probabilities(Spirals):
            def serving_network(self, model: Any, config: Config) -> Any:
                return torch.nn.Sequential(model, torch.nn.Softmax(dim=1))

            def finish_export(self, path: Path, config: Config, inputs: Callable[[int], list[Any]]) -> None:
                path.with_suffix(".txt").write_text(str(inputs(3)[0].shape))

        trainer = WorkloadTrainer(Probabilities(), tmp_path, exporter=export_network)
        path = trainer.export(CONFIG, "model.onnx")
        outputs = onnx_outputs(path, trainer.open_model(CONFIG).samples(4)[0].numpy())
        assert outputs.sum(axis=1) == pytest.approx(1.0)
        assert path.with_suffix(".txt").read_text() == "torch.Size([3, 2])"

    def test_needs_an_exporter_to_export(self, tmp_path: Path) -> None:
        with pytest.raises(WorkloadError, match="exporter"):
            WorkloadTrainer(Spirals(), tmp_path).export(CONFIG, "model.onnx")


class TestFunctionTrainer(TrainerContract):
    config = Config(x=2.0)

    @pytest.fixture
    def open_trainer(self) -> Callable[[Path], Trainer]:
        def function(config: Config, run: Run) -> Iterator[dict[str, float]]:
            for epoch in range(1, 1_000_000):
                yield {"loss": config.x / epoch + run.trial}

        return lambda folder: FunctionTrainer(function, folder)


def onnx_outputs(path: Path, inputs: Any) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    return session.run(None, {session.get_inputs()[0].name: inputs})[0]
