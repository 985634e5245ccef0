"""Splitting a network into stages that compute what the network computes."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_networks import CLASSES, KINDS, Batch, cross_entropy
from torch import Tensor, nn
from torch.nn import functional
from transformer_networks import PADDING, WORDS, BertClassifier, ClassifierOutput, EncoderNet

from onefold.retraining.stages import StagedNetwork, split_into_stages
from onefold.vocabulary.attention import without_fused_attention

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
    with torch.no_grad(), without_fused_attention():  # which calls no modules
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


def blocks_of(staged: StagedNetwork) -> list[str]:
    """Return the names of the stages inside a layer, and whether they take an input of the network too."""
    return [f"{stage.name}{'+' if stage.side_inputs else ''}" for stage in staged.stages if ".0." in stage.name]


def test_a_torch_encoder_is_cut_into_its_layers_and_each_attention_makes_its_mask() -> None:
    layer = [
        "encoder.layers.0.self_attn",
        "encoder.layers.0.norm1",
        "encoder.layers.0.linear1",
        "encoder.layers.0.norm2",
    ]
    assert blocks_of(staged_once("torch encoder")) == layer
    assert blocks_of(staged_once("masked torch encoder")) == [f"{layer[0]}+", *layer[1:]]


@pytest.mark.parametrize("is_masked", [False, True])
def test_causal_masks_are_made_by_each_layer(is_masked: bool) -> None:
    network = EncoderNet(is_masked=is_masked, is_causal=True)
    words = torch.randint(1, WORDS, (4, 6))
    words[:2, 4:] = PADDING
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Support for mismatched")
        staged = split_into_stages(network, [words])
        network.eval()
        torch.testing.assert_close(staged(words), network(words))
    assert len(blocks_of(staged)) == 4


def test_an_image_transformer_is_cut_between_attention_and_mlp() -> None:
    assert [stage.name for stage in staged_once("image transformer").stages] == [
        "patch_embed.proj", "cls_token", "pos_embed", "blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1",
        "blocks.1.norm2", "norm", "head",
    ]  # fmt: skip


def test_a_bert_is_cut_into_its_layers() -> None:
    names = [stage.name.removeprefix("network.encoder.layer.") for stage in staged_once("BERT").stages]
    assert [name for name in names if name.startswith("0")] == [
        "0.attention.query", "0.attention_norm", "0.intermediate", "0.norm",
    ]  # fmt: skip
    assert names[-2:] == ["network.pooler", "network.classifier"]


def test_records_keep_their_type_and_a_mask_may_be_an_input() -> None:
    network = BertClassifier().eval()
    words = torch.randint(1, WORDS, (4, 6))
    mask = (torch.arange(6) < torch.tensor([[6], [3], [5], [1]])).long()
    staged = split_into_stages(network, [words, mask])
    assert len(staged.stages) > 8
    result, expected = staged(words, mask), network(words, mask)
    assert isinstance(result, ClassifierOutput)
    assert list(result) == ["logits"]
    torch.testing.assert_close(result.logits, expected.logits)
    assert not torch.allclose(expected.logits, network(words).logits)


def test_intermediate_outputs_that_are_returned_prevent_cuts() -> None:
    network, words = BertClassifier(output_hidden_states=True).eval(), torch.randint(1, WORDS, (4, 6))
    staged = split_into_stages(network, [words])
    assert not any(stage.name.startswith("encoder.layer.1") for stage in staged.stages)
    assert all(torch.equal(one, other) for one, other in zip(staged(words).hidden_states, network(words).hidden_states))


Two = namedtuple("Two", ["logits", "auxiliary"])


@pytest.mark.parametrize(
    "returned",
    [
        lambda one, two: {"logits": one, "auxiliary": two},
        lambda one, two: (one, two),
        lambda one, two: [two, {"logits": one, "nothing": None}],
        Two,
        lambda one, two: OrderedDict(logits=one, auxiliary=two),
    ],
    ids=["dict", "tuple", "nested", "namedtuple", "OrderedDict"],
)
def test_the_last_stage_returns_what_the_network_does(returned: Callable[[Tensor, Tensor], Any]) -> None:
    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.middle, self.head, self.other = (nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: Tensor) -> Any:
            x = self.middle(self.body(x).relu()).relu()
            return returned(self.head(x), self.other(x))

    network = Returning()
    staged = split_into_stages(network, [X])
    assert [stage.name for stage in staged.stages] == ["body", "middle", "head"]
    result, expected = staged(X), network(X)
    assert type(result) is type(expected)
    torch.testing.assert_close(result, expected)


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


def test_an_input_enters_the_stage_that_needs_it() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other, self.head = nn.Linear(8, 8), nn.Linear(4, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.head((self.one(x) + self.other(y)).relu())

    network, inputs = Both(), (torch.randn(4, 8), torch.randn(4, 4))
    staged = split_into_stages(network, inputs)
    assert [(stage.name, stage.side_inputs) for stage in staged.stages] == [("one", ()), ("other", (1,)), ("head", ())]
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


class WithNumbers(Simple):
    def forward(self, x: Tensor) -> Tensor:
        rows, columns = x.shape
        scale = torch.ones(rows, columns, device=x.device) if columns > 4 else None
        for _ in range(columns // 8):
            x = self.body(x * scale) / len(scale[0])
        return self.head(x.reshape(rows, -1))


def test_control_flow_may_depend_on_sizes() -> None:
    network = WithNumbers()
    staged = split_into_stages(network, [X])
    assert [stage.name for stage in staged.stages] == ["body", "head"]
    assert torch.equal(staged(X[:3]), network(X[:3]))


class WithBatchSize(Simple):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)) if len(x) > 2 else self.head(x)


class WithItem(Simple):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)) if x.max().item() > 0 else self.head(x)


class WithSelection(Simple):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)) if len(x[x[:, 0] > 0]) else self.head(x)


class WithoutGradient(Simple):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.body(x)
        return self.head(x)


@pytest.mark.parametrize(
    "build", [WithBatchSize, WithItem, WithSelection, WithoutGradient], ids=lambda one: one.__name__
)
def test_what_a_graph_cannot_hold_is_one_stage(build: Callable[[], nn.Module]) -> None:
    network = build()
    assert [stage.module for stage in split_into_stages(network, [X]).stages] == [network]


def test_a_mask_that_is_filled_in_place_is_made_again() -> None:
    class Filled(Simple):
        def forward(self, x: Tensor) -> Tensor:
            mask = torch.zeros_like(x).masked_fill_(x > 0, -1.0)
            return self.head(self.body(x + mask).relu()) + mask[:, :CLASSES]

    network = Filled()
    staged = split_into_stages(network, [X])
    assert [(stage.name, stage.side_inputs) for stage in staged.stages] == [("body", ()), ("head", (0,))]
    assert torch.equal(staged(X), network(X))


def test_an_input_that_is_changed_in_place_is_not_used_again() -> None:
    class Changing(Simple):
        def forward(self, x: Tensor) -> Tensor:
            x.clamp_(min=0)
            return self.head(self.body(x) + x)

    network = Changing()
    staged = split_into_stages(network, [X.clone()])
    assert torch.equal(staged(X.clone()), network(X.clone()))


def test_random_numbers_of_the_shape_of_an_input_are_drawn_once() -> None:
    class Noisy(Simple):
        def forward(self, x: Tensor) -> Tensor:
            noise = torch.rand_like(x)
            return self.head(self.body(x + noise) - noise)

    network = Noisy()
    staged = split_into_stages(network, [X])
    torch.manual_seed(3)
    expected = network(X)
    torch.manual_seed(3)
    assert torch.equal(staged(X), expected)


def test_the_fast_path_setting_is_preserved() -> None:
    staged = split_into_stages(EncoderNet(is_nested=True), KINDS["torch encoder"].batch(4)[:-1])
    assert len(blocks_of(staged)) == 4
    assert torch.backends.mha.get_fastpath_enabled()


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
