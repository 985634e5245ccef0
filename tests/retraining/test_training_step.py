"""Accumulation and checkpointing do not change gradients; freezing stops them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_networks import CLASSES, KINDS, Batch, Kind, cross_entropy, cut
from torch import Tensor, nn
from torch.nn import functional
from transformer_networks import BertClassifier, ClassifierOutput

from onefold.retraining.memory_trace import trace_step
from onefold.retraining.stages import split_into_stages
from onefold.retraining.training_step import SMALL_BATCH, Stepper
from onefold.vocabulary.retraining import RetrainingPlan

WITHOUT_BATCH_NORM = ("transformer", "recurrent", "deciding", "partly deciding", "perceptron")


def stepper_of(network: nn.Module, few: Batch, **options: bool) -> Stepper:
    staged = split_into_stages(network, few[:-1])
    return Stepper(staged, trace_step(staged, few, cross_entropy), cross_entropy, **options)


def stepped(
    kind: Kind, plan: RetrainingPlan, batches: Sequence[Batch], **options: bool
) -> tuple[nn.Module, dict[str, Any], float]:
    """Return a network after an update with lr 0, the accumulated gradients, and the loss."""
    network = kind.network()
    stepper = stepper_of(network, kind.batch(4), **options)
    stepper.use_plan(plan)
    gradients: dict[str, Tensor] = {}
    stepper.optimizer.step = lambda weights, lr: gradients.update(  # type: ignore[union-attr,method-assign]
        {name: weight.grad.clone() for name, weight in network.named_parameters() if weight.grad is not None}
    )
    torch.manual_seed(5)
    loss = stepper.update(batches, sum(len(batch[-1]) for batch in batches), 0.0)
    return network, gradients, loss


def are_close(one: dict[str, Tensor], other: dict[str, Tensor], within: float = 1e-5) -> None:
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        torch.testing.assert_close(
            gradient, other[name], atol=within, rtol=within, msg=lambda text, n=name: f"{n} {text}"
        )


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("name", WITHOUT_BATCH_NORM)
def test_accumulated_batches_have_the_gradients_of_one_large_batch(name: str, size: int) -> None:
    kind = KINDS[name]
    batch = kind.batch(8)
    network = kind.network()
    loss = cross_entropy(network(*batch[:-1]), batch[-1])
    loss.backward()
    whole = {key: weight.grad for key, weight in network.named_parameters() if weight.grad is not None}
    _, parts, mean = stepped(kind, RetrainingPlan(size, 4), list(cut(batch, size)))  # 3: the last one has two samples
    are_close(parts, whole)
    assert mean == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("segments", [2, 3, 9])
@pytest.mark.parametrize("name", KINDS)
def test_segments_change_neither_gradients_nor_statistics(name: str, segments: int) -> None:
    kind = KINDS[name]
    batches = [kind.batch(SMALL_BATCH, seed) for seed in (1, 2)]
    plain, without, loss = stepped(kind, RetrainingPlan(SMALL_BATCH, 2), batches)
    again, gradients, same = stepped(kind, RetrainingPlan(SMALL_BATCH, 2, segments=segments), batches)
    are_close(gradients, without, 1e-6)
    assert same == loss
    for item, other in zip(plain.buffers(), again.buffers()):
        assert torch.equal(item, other)


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("returns_states", [False, True])
def test_records_of_outputs_are_trained_like_tensors(segments: int, returns_states: bool) -> None:
    network = BertClassifier(output_hidden_states=returns_states)
    few, batch = KINDS["BERT"].batch(4), KINDS["BERT"].batch(8)

    def loss_of(outputs: Any, targets: Tensor) -> Tensor:
        assert isinstance(outputs, ClassifierOutput)
        return cross_entropy(outputs.logits, targets)

    staged = split_into_stages(network, few[:-1])
    stepper = Stepper(staged, trace_step(staged, few, loss_of), loss_of)
    stepper.use_plan(RetrainingPlan(8, segments=segments))
    for module in network.modules():  # the recomputation draws dropout in another order than a plain step
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    cross_entropy(network(*batch[:-1]).logits, batch[-1]).backward()
    plain = {name: weight.grad.clone() for name, weight in network.named_parameters() if weight.grad is not None}
    stepper.drop_gradients()
    found: dict[str, Tensor] = {}
    stepper.optimizer.step = lambda weights, lr: found.update(  # type: ignore[union-attr,method-assign]
        {name: weight.grad.clone() for name, weight in network.named_parameters() if weight.grad is not None}
    )
    stepper.update([batch], 8, 0.0)
    are_close(found, plain)


def test_batch_norm_counts_every_batch_once() -> None:
    batches = [KINDS["residual"].batch(SMALL_BATCH, seed) for seed in range(3)]
    network, *_ = stepped(KINDS["residual"], RetrainingPlan(SMALL_BATCH, 3, segments=3), batches)
    assert [int(norm.num_batches_tracked) for norm in norms(network)] == [3] * 7


def test_dropout_is_replayed_on_recomputation() -> None:
    kind = KINDS["dropping"]
    _, some, _ = stepped(kind, RetrainingPlan(8), [kind.batch(8)])
    torch.manual_seed(6)
    network = kind.network()
    torch.manual_seed(6)
    cross_entropy(network.train()(*kind.batch(8)[:-1]), kind.batch(8)[-1]).backward()
    others = {name: weight.grad for name, weight in network.named_parameters()}
    assert any(not torch.allclose(some[name], others[name]) for name in some)  # another draw is another gradient
    _, segmented, _ = stepped(kind, RetrainingPlan(8, segments=4), [kind.batch(8)])
    are_close(segmented, some, 1e-6)


def norms(network: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [item for item in network.modules() if isinstance(item, nn.modules.batchnorm._BatchNorm)]


class RecordedIdentity(torch.autograd.Function):
    """The identity, which records its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, note: Callable[[], None]) -> Tensor:
        ctx.note = note
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.note()
        return gradient, None


class RecordingLayer(nn.Module):
    """A layer that records its backward pass."""

    def __init__(self, notes: list[int], number: int) -> None:
        super().__init__()
        self.layer, self.notes, self.number = nn.Linear(8, 8), notes, number

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().sum()) > float("inf"):  # data-dependent: it stays in one piece
            return x
        return RecordedIdentity.apply(self.layer(x).tanh(), lambda: self.notes.append(self.number))


@pytest.mark.parametrize("segments", [1, 2])
def test_frozen_stages_have_no_backward_pass_and_no_state(segments: int) -> None:
    notes: list[int] = []
    network = nn.Sequential(*(RecordingLayer(notes, number) for number in range(4)), nn.Linear(8, CLASSES))
    batch = KINDS["perceptron"].batch(8)
    stepper = stepper_of(network, batch)
    stepper.use_plan(RetrainingPlan(8, freeze_rate=0.45, segments=segments))
    before = copy.deepcopy(network.state_dict())
    notes.clear()
    stepper.update([batch], 8, 1e-2)
    assert notes == [3, 2]
    frozen, training = list(network[:2].parameters()), list(network[2:].parameters())
    assert all(weight.grad is None and not weight.requires_grad for weight in frozen)
    assert stepper.weights == training
    assert stepper.optimizer is not None
    assert set(stepper.optimizer._state) == set(training)
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if name[0] in "234"}


def test_statistics_of_frozen_stages_are_unchanged() -> None:
    kind = KINDS["residual"]
    network, _, _ = stepped(kind, RetrainingPlan(32, freeze_rate=0.5), [kind.batch(32)])
    fresh = kind.network()
    moved = [
        not torch.equal(item.running_mean, other.running_mean) for item, other in zip(norms(network), norms(fresh))
    ]
    assert moved == [False, False, False, True, True, True, True]
    assert [norm.training for norm in norms(network)] == moved


def test_freezing_frees_gradients() -> None:
    kind = KINDS["perceptron"]
    network = kind.network()
    stepper = stepper_of(network, kind.batch(4))
    stepper.use_plan(RetrainingPlan(8))
    stepper.update([kind.batch(8)], 8, 1e-3)
    assert all(weight.grad is not None for weight in network.parameters())
    stepper.use_plan(RetrainingPlan(8, freeze_rate=1.0))
    *front, last, bias = network.parameters()
    assert all(weight.grad is None for weight in front)
    assert last.grad is not None
    assert bias.grad is not None
    stepper.drop_gradients()
    assert all(weight.grad is None for weight in network.parameters())


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_change_of_plan_keeps_optimizer_state(kind: str) -> None:
    made = KINDS["perceptron"]
    network, twin = made.network(), made.network()
    stepper = stepper_of(network, made.batch(4))
    makers = {"adam": lambda w: torch.optim.Adam(w, 1e-2), "sgd": lambda w: torch.optim.SGD(w, 1e-2, momentum=0.9)}
    reference = makers[kind](twin.parameters())
    plans = [
        RetrainingPlan(8, optimizer=kind),
        RetrainingPlan(4, 2, freeze_rate=0.3, segments=2, optimizer=kind),
        RetrainingPlan(2, 4, freeze_rate=0.6, lr=1e-3, optimizer=kind),
    ]
    for number, plan in enumerate(plan for plan in plans for _ in range(3)):
        batch = made.batch(8, number)
        if number % 3 == 0:
            stepper.use_plan(plan)
            frozen = stepper.staged.frozen_stages(plan.freeze_rate)
            for weight in list(twin.parameters())[: 2 * frozen]:
                weight.requires_grad_(False)
        stepper.update(cut(batch, plan.batch_size), 8, 1e-2)
        reference.zero_grad()
        cross_entropy(twin(batch[0]), batch[1]).backward()
        reference.step()
    for item, other in zip(network.parameters(), twin.parameters()):
        torch.testing.assert_close(item, other, atol=2e-5, rtol=1e-4)


def test_another_optimizer_starts_afresh() -> None:
    kind = KINDS["perceptron"]
    stepper = stepper_of(kind.network(), kind.batch(4))
    stepper.use_plan(RetrainingPlan(8))
    adam = stepper.optimizer
    stepper.use_plan(RetrainingPlan(4, freeze_rate=0.5))
    assert stepper.optimizer is adam
    stepper.use_plan(RetrainingPlan(4, optimizer="sgd"))
    assert stepper.optimizer is not adam


@pytest.mark.parametrize("size", [2, SMALL_BATCH - 1, SMALL_BATCH, 32])
def test_batch_norm_uses_running_statistics_for_small_batches(size: int) -> None:
    kind, batch = KINDS["residual"], KINDS["residual"].batch(size)
    is_small = size < SMALL_BATCH
    network, _, loss = stepped(kind, RetrainingPlan(size), [batch])
    by = kind.network().train(not is_small)
    assert loss == pytest.approx(cross_entropy(by(batch[0]), batch[1]).item(), rel=1e-5)
    assert all(torch.equal(item, other) for item, other in zip(network.buffers(), by.buffers()))
    assert all(norm.training != is_small for norm in norms(network))
    _, _, unsteady = stepped(kind, RetrainingPlan(size), [batch], running_statistics=False)
    by_batch = kind.network().train()
    assert unsteady == pytest.approx(cross_entropy(by_batch(batch[0]), batch[1]).item(), rel=1e-5)


def test_an_untraceable_network_can_be_trained() -> None:
    kind, batch = KINDS["deciding"], KINDS["deciding"].batch(32)
    stepper = stepper_of(kind.network(), kind.batch(4))
    stepper.use_plan(RetrainingPlan(8, 4, freeze_rate=1.0, segments=3))
    losses = [stepper.update(cut(batch, 8), 32, 1e-2) for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]


def test_integer_inputs_pass_through_segments() -> None:
    kind, batch = KINDS["recurrent"], KINDS["recurrent"].batch(8)
    stepper = stepper_of(kind.network(), kind.batch(4))
    stepper.use_plan(RetrainingPlan(8, segments=4))
    losses = [stepper.update([batch], 8, 1e-2) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_an_update_needs_a_plan() -> None:
    stepper = stepper_of(KINDS["perceptron"].network(), KINDS["perceptron"].batch(4))
    with pytest.raises(RuntimeError, match="use_plan"):
        stepper.update([KINDS["perceptron"].batch(4)], 4, 1e-3)


def test_training_continues_after_dropped_gradients() -> None:
    kind = KINDS["perceptron"]
    network, twin = kind.network(), kind.network()
    one, other = (stepper_of(each, kind.batch(4)) for each in (network, twin))
    one.use_plan(RetrainingPlan(4, 2))
    other.use_plan(RetrainingPlan(4, 2))

    def broken() -> Any:
        yield kind.batch(4, 8)
        raise MemoryError

    with pytest.raises(MemoryError):
        one.update(broken(), 8, 1e-2)
    one.drop_gradients()
    for stepper in (one, other):
        stepper.update(cut(kind.batch(8), 4), 8, 1e-2)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), twin.parameters()))


# Regressions


def test_a_last_batch_of_one_sample() -> None:
    kind = KINDS["normed"]
    stepper = stepper_of(kind.network(), kind.batch(4))
    stepper.use_plan(RetrainingPlan(SMALL_BATCH, 2))
    stepper.update(cut(kind.batch(SMALL_BATCH + 1), SMALL_BATCH), SMALL_BATCH + 1, 1e-3)


def test_instance_norm_counts_a_batch_once() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.ReLU(),
        nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, CLASSES),
    )  # fmt: skip
    kind = Kind(lambda: copy.deepcopy(network), (3, 8, 8))
    plain, *_ = stepped(kind, RetrainingPlan(SMALL_BATCH), [kind.batch(SMALL_BATCH)])
    again, *_ = stepped(kind, RetrainingPlan(SMALL_BATCH, segments=4), [kind.batch(SMALL_BATCH)])
    assert all(torch.equal(item, other) for item, other in zip(plain.buffers(), again.buffers()))


def test_no_gradient_of_the_inputs_is_computed() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.asked = nn.Linear(8, 8), []

        def forward(self, x: Tensor) -> Tensor:
            if float(x.detach().sum()) > float("inf"):  # data-dependent: it stays in one piece
                return x
            self.asked.append(x.requires_grad)
            return functional.relu(self.layer(x))

    first, batch = First(), KINDS["perceptron"].batch(8)
    stepper = stepper_of(nn.Sequential(first, nn.Linear(8, 8), nn.Linear(8, CLASSES)), batch)
    stepper.use_plan(RetrainingPlan(8, segments=3))
    first.asked.clear()
    stepper.update([batch], 8, 1e-3)
    assert first.asked == [False, False]


def test_a_new_learning_rate_keeps_the_trained_weights() -> None:
    kind = KINDS["perceptron"]
    stepper = stepper_of(kind.network(), kind.batch(4))
    stepper.use_plan(RetrainingPlan(8, freeze_rate=0.5))
    before = list(stepper.weights)
    stepper.use_plan(replace(RetrainingPlan(8, freeze_rate=0.5), lr=1e-4))
    assert stepper.weights == before
