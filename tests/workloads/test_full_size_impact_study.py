"""The impact study's workloads at full size: the ranges of its table 2, and one step of a tiny batch."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch

from onefold import Choice, Config, Int
from onefold.vocabulary.workload_reference import load

MODULE = "onefold.workloads.impact_study.full_size"
NAMES = {
    "paper-image-cnn-full": f"{MODULE}:FullImageCnn",
    "paper-resnet50": f"{MODULE}:Resnet50",
    "paper-text-cnn-full": f"{MODULE}:FullSentenceCnn",
    "paper-lstm-full": f"{MODULE}:FullSentimentLstm",
}
IMAGE_CNN, RESNET, TEXT_CNN, LSTM = NAMES.values()
TABLE = {
    IMAGE_CNN: dict(filters=(6, 12, 24, 48, 96, 192), kernel=(3, 5, 7, 9)),
    RESNET: dict(filters=(16, 32, 64, 128, 256, 512, 1024), kernel=(3, 5, 7, 9)),
    TEXT_CNN: dict(filters=(8, 16, 32, 64, 128, 256), kernel=(3, 5, 7, 9), embedding=(8, 16, 32, 64, 128, 256)),
    LSTM: dict(units=(16, 32, 64, 128, 256), embedding=(16, 32, 64, 128, 256)),
}
COMMON = dict(dropout=0.5, activation="relu", loss="crossentropy", optimizer="adam", lr=1e-3, batch_size=32)
DEFAULTS = {
    IMAGE_CNN: COMMON | dict(filters=12, kernel=3, pooling="max", batch_size=128, epochs=4),
    RESNET: COMMON | dict(filters=128, kernel=7, pooling="globalavg", lr=1e-2, epochs=25),
    TEXT_CNN: COMMON | dict(filters=128, kernel=7, embedding=128, pooling="globalmax", epochs=3),
    LSTM: COMMON | dict(units=64, embedding=128, activation="tanh", epochs=2),
}
SMALL = {
    IMAGE_CNN: dict(filters=6, kernel=9),
    RESNET: dict(filters=16, kernel=3),
    TEXT_CNN: dict(filters=8, kernel=9, embedding=8),
    LSTM: dict(units=16, embedding=16),
}


def inputs(reference: str) -> torch.Tensor:
    if reference in (TEXT_CNN, LSTM):
        return torch.randint(0, 10_000, (2, 256))
    return torch.randn((2, 1, 28, 28) if reference == IMAGE_CNN else (2, 3, 32, 32))


def test_they_are_bundled() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["onefold.workloads"].items() >= NAMES.items()


@pytest.mark.parametrize("reference", NAMES.values())
def test_the_space_is_that_of_the_table(reference: str) -> None:
    space = load(reference).space
    assert dict(space.default()) == DEFAULTS[reference]
    for name, options in TABLE[reference].items():
        parameter = space.parameters[name]
        assert isinstance(parameter, Choice)
        assert parameter.options == options
    epochs, batches = space.parameters["epochs"], space.parameters["batch_size"]
    assert isinstance(epochs, Int)
    assert isinstance(batches, Choice)
    assert (epochs.low, epochs.high) == (1, 100)
    smallest = (1, 2, 4, 8) if reference == IMAGE_CNN else ()
    assert batches.options == (*smallest, 16, 32, 64, 128, 256, 512)


@pytest.mark.parametrize("reference", NAMES.values())
def test_one_step_changes_every_weight(reference: str) -> None:
    workload = load(reference)
    config = Config(workload.space.default(), **SMALL[reference], dropout=0.0)
    workload.space.check(config)
    torch.manual_seed(0)
    network = workload.build(config)
    before = [weight.detach().clone() for weight in network.parameters()]
    loss = workload.step(
        network, (inputs(reference), torch.tensor([0, 1])), workload.optimizer(network, config), config
    )
    assert torch.isfinite(torch.as_tensor(float(loss)))
    assert all(not torch.equal(old, new) for old, new in zip(before, network.parameters()))


@pytest.mark.parametrize("reference", NAMES.values())
@pytest.mark.parametrize("end", [0, -1])
def test_the_ends_of_all_ranges_can_be_built(reference: str, end: int) -> None:
    workload = load(reference)
    ends = {
        name: parameter.options[end]
        for name, parameter in workload.space.parameters.items()
        if isinstance(parameter, Choice)
    }
    with torch.device("meta"):
        network = workload.build(Config(workload.space.default(), **ends)).eval()
        outputs = network(inputs(reference).to("meta"))
    assert outputs.shape == (2, 2 if reference in (TEXT_CNN, LSTM) else 10)


def test_with_512_filters_it_is_the_usual_resnet_50() -> None:
    workload = load(RESNET)
    with torch.device("meta"):
        network = workload.build(Config(workload.space.default(), filters=512, kernel=7))
    convolutions = sum(isinstance(layer, torch.nn.Conv2d) for layer in network.modules())
    assert convolutions == 49 + 4  # with the shortcuts of the first block of each stage
    body = sum(weight.numel() for layer in list(network)[:-1] for weight in layer.parameters())
    assert body == 23_508_032  # that of torchvision, without the dense layer
