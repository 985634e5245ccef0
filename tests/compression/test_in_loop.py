"""Trials that are variants: the recipe is searched along with everything else."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from onefold import Budget, Objective, ParallelismOptions, Study, deploy
from onefold.compression.in_loop import CompressedWorkload, recipe_of
from onefold.compression.quantization import weight_sparsity
from onefold.vocabulary.records import Config
from onefold.vocabulary.variants import Recipe
from onefold.vocabulary.workload_reference import load

SMALL = {"compress_sparsity": 0.8, "compress_channels": 0.5, "compress_precision": "int8"}


@pytest.fixture(scope="module")
def digits() -> CompressedWorkload:
    workload = load("compressed+digits")
    assert isinstance(workload, CompressedWorkload)
    return workload


def test_the_space_has_the_recipe_in_it(digits: CompressedWorkload) -> None:
    assert set(digits.space.groups["compression"]) == set(SMALL)
    config = digits.space.complete(SMALL)
    assert recipe_of(config) == Recipe(0.8, 0.5, "int8")
    assert recipe_of(Config(lr=0.1)).is_plain
    assert digits.name == load("digits").name


def test_a_trial_trains_as_the_variant_that_it_will_be(digits: CompressedWorkload) -> None:
    config, plain = digits.space.complete(SMALL), digits.space.complete({})
    torch.manual_seed(0)
    network = digits.build(config)
    assert sum(w.numel() for w in network.parameters()) < 0.6 * sum(w.numel() for w in digits.build(plain).parameters())
    data = digits.data()
    images, labels = (torch.as_tensor(part) for part in data.train)
    batches = list(zip(images.split(32), labels.split(32)))
    optimizer = digits.optimizer(network, config)
    shares = []
    for _ in range(4):
        network.train()
        digits.train_epoch(network, batches, optimizer, config)
        weights = [weight for weight in network.parameters() if weight.ndim > 1]
        shares.append(sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights))
    assert shares == pytest.approx([0.8 / 3, 1.6 / 3, 0.8, 0.8], abs=0.02)
    network.eval()
    with torch.no_grad():
        found = digits.evaluate(network, batches, config)
        exact = digits.evaluate(digits.build(plain).eval(), batches, plain)
    assert found["accuracy"] > 0.5
    assert found["encoded_bytes"] < 0.2 * exact["encoded_bytes"]
    assert all("parametrizations" not in name for name in network.state_dict())


def test_it_travels_to_workers(digits: CompressedWorkload) -> None:
    again = pickle.loads(pickle.dumps(digits))
    assert again.space.groups.keys() == digits.space.groups.keys()


def test_a_study_hands_over_a_variant_that_was_measured(tmp_path: Path) -> None:
    study = Study(
        "compressed+digits",
        objective=Objective(maximize="accuracy"),
        budget=Budget(trials=3, max_epochs=4),
        device="host",
        home=tmp_path,
        parallelism=ParallelismOptions(parallel=1),
    )
    result = study.run()
    assert result.metrics["encoded_bytes"] > 0
    assert result.metrics["latency_s"] > 0
    model = result.folder / "best" / deploy.MODEL
    recipe = recipe_of(result.config)
    assert weight_sparsity(model) >= recipe.sparsity - 0.02
    served = deploy.load(result.folder / "best")
    assert served(torch.zeros(2, 1, 8, 8).numpy()).shape == (2, 10)
