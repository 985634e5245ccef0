"""Every bundled workload has a valid space, builds and trains every configuration, and learns from real data."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch

from onefold import Config, Rejected, Workload
from onefold.vocabulary.workload_reference import bundled_workloads, load

LENGTHS = {"newsgroups": 256, "imdb": 256, "agnews": 64, "paper": 256}


def small_batch(name: str, workload: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """Return four samples of the right shape."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "fashion": (1, 28, 28), "cifar10": (3, 32, 32)}
    shapes |= {"cifar10-mobilenet": (3, 32, 32), "cifar10-vit": (3, 32, 32)}
    shapes |= {"speech": (1, 8000), "blood-cells": (3, 120, 160)}
    shapes |= {"paper-image-cnn": (1, 28, 28), "paper-resnet": (3, 32, 32)}
    if name in shapes:
        inputs = torch.randn((4, *shapes[name]), generator=generator)
    else:
        size = (4, LENGTHS[name.partition("-")[0]])
        inputs = torch.randint(0, workload.vocabulary, size, generator=generator)  # type: ignore[attr-defined]
    if name == "blood-cells":
        corner = torch.rand((4, 6, 2), generator=generator) * 0.7
        labels = torch.randint(-1, 3, (4, 6, 1), generator=generator)
        return inputs, torch.cat([labels, corner, corner + 0.2], dim=-1)
    return inputs, torch.randint(0, 2, (4,), generator=generator)


def valid_configs(workload: Workload, count: int) -> Iterator[Config]:
    """Yield the default and those of `count` random configurations that the workload accepts."""
    yield workload.space.default()
    for seed in range(count):
        config = workload.space.draw(random.Random(seed))
        try:
            workload.check(config)
        except Rejected:
            continue
        yield config


READY = bundled_workloads()
FULL_SIZE = ("paper-resnet50", "paper-image-cnn-full", "paper-text-cnn-full", "paper-lstm-full")  # tested by themselves


@pytest.mark.parametrize("name", READY)
def test_default_configuration_is_valid(name: str) -> None:
    workload = load(name)
    groups = workload.space.groups.keys()
    assert {"model", "training"} <= groups or list(groups) == ["architecture", "layers", "training"]
    assert len(workload.space) >= 6
    assert workload.space.has_defaults
    workload.space.check(workload.space.default())
    workload.check(workload.space.default())


@pytest.mark.parametrize("name", [name for name in READY if name not in FULL_SIZE])
def test_random_configurations_build_and_train(name: str) -> None:
    workload = load(name)
    batch = small_batch(name, workload)
    for config in valid_configs(workload, 10):
        torch.manual_seed(0)
        model = workload.build(config)
        loss = workload.step(model, batch, workload.optimizer(model, config), config)
        assert torch.isfinite(loss), config
        model.eval()
        with torch.no_grad():
            metrics = workload.evaluate(model, [batch], config)
        workload.objective.check(metrics)


@pytest.mark.parametrize("name", READY)
def test_most_random_configurations_are_valid(name: str) -> None:
    """A space that is mostly rejected wastes the draws of a search."""
    workload = load(name)
    assert len(list(valid_configs(workload, 100))) > 75


@pytest.mark.parametrize(
    ("name", "file", "limit", "epochs", "accuracy"),
    [
        ("fashion", "fashion_mnist.npz", 4_000, 2, 0.5),
        ("cifar10", "cifar10.npz", 2_000, 1, 0.15),
        ("newsgroups-lstm", "newsgroups20.jsonl.gz", 3_000, 2, 0.10),
        ("imdb-lstm", "imdb.jsonl.gz", 2_000, 2, 0.56),
        ("agnews-cnn", "ag_news.jsonl.gz", 4_000, 2, 0.5),
        ("onefold.workloads.text_transformer:AgNewsTransformer", "ag_news.jsonl.gz", 4_000, 2, 0.5),
        ("speech", "speech_commands.npz", None, 3, 0.2),
    ],
)
def test_training_beats_chance(
    name: str,
    file: str,
    limit: int | None,
    epochs: int,
    accuracy: float,
    require_file: Callable[[str], None],
    train: Callable[..., dict[str, float]],
) -> None:
    require_file(file)
    workload = load(name)
    metrics = train(workload, workload.space.default(), epochs, limit)
    assert metrics["accuracy"] > accuracy


def test_kernel_that_leaves_no_pixels_is_rejected() -> None:
    workload = load("fashion")
    with pytest.raises(Rejected, match="two convolutions with kernel 11 leave no pixels of a 28x28 image"):
        workload.check(Config(workload.space.default(), kernel=11))


def test_names_load_distinct_workloads() -> None:
    classes = [type(load(name)) for name in READY]
    assert len(set(classes)) == len(READY)


def test_vit_loads_weights_of_version_0_1() -> None:
    workload = load("cifar10-vit")
    model = workload.build(workload.space.default())
    renamed = {"qkv.": "asks.", "projection.": "answers.", "position_embedding": "places"}
    old = dict(model.state_dict())
    for new_name, old_name in renamed.items():
        old = {key.replace(new_name, old_name): value for key, value in old.items()}
    assert old.keys() != model.state_dict().keys()
    workload.build(workload.space.default()).load_state_dict(old)
