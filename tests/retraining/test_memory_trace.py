"""The trace of a few samples predicts the saved activations of a full step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_networks import CLASSES, KINDS, Batch, cross_entropy
from torch import Tensor, nn
from torch.nn import functional
from transformer_networks import BertClassifier

from onefold.retraining.batch_cost import BatchCost
from onefold.retraining.memory_trace import USED_WORKSPACE, LossFunction, StepTrace, trace_step
from onefold.retraining.stages import split_into_stages

SIZE = 48


def traced(name: str) -> StepTrace:
    kind = KINDS[name]
    network, few = kind.network(), kind.batch(4)
    return trace_step(split_into_stages(network, few[:-1]), few, cross_entropy)


def saved_by(network: nn.Module, batch: Batch, loss_of: LossFunction = cross_entropy) -> int:
    """Return the bytes that a full forward saves for the backward pass, without weights and samples."""
    there = {item.untyped_storage().data_ptr() for item in (*network.parameters(), *network.buffers(), *batch)}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = loss_of(network.train()(*batch[:-1]), batch[-1])
    result = sum(tensor.untyped_storage().nbytes() for index, tensor in kept.items() if index not in there)
    del loss  # until here no saved storage could be reused
    return result


def saved_in(trace: StepTrace, size: int) -> float:
    """Return the same from a trace: saved activations, and outputs that only the next stage saves."""
    handed = sum(
        item.output.at(size)
        for item, following in zip(trace.stages, trace.stages[1:])
        if following.keeps_input and not item.keeps_output
    )
    return sum(stage.saved.at(size) for stage in trace.stages) + handed


@pytest.mark.parametrize("name", KINDS)
def test_saved_bytes_of_all_stages_are_those_of_a_full_forward(name: str) -> None:
    network, batch = KINDS[name].network(), KINDS[name].batch(SIZE)
    allocated = saved_by(network, batch)
    if name == "recurrent":  # of whose workspace a part is never written
        assert USED_WORKSPACE * allocated <= saved_in(traced(name), SIZE) < 0.95 * allocated
    else:
        assert saved_in(traced(name), SIZE) == pytest.approx(allocated, rel=0.03)


def test_a_record_of_outputs_costs_what_its_tensors_do() -> None:
    torch.manual_seed(0)
    network, few, batch = BertClassifier(), KINDS["BERT"].batch(4), KINDS["BERT"].batch(SIZE)

    def loss_of(outputs: Any, targets: Tensor) -> Tensor:
        return cross_entropy(outputs.logits, targets)

    trace = trace_step(split_into_stages(network, few[:-1]), few, loss_of)
    assert len(trace.stages) > 8
    assert saved_in(trace, SIZE) == pytest.approx(saved_by(network, batch, loss_of), rel=0.03)


@pytest.mark.parametrize("name", KINDS)
def test_tracing_preserves_the_state_of_the_network(name: str) -> None:
    kind = KINDS[name]
    network, few = kind.network().eval(), kind.batch(4)
    staged = split_into_stages(network, few[:-1])
    first, *others = network.parameters()
    first.requires_grad_(False)
    others[0].grad = torch.ones_like(others[0])
    state, random = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    trace_step(staged, few, cross_entropy)
    assert all(torch.equal(value, network.state_dict()[key]) for key, value in state.items())
    assert torch.equal(random, torch.get_rng_state())
    assert not any(module.training for module in network.modules())
    assert not first.requires_grad
    assert all(weight.requires_grad for weight in others)
    assert torch.equal(others[0].grad, torch.ones_like(others[0]))
    assert all(weight.grad is None for weight in (first, *others[1:]))


def test_modules_keep_individual_training_modes() -> None:
    network, few = KINDS["residual"].network(), KINDS["residual"].batch(4)
    staged = split_into_stages(network, few[:-1])
    network.train()
    network.stem.eval()
    before = [module.training for module in network.modules()]
    trace_step(staged, few, cross_entropy)
    assert [module.training for module in network.modules()] == before


def test_every_stage_and_the_loss_are_traced() -> None:
    kind = KINDS["residual"]
    network, (images, targets) = kind.network(), kind.batch(4)
    staged = split_into_stages(network, (images,))
    trace = trace_step(staged, (images, targets), cross_entropy)
    assert len(trace.stages) == len(staged.stages) + 1
    assert trace.batch == BatchCost(0.0, 3 * 8 * 8 * 4 + 8)
    sizes = [stage.output.at(SIZE) for stage in trace.stages]
    assert sizes == [*[SIZE * 8 * 8 * 8 * 4.0] * 4, SIZE * 8 * 4.0, SIZE * CLASSES * 4.0, 4.0]


def test_inference_needs_no_more_memory_than_training() -> None:
    for name in KINDS:
        for stage in traced(name).stages:
            assert stage.forward.peak(SIZE) <= stage.training.peak(SIZE)
            assert stage.saved.at(SIZE) <= stage.training.peak(SIZE)


costs = st.builds(BatchCost, st.floats(0, 1e9), st.floats(0, 1e9))


@given(one=costs, other=costs, size=st.integers(1, 512))
def test_costs_add_up_for_every_batch_size(one: BatchCost, other: BatchCost, size: int) -> None:
    assert (one + other).at(size) == pytest.approx(one.at(size) + other.at(size))
    assert one.at(size) <= one.at(size + 1)


# Regressions


def test_a_network_with_two_outputs_can_be_traced() -> None:
    class Twofold(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.one, self.other = nn.Linear(8, 8), nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            result = self.body(x)
            return self.one(result), self.other(result)

    def both(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        return cross_entropy(outputs[0], targets) + cross_entropy(outputs[1], targets)

    network, few = Twofold(), KINDS["perceptron"].batch(4)
    trace = trace_step(split_into_stages(network, few[:-1]), few, both)
    kept = saved_by(network, KINDS["perceptron"].batch(SIZE), both)
    assert saved_in(trace, SIZE) == pytest.approx(kept, rel=0.03)


@pytest.mark.parametrize("place", [0, 1])
def test_a_stage_may_begin_with_an_inplace_activation(place: int) -> None:
    class Eager(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            active = functional.relu(x, inplace=True)
            return self.layer(active) + x

    network = nn.Sequential(nn.Linear(8, 8), Eager(), nn.Linear(8, CLASSES))
    few = KINDS["perceptron"].batch(4)
    trace_step(split_into_stages(network[place:], few[:-1]), few, cross_entropy)
