"""Magnitude pruning and channel pruning of real networks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from onefold.compression.channel_pruning import ChannelPruner
from onefold.compression.magnitude_pruning import MIN_DENSITY, PruningMasks, layer_sensitivity, sparsity_schedule
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.workload_reference import load


def lenet() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 9, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


IMAGES = torch.rand(4, 1, 12, 12)


@settings(max_examples=30, deadline=None)
@given(sparsity=st.floats(0, 0.97))
def test_pruning_reaches_the_sparsity_and_empties_no_layer(sparsity: float) -> None:
    network = lenet()
    masks = PruningMasks(network)
    masks.prune(sparsity)
    weights = [weight for weight in network.parameters() if weight.ndim >= 2]
    zeros, count = sum(int((w == 0).sum()) for w in weights), sum(w.numel() for w in weights)
    assert zeros / count == pytest.approx(sparsity, abs=2 / count)
    assert masks.sparsity == pytest.approx(zeros / count)
    assert all((weight != 0).float().mean() >= MIN_DENSITY / 2 for weight in weights)


def test_the_smallest_weights_are_pruned_and_stay_zero_during_training() -> None:
    network = lenet()
    before = copy.deepcopy(network)
    masks = PruningMasks(network)
    masks.prune(0.5)
    count = 0
    for old, new in zip(before.parameters(), network.parameters()):
        if old.ndim >= 2:
            kept, pruned = new.detach()[new != 0].abs(), old.detach()[new == 0].abs()
            assert not len(pruned) or pruned.max() <= kept.min()
            count += old.numel()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        network(IMAGES).square().mean().backward()
        optimizer.step()
        masks.apply()
    assert sum(int((w == 0).sum()) for w in network.parameters() if w.ndim >= 2) == round(0.5 * count)


def test_lamp_scores_protect_layers_with_small_weights() -> None:
    torch.manual_seed(0)
    network = torch.nn.ModuleList(
        [torch.nn.Embedding(500, 16), torch.nn.Linear(16, 32)]
    )  # weights of magnitude 1 and 0.1
    PruningMasks(network).prune(0.8)
    dense = network[1].weight
    assert float((dense == 0).float().mean()) < 0.95


@given(target=st.floats(0, 0.99), steps=st.integers(1, 20))
def test_the_sparsity_schedule_rises_to_its_target(target: float, steps: int) -> None:
    schedule = [sparsity_schedule(target, step, steps) for step in range(steps + 3)]
    assert schedule == sorted(schedule)
    assert schedule[0] == 0
    assert schedule[-1] == pytest.approx(target)


def test_layer_sensitivity_prunes_one_layer_at_a_time() -> None:
    network = lenet()
    state = copy.deepcopy(network.state_dict())

    def zeros(pruned: nn.Module) -> float:
        return sum(int((w == 0).sum()) for w in pruned.parameters() if w.ndim >= 2)

    scores = layer_sensitivity(network, 0.5, zeros)
    sizes = {name: weight.numel() for name, weight in network.named_parameters() if weight.ndim >= 2}
    assert scores == {name: round(0.5 * size) for name, size in sizes.items()}
    assert all(torch.equal(state[name], now) for name, now in network.state_dict().items())


def test_a_network_without_matrices_cannot_be_pruned() -> None:
    with pytest.raises(ModelError, match="no weights to prune"):
        PruningMasks(nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()))


@pytest.mark.parametrize(
    ("workload", "inputs"),
    [
        ("fashion", torch.rand(2, 1, 28, 28)),
        ("cifar10", torch.rand(2, 3, 32, 32)),
        ("newsgroups-cnn", torch.randint(0, 100, (2, 50))),
        ("speech", torch.rand(2, 1, 8000)),
    ],
)
def test_channel_pruning_shrinks_the_ready_networks(workload: str, inputs: torch.Tensor) -> None:
    ready = load(workload)
    network = ready.build(ready.space.complete({}))
    before = sum(weight.numel() for weight in network.parameters())
    shape = network.eval()(inputs).shape
    ChannelPruner(network, [inputs], share=0.5).prune()
    after = sum(weight.numel() for weight in network.parameters())
    assert after < before
    assert network(inputs).shape == shape
    network.train()
    network(inputs).square().mean().backward()


def test_a_network_with_hard_coded_channel_counts_is_rejected() -> None:
    class HardCoded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(1, 8, 3), nn.Linear(8, 2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(images).view(-1, 8, 100).mean(dim=2))

    pruner = ChannelPruner(HardCoded(), [IMAGES], share=0.5)
    with pytest.raises(ModelError, match="channels"):
        pruner.prune()


def test_a_network_without_layers_has_no_channels_to_prune() -> None:
    with pytest.raises(ModelError, match="no channels to remove"):
        ChannelPruner(nn.Sequential(nn.Flatten(), nn.ReLU()), [IMAGES], share=0.5)


def test_every_head_of_a_network_keeps_its_outputs() -> None:
    @dataclass
    class Outputs:
        classes: torch.Tensor
        box: torch.Tensor

    class TwoHeads(nn.Module):
        def __init__(self, gather: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
            super().__init__()
            self.body, self.gather = nn.Linear(32, 24), gather
            self.classes, self.box = nn.Linear(24, 6), nn.Linear(24, 4)

        def forward(self, inputs: torch.Tensor) -> Any:
            features = self.body(inputs).relu()
            return self.gather(self.classes(features), self.box(features))

    for gather in (lambda *both: both, lambda *both: {"classes": both[0], "box": [both[1]]}, Outputs):
        network = TwoHeads(gather)
        ChannelPruner(network, [torch.randn(2, 32)], share=0.5).prune()
        sizes = [layer.weight.shape for layer in (network.body, network.classes, network.box)]
        assert sizes == [(12, 32), (6, 12), (4, 12)]


def test_the_dimensions_of_an_embedding_table_are_channels() -> None:
    class TextClassifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.convolution, self.head = nn.Embedding(100, 32), nn.Conv1d(32, 24, 3), nn.Linear(24, 5)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.head(self.convolution(self.words(words).transpose(1, 2)).relu().amax(dim=2))

    network = TextClassifier()
    ChannelPruner(network, [torch.randint(0, 100, (2, 16))], share=0.5).prune()
    assert network.words.weight.shape == (100, 16)
    assert network.convolution.weight.shape == (12, 16, 3)
