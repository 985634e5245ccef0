"""A step of training, followed tensor by tensor: which bytes are alive when, in each stretch of the network.

Each stretch is taken through its part of the step by itself, with two samples and with three, so that what grows with
the batch is told from what does not, and so that finding out needs less memory than any plan.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from onefold.retraining.backward_pass import gradient_edge, run_backward
from onefold.retraining.stages import StagedNetwork, preserved_state

FEW, MORE = 2, 3  # samples
Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Amount:
    """Bytes: a part that is always there and a part for each sample."""

    fixed: float = 0.0
    per_sample: float = 0.0

    def of(self, batch_size: int) -> float:
        """For a batch."""
        return self.fixed + self.per_sample * batch_size

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.fixed + other.fixed, self.per_sample + other.per_sample)


@dataclass(frozen=True)
class MemoryCurve:
    """Bytes that are alive, moment by moment: a part that is always there and a part for each sample."""

    fixed: NDArray[np.float64]
    per_sample: NDArray[np.float64]

    def peak(self, batch_size: int) -> float:
        """The most that is alive at once."""
        return float((self.fixed + self.per_sample * batch_size).max()) if len(self.fixed) else 0.0

    def above(self, amount: Amount) -> MemoryCurve:
        """The same on top of something that is there all the time."""
        if not len(self.fixed):
            return MemoryCurve(np.array([amount.fixed]), np.array([amount.per_sample]))
        return MemoryCurve(self.fixed + amount.fixed, self.per_sample + amount.per_sample)


@dataclass(frozen=True)
class StageTrace:
    """What one stretch does to memory. Curves count what the stretch itself makes, not what it is given."""

    forward: MemoryCurve  # without gradients: a tensor goes when nobody needs it any more
    learning: MemoryCurve  # with gradients: what will be needed stays
    backward: MemoryCurve  # what is left of the kept, and the gradients on their way; those of the weights are left out
    saved: Amount  # made here and kept for the gradients
    output: Amount  # handed on
    keeps_input: bool
    keeps_output: bool


@dataclass(frozen=True)
class StepTrace:
    """All stretches; the last one is the loss."""

    stages: tuple[StageTrace, ...]
    batch: Amount  # inputs and targets
    # Of the network as it is, without gradients: the variables of its own forward hold on to more than its links do.
    answering: MemoryCurve = field(default_factory=lambda: MemoryCurve(np.zeros(0), np.zeros(0)))


def trace_step(staged: StagedNetwork, batch: tuple[Tensor, ...], loss: Loss) -> StepTrace:
    """Follows a step; `batch` is a few samples, the targets last. The network is left as it was."""
    with preserved_state(staged.network):
        staged.network.train()
        fewer, more = ([*_recorded(staged, [part[:size] for part in batch], loss)] for size in (FEW, MORE))
        there = [*staged.network.parameters(), *staged.network.buffers()]
        answers = [_plain(staged.network, [part[:size] for part in batch[:-1]], there) for size in (FEW, MORE)]
    sizes = Amount()
    for part in batch:
        sizes += Amount(0.0, part[0].nelement() * part.element_size())
    return StepTrace(tuple(_stage(few, many) for few, many in zip(fewer, more)), sizes, _alive(*answers))


@dataclass
class _Storage:
    bytes: int
    made: int  # the moment
    is_backward: bool  # whether it was made there
    read: int  # the last moment somebody looked at it
    read_forward: int
    gone: int | None = None
    is_saved: bool = False


@dataclass
class _Recording:
    """What happened in one stretch, in moments: one for every operation."""

    storages: dict[int, _Storage] = field(default_factory=dict)
    moments: int = 0
    turned: int = 0  # the moment at which it went backward
    output: int = -1
    gradient: int = -1  # of its output, as it was handed in
    keeps_input: bool = False
    plain: _Recording | None = None  # the same forward without gradients


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each storage when it is made, looked at, and gone."""

    def __init__(self, there: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.notes = _Recording()
        self.is_backward = False
        self._there = {tensor.untyped_storage()._cdata for tensor in there}
        self._numbers: dict[int, int] = {}  # a place in memory may be used again: a number is not
        self._watched: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        moment = self.notes.moments
        self.notes.moments += 1
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor) and (number := self.number(tensor)) is not None:
                storage = self.notes.storages[number]
                storage.read = moment
                storage.read_forward = storage.read_forward if self.is_backward else moment
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and self.number(tensor) is None:
                self._watch(tensor, moment)
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # being skipped would import the compiler: 70 MB that a small device does not have

    def number(self, tensor: Any) -> int | None:
        """The number of a tensor's storage; None for one that was there before."""
        return self._numbers.get(tensor.untyped_storage()._cdata) if isinstance(tensor, Tensor) else None

    def keep(self, tensor: Tensor, given: Iterable[int]) -> Tensor:
        """Something is kept for the gradients."""
        number = self.number(tensor)
        if number is not None:
            self.notes.storages[number].is_saved = True
        elif tensor.untyped_storage()._cdata in given:
            self.notes.keeps_input = True
        return tensor

    def _watch(self, tensor: Tensor, moment: int) -> None:
        storage = tensor.untyped_storage()
        place = storage._cdata
        if place in self._there:
            return
        number = len(self.notes.storages)
        self.notes.storages[number] = _Storage(storage.nbytes(), moment, self.is_backward, moment, moment)
        self._numbers[place] = number
        self._watched[number] = weakref.ref(storage, lambda _: self._gone(place, number))

    def _gone(self, place: int, number: int) -> None:
        self.notes.storages[number].gone = self.notes.moments
        if self._numbers.get(place) == number:
            del self._numbers[place]


def _recorded(staged: StagedNetwork, batch: list[Tensor], loss: Loss) -> Iterable[_Recording]:
    """A recording of each stretch, and of the loss."""
    *inputs, targets = batch
    values: list[Tensor] = inputs
    there = [*staged.network.parameters(), *staged.network.buffers()]
    for stage in staged.stages:
        notes, output = _part(stage, values, stage.weights, there)
        if not isinstance(output, Tensor):  # several answers, which only the loss knows how to bring together
            yield _part(partial(answered, stage.run, loss, targets), values, stage.weights, [*there, targets])[0]
            return
        yield notes
        values = [output]
    yield _part(lambda outputs: loss(outputs, targets), values, [], [targets])[0]


def answered(run: Callable[..., Any], loss: Loss, targets: Tensor, *given: Tensor) -> Tensor:
    """A stretch and the loss in one, where the answer is more than a tensor."""
    return loss(run(*given), targets)


def _part(
    run: Callable[..., Any], given: list[Tensor], weights: list[nn.Parameter], there: list[Tensor]
) -> tuple[_Recording, Any]:
    """Takes one stretch forward and backward, with gradients of its weights already there to be added to."""
    leaves = [one.detach().requires_grad_(one.is_floating_point()) for one in given]
    entering = [one.clone() for one in leaves]  # a leaf cannot be changed in place
    kept_gradients = [weight.grad for weight in weights]
    wanted = [weight.requires_grad for weight in weights]
    places = [one.untyped_storage()._cdata for one in entering]
    try:
        for weight in weights:
            weight.requires_grad_(True).grad = torch.zeros_like(weight)
        recorder = _Recorder([*entering, *there, *(one.grad for one in weights if one.grad is not None)])
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda one: recorder.keep(one, places), lambda one: one)
        with recorder, hooks:
            output = run(*entering)
            recorder.notes.output = _number(recorder, output)
            recorder.is_backward, recorder.notes.turned = True, recorder.notes.moments
            if isinstance(output, Tensor) and output.requires_grad:
                gradient = torch.ones_like(output)
                recorder.notes.gradient = _number(recorder, gradient)
                run_backward(gradient_edge(output), gradient)
        recorder.notes.plain = _plain(run, given, there)
    finally:
        for weight, before, want in zip(weights, kept_gradients, wanted):
            weight.grad = before
            weight.requires_grad_(want)
    return recorder.notes, output.detach() if isinstance(output, Tensor) else output


def _plain(run: Callable[..., Any], given: list[Tensor], there: list[Tensor]) -> _Recording:
    """Takes one stretch forward without gradients."""
    entering = [one.detach().clone() for one in given]
    recorder = _Recorder([*entering, *there])
    with torch.no_grad(), recorder:
        output = run(*entering)
    recorder.notes.turned = recorder.notes.moments
    del output
    return recorder.notes


def _alive(few: _Recording, many: _Recording) -> MemoryCurve:
    """What is alive in a forward without gradients, as long as it really is."""
    lives = [(number, one.made, np.inf if one.gone is None else one.gone - 1) for number, one in few.storages.items()]
    return _curve(_sizes(few, many), lives, 0, few.turned)


def _sizes(few: _Recording, many: _Recording) -> dict[int, Amount]:
    """Of each storage, a part that is always there and a part for each sample."""
    is_matched = few.moments == many.moments and len(few.storages) == len(many.storages)
    sizes: dict[int, Amount] = {}
    for number, storage in few.storages.items():
        if is_matched:
            slope = (many.storages[number].bytes - storage.bytes) / (MORE - FEW)
            sizes[number] = Amount(storage.bytes - slope * FEW, slope)
        else:  # another number of samples took another way: all is taken to grow with the batch
            sizes[number] = Amount(0.0, storage.bytes / FEW)
    return sizes


def _number(recorder: _Recorder, value: Any) -> int:
    found = recorder.number(value)
    return -1 if found is None else found


def _stage(few: _Recording, many: _Recording) -> StageTrace:
    """Two recordings of a stretch as one: each storage with a part that is always there and a part for each sample."""
    sizes = _sizes(few, many)
    forward = {number: one for number, one in few.storages.items() if not one.is_backward}
    kept = {number for number, one in forward.items() if one.is_saved}
    saved = Amount()
    for number in kept:
        saved += sizes[number]

    def lives(keep: set[int]) -> list[tuple[int, int, float]]:
        stay = keep | {few.output}
        return [(number, one.made, np.inf if number in stay else one.read_forward) for number, one in forward.items()]

    def ends(number: int, one: _Storage) -> float:
        if number == few.gradient:
            return one.read
        return np.inf if one.gone is None else one.gone - 1

    returning = [(number, one.made, ends(number, one)) for number, one in few.storages.items() if one.is_backward]
    returning += [(number, 0, ends(number, few.storages[number])) for number in kept if number != few.output]
    if few.output in kept:
        returning.append((few.output, 0, few.storages[few.output].read))
    return StageTrace(
        forward=_alive(few.plain or few, many.plain or many),
        learning=_curve(sizes, lives(kept), 0, few.turned),
        backward=_curve(sizes, returning, few.turned, few.moments),
        saved=saved,
        output=sizes.get(few.output, Amount()),
        keeps_input=few.keeps_input,
        keeps_output=few.output in kept,
    )


def _curve(sizes: dict[int, Amount], lives: list[tuple[int, int, float]], start: int, end: int) -> MemoryCurve:
    """The bytes alive at each moment from start until before the end, of storages that live from … up to …."""
    length = max(0, end - start)
    fixed, per_sample = np.zeros(length), np.zeros(length)
    for number, made, last in lives:
        first, final = max(made - start, 0), int(min(last, end - 1)) - start
        if final >= first:
            fixed[first : final + 1] += sizes[number].fixed
            per_sample[first : final + 1] += sizes[number].per_sample
    return MemoryCurve(fixed, per_sample)
