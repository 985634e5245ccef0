"""In-loop compression: trials are trained, scored and exported as variants."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from onefold import Budget, Objective, ParallelismOptions, Rejected, Study, deploy
from onefold.compression.in_loop import CompressedWorkload, recipe_of
from onefold.compression.onnx_weights import weight_sparsity
from onefold.vocabulary.records import Config
from onefold.vocabulary.variants import Recipe
from onefold.vocabulary.workload_reference import load

SMALL = {"compress_sparsity": 0.8, "compress_channels": 0.5, "compress_precision": "int8"}


@pytest.fixture(scope="module")
def digits() -> CompressedWorkload:
    workload = load("compressed+digits")
    assert isinstance(workload, CompressedWorkload)
    return workload


def test_the_recipe_is_part_of_the_search_space(digits: CompressedWorkload) -> None:
    group = digits.space.groups["compression"]
    assert {name: parameter.options for name, parameter in group.items()} == {  # type: ignore[union-attr]
        "compress_sparsity": (0.0, 0.5, 0.7, 0.8, 0.9),
        "compress_channels": (0.0, 0.25, 0.5),
        "compress_precision": ("fp32", "int8"),
    }
    config = digits.space.complete(SMALL)
    assert recipe_of(config) == Recipe(0.8, 0.5, "int8")
    assert recipe_of(digits.space.default()).is_plain
    assert recipe_of(Config(lr=0.1)).is_plain
    assert digits.name == load("digits").name


def test_a_trial_trains_as_the_variant_that_it_becomes(digits: CompressedWorkload) -> None:
    config, plain = digits.space.complete(SMALL), digits.space.complete({})
    torch.manual_seed(0)
    network = digits.build(config)
    assert sum(w.numel() for w in network.parameters()) < 0.6 * sum(w.numel() for w in digits.build(plain).parameters())
    data = digits.data()
    images, labels = (torch.as_tensor(part) for part in data.train)
    batches = list(zip(images.split(32), labels.split(32)))
    optimizer = digits.optimizer(network, config)
    sparsity = []
    for _ in range(4):
        network.train()
        digits.train_epoch(network, batches, optimizer, config)
        weights = [weight for weight in network.parameters() if weight.ndim > 1]
        sparsity.append(sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights))
    assert sparsity == pytest.approx([0.8 / 3, 1.6 / 3, 0.8, 0.8], abs=0.02)
    network.eval()
    with torch.no_grad():
        compressed = digits.evaluate(network, batches, config)
        uncompressed = digits.evaluate(digits.build(plain).eval(), batches, plain)
    assert compressed["accuracy"] > 0.5
    assert compressed["encoded_bytes"] < 0.2 * uncompressed["encoded_bytes"]
    assert all("parametrizations" not in name for name in network.state_dict())


def test_channel_pruning_of_recurrent_networks_is_rejected() -> None:
    workload = load("compressed+newsgroups-lstm")
    workload.check(workload.space.default())
    with pytest.raises(Rejected, match="recurrent layers"):
        workload.check(Config(workload.space.default(), compress_channels=0.5))


def test_the_workload_can_be_pickled(digits: CompressedWorkload) -> None:
    again = pickle.loads(pickle.dumps(digits))
    assert again.space.groups.keys() == digits.space.groups.keys()


def test_a_study_deploys_the_measured_variant(home: Path) -> None:
    study = Study(
        "compressed+digits",
        objective=Objective(maximize="accuracy"),
        budget=Budget(trials=2, max_epochs=2),
        device="host",
        home=home,
        parallelism=ParallelismOptions(engine="inline"),
        knobs="off",
    )
    result = study.run()
    assert result.metrics["encoded_bytes"] > 0
    assert result.metrics["latency_s"] > 0
    model = result.folder / "best" / deploy.MODEL
    recipe = recipe_of(result.config)
    assert weight_sparsity(model) >= recipe.sparsity - 0.02
    served = deploy.load(result.folder / "best")
    assert served(torch.zeros(2, 1, 8, 8).numpy()).shape == (2, 10)
