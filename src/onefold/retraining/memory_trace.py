"""A trace of a training step: which bytes are live when, in each stage of the network.

Each stage is traced by itself, with two samples and with three. That separates what grows with the batch from what does
not, and tracing needs less memory than any plan.
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
from onefold.retraining.batch_cost import BatchCost
from onefold.retraining.stages import StagedNetwork, preserved_state

SMALL_BATCH, LARGE_BATCH = 2, 3  # samples
# Of the workspace that oneDNN's LSTM allocates for the backward pass; the rest is never written, and takes no memory.
# It was 0.78 to 0.87 for layers of 16 to 128 units.
USED_WORKSPACE = 0.87
LossFunction = Callable[[Any, Any], Tensor]
Lifetime = tuple[int, int, float]  # storage, first event, last event


@dataclass(frozen=True)
class MemoryCurve:
    """Live bytes, event by event, as a fixed part and a part per sample."""

    fixed: NDArray[np.float64]
    per_sample: NDArray[np.float64]

    def peak(self, batch_size: int) -> float:
        """Return the most bytes that are live at once."""
        return float((self.fixed + self.per_sample * batch_size).max()) if len(self.fixed) else 0.0

    def above(self, base: BatchCost) -> MemoryCurve:
        """Return the curve on top of bytes that are live throughout."""
        if not len(self.fixed):
            return MemoryCurve(np.array([base.fixed]), np.array([base.per_sample]))
        return MemoryCurve(self.fixed + base.fixed, self.per_sample + base.per_sample)


@dataclass(frozen=True)
class StageTrace:
    """The memory of one stage. Curves count what the stage itself allocates, not its input."""

    forward: MemoryCurve  # without gradients: a tensor is freed after its last use
    training: MemoryCurve  # the forward with gradients: saved activations stay live
    backward: MemoryCurve  # saved activations and activation gradients, without weight gradients
    saved: BatchCost  # activations saved for the backward pass
    output: BatchCost
    keeps_input: bool
    keeps_output: bool


@dataclass(frozen=True)
class StepTrace:
    """The traces of all stages; the last one is the loss."""

    stages: tuple[StageTrace, ...]
    batch: BatchCost  # inputs and targets
    # Inference of the unsplit network, whose local variables keep more alive than its stages do.
    inference: MemoryCurve = field(default_factory=lambda: MemoryCurve(np.zeros(0), np.zeros(0)))


def trace_step(staged: StagedNetwork, batch: tuple[Tensor, ...], loss: LossFunction) -> StepTrace:
    """Trace a training step with a few samples, targets last. The network's state is preserved."""
    with preserved_state(staged.network):
        staged.network.train()
        sizes = (SMALL_BATCH, LARGE_BATCH)
        small, large = ([*_record_stages(staged, [part[:size] for part in batch], loss)] for size in sizes)
        existing = [*staged.network.parameters(), *staged.network.buffers()]
        inference = [_record_forward(staged.network, [part[:size] for part in batch[:-1]], existing) for size in sizes]
    bytes_per_sample = sum(part[0].nelement() * part.element_size() for part in batch)
    return StepTrace(
        tuple(_stage_trace(few, many) for few, many in zip(small, large)),
        BatchCost(0.0, bytes_per_sample),
        _forward_curve(*inference),
    )


@dataclass
class _Storage:
    bytes: int
    allocated: int  # event
    is_backward: bool  # whether it was allocated in the backward pass
    last_read: int
    last_forward_read: int
    freed: int | None = None
    is_saved: bool = False


@dataclass
class _Recording:
    """The storages of one stage. Events count operations."""

    storages: dict[int, _Storage] = field(default_factory=dict)
    events: int = 0
    backward_start: int = 0
    output: int = -1  # storage
    gradient: int = -1  # storage of the gradient that the backward pass starts from
    keeps_input: bool = False
    inference: _Recording | None = None  # the same forward without gradients


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record when each storage is allocated, read and freed."""

    def __init__(self, existing: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = _Recording()
        self.is_backward = False
        self._existing = {tensor.untyped_storage()._cdata for tensor in existing}
        self._numbers: dict[int, int] = {}  # by address, which may be reused; numbers are not
        self._finalizers: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        event = self.recording.events
        self.recording.events += 1
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor) and (number := self.number(tensor)) is not None:
                storage = self.recording.storages[number]
                storage.last_read = event
                storage.last_forward_read = storage.last_forward_read if self.is_backward else event
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and self.number(tensor) is None:
                self._add(tensor, event, _used_share(func, tensor))
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # skipping would import the compiler: 70 MB

    def number(self, tensor: Any) -> int | None:
        """Return the number of a tensor's storage; None if it existed before."""
        return self._numbers.get(tensor.untyped_storage()._cdata) if isinstance(tensor, Tensor) else None

    def save(self, tensor: Tensor, inputs: Iterable[int]) -> Tensor:
        """Record that a tensor is saved for the backward pass; `inputs` are the addresses of the stage's inputs."""
        number = self.number(tensor)
        if number is not None:
            self.recording.storages[number].is_saved = True
        elif tensor.untyped_storage()._cdata in inputs:
            self.recording.keeps_input = True
        return tensor

    def _add(self, tensor: Tensor, event: int, used_share: float) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._existing:
            return
        number = len(self.recording.storages)
        self.recording.storages[number] = _Storage(
            round(used_share * storage.nbytes()), event, self.is_backward, event, event
        )
        self._numbers[address] = number
        self._finalizers[number] = weakref.ref(storage, lambda _: self._freed(address, number))

    def _freed(self, address: int, number: int) -> None:
        self.recording.storages[number].freed = self.recording.events
        if self._numbers.get(address) == number:
            del self._numbers[address]


def _used_share(func: Any, tensor: Tensor) -> float:
    """Return the share of a result's storage that is written."""
    is_workspace = func is torch.ops.aten.mkldnn_rnn_layer.default and tensor.dtype == torch.uint8
    return USED_WORKSPACE if is_workspace else 1.0


def _record_stages(staged: StagedNetwork, batch: list[Tensor], loss: LossFunction) -> Iterable[_Recording]:
    """Yield a recording of each stage, and of the loss."""
    *inputs, targets = batch
    values: list[Tensor] = inputs
    existing = [*staged.network.parameters(), *staged.network.buffers(), *inputs]
    for stage in staged.stages:
        run = partial(stage.run, inputs)
        recording, output = _record(run, values, stage.weights, existing)
        if not isinstance(output, Tensor):  # only the loss can reduce several outputs to one tensor
            run = partial(stage_with_loss, run, loss, targets)
            yield _record(run, values, stage.weights, [*existing, targets])[0]
            return
        yield recording
        values = [output]
    yield _record(lambda outputs: loss(outputs, targets), values, [], [targets])[0]


def stage_with_loss(run: Callable[..., Any], loss: LossFunction, targets: Tensor, *inputs: Tensor) -> Tensor:
    """Run a stage and the loss in one, for a stage whose output is not a tensor."""
    return loss(run(*inputs), targets)


def _record(
    run: Callable[..., Any], inputs: list[Tensor], weights: list[nn.Parameter], existing: list[Tensor]
) -> tuple[_Recording, Any]:
    """Record forward and backward of one stage, with weight gradients already allocated."""
    leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in inputs]
    values = [leaf.clone() for leaf in leaves]  # a leaf cannot be modified in place
    gradients = [weight.grad for weight in weights]
    trainable = [weight.requires_grad for weight in weights]
    addresses = [value.untyped_storage()._cdata for value in values]
    try:
        for weight in weights:
            weight.requires_grad_(True).grad = torch.zeros_like(weight)
        recorder = _Recorder([*values, *existing, *(weight.grad for weight in weights if weight.grad is not None)])
        recording = recorder.recording
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: recorder.save(tensor, addresses), lambda tensor: tensor
        )
        with recorder, hooks:
            output = run(*values)
            recording.output = _number(recorder, output)
            recorder.is_backward, recording.backward_start = True, recording.events
            if isinstance(output, Tensor) and output.requires_grad:
                gradient = torch.ones_like(output)
                recording.gradient = _number(recorder, gradient)
                run_backward(gradient_edge(output), gradient)
        recording.inference = _record_forward(run, inputs, existing)
    finally:
        for weight, gradient_before, requires_grad in zip(weights, gradients, trainable):
            weight.grad = gradient_before
            weight.requires_grad_(requires_grad)
    return recording, output.detach() if isinstance(output, Tensor) else output


def _record_forward(run: Callable[..., Any], inputs: list[Tensor], existing: list[Tensor]) -> _Recording:
    """Record a forward without gradients."""
    values = [tensor.detach().clone() for tensor in inputs]
    recorder = _Recorder([*values, *existing])
    with torch.no_grad(), recorder:
        output = run(*values)
    recorder.recording.backward_start = recorder.recording.events
    del output
    return recorder.recording


def _forward_curve(few: _Recording, many: _Recording) -> MemoryCurve:
    """Return the live bytes of a forward without gradients, with real lifetimes."""
    lifetimes = [(number, storage.allocated, _last_event(storage)) for number, storage in few.storages.items()]
    return _curve(_storage_sizes(few, many), lifetimes, 0, few.backward_start)


def _last_event(storage: _Storage) -> float:
    return np.inf if storage.freed is None else storage.freed - 1


def _storage_sizes(few: _Recording, many: _Recording) -> dict[int, BatchCost]:
    """Return the size of each storage as a function of the batch size."""
    is_matched = few.events == many.events and len(few.storages) == len(many.storages)
    sizes: dict[int, BatchCost] = {}
    for number, storage in few.storages.items():
        if is_matched:
            slope = (many.storages[number].bytes - storage.bytes) / (LARGE_BATCH - SMALL_BATCH)
            sizes[number] = BatchCost(storage.bytes - slope * SMALL_BATCH, slope)
        else:  # the batch sizes took different branches: assume that everything grows with the batch
            sizes[number] = BatchCost(0.0, storage.bytes / SMALL_BATCH)
    return sizes


def _number(recorder: _Recorder, value: Any) -> int:
    number = recorder.number(value)
    return -1 if number is None else number


def _stage_trace(few: _Recording, many: _Recording) -> StageTrace:
    """Combine the recordings of two batch sizes."""
    sizes = _storage_sizes(few, many)
    forward = {number: storage for number, storage in few.storages.items() if not storage.is_backward}
    saved = {number for number, storage in forward.items() if storage.is_saved}
    kept = saved | {few.output}
    training = [
        (number, storage.allocated, np.inf if number in kept else storage.last_forward_read)
        for number, storage in forward.items()
    ]
    return StageTrace(
        forward=_forward_curve(few.inference or few, many.inference or many),
        training=_curve(sizes, training, 0, few.backward_start),
        backward=_curve(sizes, _backward_lifetimes(few, saved), few.backward_start, few.events),
        saved=sum((sizes[number] for number in saved), BatchCost()),
        output=sizes.get(few.output, BatchCost()),
        keeps_input=few.keeps_input,
        keeps_output=few.output in saved,
    )


def _backward_lifetimes(recording: _Recording, saved: set[int]) -> list[Lifetime]:
    """Return the lifetimes of all storages that are live in the backward pass."""

    def last_event(number: int) -> float:
        storage = recording.storages[number]
        # This recorder holds the initial gradient and the output longer than a training step does.
        return storage.last_read if number in (recording.gradient, recording.output) else _last_event(storage)

    allocated = [
        (number, storage.allocated, last_event(number))
        for number, storage in recording.storages.items()
        if storage.is_backward
    ]
    return [*allocated, *((number, 0, last_event(number)) for number in saved)]


def _curve(sizes: dict[int, BatchCost], lifetimes: list[Lifetime], start: int, end: int) -> MemoryCurve:
    """Return the live bytes at each event from `start` to before `end`."""
    length = max(0, end - start)
    fixed, per_sample = np.zeros(length), np.zeros(length)
    for number, allocated, last in lifetimes:
        first, final = max(allocated - start, 0), int(min(last, end - 1)) - start
        if final >= first:
            fixed[first : final + 1] += sizes[number].fixed
            per_sample[first : final + 1] += sizes[number].per_sample
    return MemoryCurve(fixed, per_sample)
