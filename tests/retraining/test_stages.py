"""Splitting a network into stages that compute what the network computes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_networks import CLASSES, KINDS, Batch, cross_entropy
from torch import Tensor, nn
from torch.nn import functional

from onefold.retraining.stages import StagedNetwork, split_into_stages

rates = st.floats(0, 1)


def staged_network(name: str) -> tuple[nn.Module, StagedNetwork, Batch]:
    kind = KINDS[name]
    network, batch = kind.network(), kind.batch(4)
    return network, split_into_stages(network, batch[:-1]), batch


@cache
def staged_once(name: str) -> StagedNetwork:
    return staged_network(name)[1]


def order_of_use(network: nn.Module, inputs: tuple[Tensor, ...]) -> list[nn.Parameter]:
    """Return the weights of leaf modules in the order in which a forward uses them."""
    result: list[nn.Parameter] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, _: result.extend(module.parameters(recurse=False)))
        for module in network.modules()
        if not list(module.children())
    ]
    with torch.no_grad():
        network.eval()(*inputs)
    for hook in hooks:
        hook.remove()
    return list(dict.fromkeys(result))


@pytest.mark.parametrize("name", KINDS)
def test_every_weight_is_in_one_stage_and_stages_follow_the_forward(name: str) -> None:
    network, staged, batch = staged_network(name)
    weights = [weight for stage in staged.stages for weight in stage.weights]
    assert len(weights) == len(set(weights))
    assert set(weights) == set(network.parameters())
    assert staged.layers == sum(stage.layers for stage in staged.stages)
    stage_of = {weight: at for at, stage in enumerate(staged.stages) for weight in stage.weights}
    stages_in_order = [stage_of[weight] for weight in order_of_use(network, batch[:-1])]
    assert stages_in_order == sorted(stages_in_order)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_stages_have_the_outputs_and_gradients_of_the_network(name: str, training: bool) -> None:
    network, staged, (*inputs, targets) = staged_network(name)
    twin = copy.deepcopy(network).train(training)
    network.train(training)
    torch.manual_seed(7)
    expected = twin(*inputs)
    cross_entropy(expected, targets).backward()
    torch.manual_seed(7)
    result = staged(*inputs)
    cross_entropy(result, targets).backward()
    assert torch.equal(result, expected)
    for weight, same in zip(network.parameters(), twin.parameters()):
        assert (weight.grad is None) == (same.grad is None)
        assert weight.grad is None or torch.equal(weight.grad, same.grad)
    assert all(torch.equal(item, other) for item, other in zip(network.buffers(), twin.buffers()))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_splitting_preserves_the_state_of_the_network(name: str, training: bool) -> None:
    network, batch = KINDS[name].network().train(training), KINDS[name].batch(4)
    first = next(network.parameters())
    first.requires_grad_(False)
    first.grad = torch.ones_like(first)
    state = copy.deepcopy(network.state_dict())
    random = torch.get_rng_state()
    attributes = {path: set(vars(module)) for path, module in network.named_modules()}
    split_into_stages(network, batch[:-1])
    assert torch.equal(random, torch.get_rng_state())
    assert list(state) == list(network.state_dict())
    assert all(torch.equal(value, network.state_dict()[key]) for key, value in state.items())
    assert all(module.training == training for module in network.modules())
    assert [weight.requires_grad for weight in network.parameters()] == [
        weight is not first for weight in network.parameters()
    ]
    assert torch.equal(first.grad, torch.ones_like(first))
    assert {path: set(vars(module)) for path, module in network.named_modules()} == attributes


@given(name=st.sampled_from(sorted(KINDS)), some=st.lists(rates, min_size=2, max_size=6))
def test_frozen_stages_grow_with_the_rate_but_never_cover_everything(name: str, some: list[float]) -> None:
    staged = staged_once(name)
    frozen = [staged.frozen_stages(rate) for rate in sorted(some)]
    assert frozen == sorted(frozen)
    for rate, count in zip(sorted(some), frozen):
        assert sum(stage.layers for stage in staged.stages[:count]) <= rate * staged.layers + 1e-6
        assert any(stage.weights for stage in staged.stages[count:])
    assert staged.frozen_stages(0.0) == 0
    assert sum(bool(stage.weights) for stage in staged.stages[staged.frozen_stages(1.0) :]) == 1


def test_a_residual_network_is_cut_between_blocks() -> None:
    assert [stage.name for stage in staged_once("residual").stages] == [
        "stem.0", "stem.1", "blocks.0.conv1", "blocks.1.conv1", "blocks.2.conv1", "head",
    ]  # fmt: skip


def test_a_transformer_is_cut_between_attention_and_mlp() -> None:
    names = [stage.name for stage in staged_once("transformer").stages]
    assert [name for name in names if name.startswith("blocks")] == [
        "blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.1.norm2",
    ]  # fmt: skip
    assert "positions" in names  # a weight that belongs to no layer


def test_untraceable_modules_stay_in_one_piece() -> None:
    assert [stage.name for stage in staged_once("deciding").stages] == ["network"]
    assert staged_once("deciding").stages[0].module is staged_once("deciding").network
    assert [stage.name for stage in staged_once("partly deciding").stages] == ["first", "deciding", "second", "head"]
    assert [stage.layers for stage in staged_once("partly deciding").stages] == [1, 2, 1, 1]


def test_leading_layers_without_weights_may_be_frozen_at_any_rate() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(8, 8), nn.Linear(8, CLASSES))
    staged = split_into_stages(network, [torch.randn(4, 2, 4)])
    assert not any(stage.weights for stage in staged.stages[: staged.frozen_stages(0.0)])
    assert any(stage.weights for stage in staged.stages[staged.frozen_stages(1.0) :])


def test_several_inputs_enter_the_first_stage() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other, self.head = nn.Linear(8, 8), nn.Linear(4, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.head((self.one(x) + self.other(y)).relu())

    network, inputs = Both(), (torch.randn(4, 8), torch.randn(4, 4))
    staged = split_into_stages(network, inputs)
    assert len(staged.stages) == 2
    assert torch.equal(staged(*inputs), network(*inputs))


def test_a_shared_layer_is_in_both_stages() -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.shared(self.shared(x).relu()).relu())

    network, x = Again(), torch.randn(4, 8)
    staged = split_into_stages(network, [x])
    assert [stage.name for stage in staged.stages] == ["shared", "shared", "head"]
    assert torch.equal(staged(x), network(x))


# Regressions


class Simple(nn.Module):
    """Two layers, and something between or after them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.register_buffer("prior", torch.zeros(CLASSES))


class WithMask(Simple):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.body(x)
        return self.head(x if mask is None else x * mask)


class WithDefault(Simple):
    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        return self.head(scale * self.body(x))


class WithUnused(Simple):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.head(self.body(x))


class WithPrior(Simple):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)) + self.prior


class WithConstant(Simple):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x) + torch.arange(8.0))


class WithRandomness(Simple):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x) + torch.rand(8))


X = torch.randn(4, 8)


def test_functional_dropout_does_not_prevent_splitting() -> None:
    names = [stage.name for stage in staged_once("dropping transformer").stages]
    assert {"embedding", "positions", "norm", "head"} < set(names)
    assert {name.split(".")[1] for name in names if name.startswith("blocks")} == {"0", "1"}


def test_modules_keep_individual_training_modes() -> None:
    network = KINDS["residual"].network().train()
    network.stem.eval()
    before = [module.training for module in network.modules()]
    split_into_stages(network, KINDS["residual"].batch(4)[:-1])
    assert [module.training for module in network.modules()] == before


@pytest.mark.parametrize(
    ("build", "inputs"), [(WithMask, (X,)), (WithDefault, (X,)), (WithUnused, (X, X))], ids=lambda one: ""
)
def test_default_and_unused_arguments(build: Callable[[], nn.Module], inputs: tuple[Tensor, ...]) -> None:
    network = build()
    staged = split_into_stages(network, inputs)
    assert torch.equal(staged(*inputs), network(*inputs))


def test_something_is_trainable_at_a_rate_of_one_if_a_buffer_comes_last() -> None:
    network = WithPrior()
    staged = split_into_stages(network, [X])
    assert staged.layers == 2
    assert any(stage.weights for stage in staged.stages[staged.frozen_stages(1.0) :])


def test_constants_of_a_forward_add_no_attributes() -> None:
    network = WithConstant()
    before = set(vars(network))
    split_into_stages(network, [X])
    assert set(vars(network)) == before


def test_tracing_a_random_forward_preserves_the_rng_state() -> None:
    network, before = WithRandomness(), torch.get_rng_state()
    split_into_stages(network, [X])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_random_forward_is_one_stage() -> None:
    assert len(split_into_stages(WithRandomness(), [X]).stages) == 1  # a traced random number would be a constant


def test_an_unannounced_inplace_operation_is_computed_correctly() -> None:
    class Silent(Simple):
        def forward(self, x: Tensor) -> Tensor:
            result = self.body(x)
            functional.relu(result, inplace=True)
            return self.head(result)

    network = Silent()
    assert torch.equal(split_into_stages(network, [X])(X), network(X))
