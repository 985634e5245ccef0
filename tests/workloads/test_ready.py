"""Every ready workload: its space holds, every configuration builds and steps, and it learns from real data."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch

from onefold import Config, Rejected, Workload
from onefold.vocabulary.workload_reference import load, ready_workloads

LENGTHS = {"newsgroups": 256, "imdb": 256, "agnews": 64, "paper": 256}


def small_batch(name: str, workload: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """Four samples of the right shape."""
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
        kinds = torch.randint(-1, 3, (4, 6, 1), generator=generator)
        return inputs, torch.cat([kinds, corner, corner + 0.2], dim=-1)
    return inputs, torch.randint(0, 2, (4,), generator=generator)


def draws(workload: Workload, wanted: int) -> Iterator[Config]:
    """The default and configurations at random, none of which the workload rejects."""
    yield workload.space.default()
    for seed in range(wanted):
        config = workload.space.draw(random.Random(seed))
        try:
            workload.check(config)
        except Rejected:
            continue
        yield config


READY = ready_workloads()


@pytest.mark.parametrize("name", READY)
def test_the_space_has_a_default_that_is_not_rejected(name: str) -> None:
    workload = load(name)
    groups = workload.space.groups.keys()
    assert {"model", "training"} <= groups or list(groups) == ["architecture", "layers", "training"]
    assert len(workload.space) >= 6
    assert workload.space.has_defaults
    workload.space.check(workload.space.default())
    workload.check(workload.space.default())


@pytest.mark.parametrize("name", READY)
def test_every_configuration_builds_and_steps(name: str) -> None:
    workload = load(name)
    batch = small_batch(name, workload)
    tried = 0
    for config in draws(workload, 20):
        torch.manual_seed(0)
        model = workload.build(config)
        loss = workload.step(model, batch, workload.optimizer(model, config), config)
        assert torch.isfinite(loss), config
        model.eval()
        with torch.no_grad():
            metrics = workload.evaluate(model, [batch], config)
        workload.objective.check(metrics)
        tried += 1
    assert tried > 10


@pytest.mark.parametrize("name", READY)
def test_most_of_the_space_is_of_use(name: str) -> None:
    """A search that is refused all the time wastes its draws."""
    workload = load(name)
    assert len(list(draws(workload, 100))) > 75


@pytest.mark.parametrize(
    ("name", "file", "most", "epochs", "accuracy"),
    [
        ("fashion", "fashion_mnist.npz", 4_000, 2, 0.5),
        ("cifar10", "cifar10.npz", 2_000, 1, 0.15),
        ("newsgroups-lstm", "newsgroups20.jsonl.gz", 3_000, 2, 0.10),
        ("imdb-lstm", "imdb.jsonl.gz", 2_000, 2, 0.56),
        ("agnews-cnn", "ag_news.jsonl.gz", 4_000, 2, 0.5),
        ("speech", "speech_commands.npz", None, 3, 0.2),
    ],
)
def test_each_network_learns(
    name: str,
    file: str,
    most: int | None,
    epochs: int,
    accuracy: float,
    needs: Callable[[str], None],
    train: Callable[..., dict[str, float]],
) -> None:
    needs(file)
    workload = load(name)
    scored = train(workload, workload.space.default(), epochs, most)
    assert scored["accuracy"] > accuracy


def test_a_kernel_must_leave_something_of_the_picture() -> None:
    workload = load("fashion")
    with pytest.raises(Rejected, match="two kernels of 11 leave nothing of a picture of 28 pixels"):
        workload.check(Config(workload.space.default(), kernel=11))


def test_every_name_leads_to_a_workload_of_its_own() -> None:
    kinds = [type(load(name)) for name in READY]
    assert len(set(kinds)) == len(READY)
