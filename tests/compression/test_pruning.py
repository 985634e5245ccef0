"""Zeros and channels taken out of real networks."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from onefold.compression import ChannelPruner, PruningMasks, gradual, sensitivity
from onefold.compression.magnitude_pruning import LEAST
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
def test_the_asked_share_of_the_whole_network_becomes_zero_and_no_layer_all_of_it(sparsity: float) -> None:
    network = lenet()
    masks = PruningMasks(network)
    masks.prune(sparsity)
    weights = [weight for weight in network.parameters() if weight.ndim >= 2]
    zeros, count = sum(int((w == 0).sum()) for w in weights), sum(w.numel() for w in weights)
    assert zeros / count == pytest.approx(sparsity, abs=2 / count)
    assert masks.sparsity == pytest.approx(zeros / count)
    assert all((weight != 0).float().mean() >= LEAST / 2 for weight in weights)


def test_the_smallest_go_first_and_pruned_ones_stay_zero_while_the_network_trains() -> None:
    network = lenet()
    before = copy.deepcopy(network)
    masks = PruningMasks(network)
    masks.prune(0.5)
    count = 0
    for old, new in zip(before.parameters(), network.parameters()):
        if old.ndim >= 2:
            kept, gone = new.detach()[new != 0].abs(), old.detach()[new == 0].abs()
            assert not len(gone) or gone.max() <= kept.min()
            count += old.numel()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        network(IMAGES).square().mean().backward()
        optimizer.step()
        masks.apply()
    assert sum(int((w == 0).sum()) for w in network.parameters() if w.ndim >= 2) == round(0.5 * count)


def test_layers_with_small_weights_keep_their_share_beside_one_with_large_ones() -> None:
    torch.manual_seed(0)
    network = torch.nn.ModuleList([torch.nn.Embedding(500, 16), torch.nn.Linear(16, 32)])  # of size 1, and of size 0.1
    PruningMasks(network).prune(0.8)
    dense = network[1].weight
    assert float((dense == 0).float().mean()) < 0.95


@given(target=st.floats(0, 0.99), steps=st.integers(1, 20))
def test_the_way_to_a_target_rises_and_ends_there(target: float, steps: int) -> None:
    way = [gradual(target, step, steps) for step in range(steps + 3)]
    assert way == sorted(way)
    assert way[0] == 0
    assert way[-1] == pytest.approx(target)


def test_layers_are_pruned_one_at_a_time_for_their_sensitivity() -> None:
    network = lenet()
    state = copy.deepcopy(network.state_dict())

    def zeros(trial: nn.Module) -> float:
        return sum(int((w == 0).sum()) for w in trial.parameters() if w.ndim >= 2)

    found = sensitivity(network, 0.5, zeros)
    sizes = {name: weight.numel() for name, weight in network.named_parameters() if weight.ndim >= 2}
    assert found == {name: round(0.5 * size) for name, size in sizes.items()}
    assert all(torch.equal(state[name], now) for name, now in network.state_dict().items())


def test_a_network_without_matrices_has_nothing_to_prune() -> None:
    with pytest.raises(ModelError, match="no weights that can be pruned"):
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
def test_channels_are_really_taken_out_of_the_ready_networks(workload: str, inputs: torch.Tensor) -> None:

    ready = load(workload)
    network = ready.build(ready.space.complete({}))
    before = sum(weight.numel() for weight in network.parameters())
    shape = network.eval()(inputs).shape
    ChannelPruner(network, [inputs], share=0.5).step()
    after = sum(weight.numel() for weight in network.parameters())
    assert after < before
    assert network(inputs).shape == shape
    network.train()
    network(inputs).square().mean().backward()


def test_a_network_that_reckons_with_its_channels_is_told_in_a_sentence() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(1, 8, 3), nn.Linear(8, 2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(images).view(-1, 8, 100).mean(dim=2))

    pruner = ChannelPruner(Counted(), [IMAGES], share=0.5)
    with pytest.raises(ModelError, match="channels"):
        pruner.step()


def test_a_network_without_layers_has_no_channels() -> None:
    with pytest.raises(ModelError, match="no channels to take out"):
        ChannelPruner(nn.Sequential(nn.Flatten(), nn.ReLU()), [IMAGES], share=0.5)
