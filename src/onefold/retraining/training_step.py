"""A network that is trained as a plan says: in small batches that add up, from some stretch on, in segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from onefold.retraining.backward_pass import gradient_edge, run_backward
from onefold.retraining.memory_model import checkpoint_segments
from onefold.retraining.memory_trace import Loss, StepTrace
from onefold.retraining.optimizers import LeanOptimizer
from onefold.retraining.rng_state import RngState
from onefold.retraining.stages import StagedNetwork
from onefold.vocabulary.retraining import RetrainingPlan

SMALL_BATCH = 16  # with fewer samples than this the statistics of a batch say little of the data
Norm = nn.modules.batchnorm._BatchNorm
Counting = nn.modules.batchnorm._NormBase  # all that keep running statistics


class Stepper:
    """Does what a plan says; the plan may change between two updates."""

    def __init__(self, staged: StagedNetwork, trace: StepTrace, loss: Loss, *, steady_norms: bool = True) -> None:
        self.staged, self.trace, self.loss = staged, trace, loss
        self.steady_norms = steady_norms  # whether batch norms use the data's statistics where batches are small
        self.updates: LeanOptimizer | None = None
        self.weights: list[nn.Parameter] = []
        self.plan: RetrainingPlan | None = None
        self._frozen = 0
        self._groups: list[range] = []
        weights = list(staged.network.parameters())
        self._may_learn = {weight for weight in weights if weight.requires_grad} or set(weights)

    def follow(self, plan: RetrainingPlan) -> None:
        """From the next batch on."""
        if self.updates is None or self.updates.kind != plan.optimizer:
            self.updates = LeanOptimizer(plan.optimizer)
        self.plan = plan
        self._frozen = self.staged.frozen_stages(plan.freeze_rate)
        self._groups = checkpoint_segments(self.trace, self._frozen, plan.segments)
        learning = {
            weight for stage in self.staged.stages[self._frozen :] for weight in stage.weights
        } & self._may_learn
        self.weights = [weight for weight in self.staged.network.parameters() if weight in learning]
        for weight in self.staged.network.parameters():
            weight.requires_grad_(weight in learning)
            if weight not in learning:
                weight.grad = None
        self.updates.keep_only(self.weights)
        self.staged.network.train()
        for at, stage in enumerate(self.staged.stages):
            for module in stage.run.modules():
                if at < self._frozen:
                    module.training = False
        self._norms = [one for one in self.staged.network.modules() if isinstance(one, Norm) and one.training]
        self._turn_norms(plan.batch_size)

    def update(
        self, batches: Sequence[tuple[Tensor, ...]] | Iterator[tuple[Tensor, ...]], total: int, lr: float
    ) -> float:
        """One update from some batches with `total` samples together; the mean loss of a sample.

        Every sample counts the same, however the batches are cut.
        """
        if self.updates is None:
            raise RuntimeError("follow() a plan first")
        whole = 0.0
        for *inputs, targets in batches:
            share = len(targets) / total
            self._turn_norms(len(targets))
            whole += self._backward(inputs, targets, share) * share
        self.updates.apply(self.weights, lr)
        return whole

    def _turn_norms(self, size: int) -> None:
        """Batch norms go by the batch where that says enough; a single sample says nothing at all."""
        for norm in self._norms:
            norm.training = size >= (SMALL_BATCH if self.steady_norms else 2)

    def leave(self) -> None:
        """Every weight as it was found: without a gradient, and learning if it did."""
        for weight in self.staged.network.parameters():
            weight.requires_grad_(weight in self._may_learn)
            weight.grad = None

    def forget(self) -> None:
        """What was remembered of earlier gradients, as after weights were put back."""
        if self.updates is not None:
            self.updates.forget()

    def drop_gradients(self) -> None:
        """As after an update that could not be finished."""
        for weight in self.staged.network.parameters():
            weight.grad = None

    def _backward(self, inputs: list[Tensor], targets: Tensor, share: float) -> float:
        stages = self.staged.stages
        values: list[Tensor] = inputs
        with torch.no_grad():
            for stage in stages[: self._frozen]:
                values = [stage(*values)]
        for group in self._groups[:-1]:
            again = _Segment.apply(_Run(stages, group), _needs_gradient(values[0]), *values)  # type: ignore[no-untyped-call]
            values = [again]
        outputs = _Run(stages, self._groups[-1])(*values)
        values = []
        loss = self.loss(outputs, targets)
        del outputs
        found = float(loss.detach())
        (loss * share).backward()  # type: ignore[no-untyped-call]
        return found


class _Run:
    """A few links after another."""

    def __init__(self, stages: Sequence[Any], group: range) -> None:
        self.stages = [stages[at] for at in group if at < len(stages)]  # the last one of all is the loss

    def __call__(self, *values: Tensor) -> Any:
        given: list[Any] = list(values)
        del values
        for stage in self.stages:
            given = [stage(*given)]
        return given[0]


def _needs_gradient(value: Tensor) -> Tensor:
    """Something that needs a gradient, so that a segment whose input needs none is gone back through all the same."""
    return torch.empty(0, device=value.device, requires_grad=True)


class _Segment(torch.autograd.Function):
    """Runs without keeping anything but what came in, and runs again when its gradients are wanted.

    As torch.utils.checkpoint does; that one imports the compiler, and counts batches twice in batch norms.
    """

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], _: Tensor, *given: Tensor) -> Tensor:
        ctx.run = run
        ctx.chance = RngState.now()
        ctx.save_for_backward(*given)
        with torch.no_grad():
            return run(*given)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        needed = ctx.needs_input_grad[2:]
        given = [one.detach().requires_grad_(needs) for one, needs in zip(ctx.saved_tensors, needed)]
        run, ctx.run = ctx.run, None
        with torch.enable_grad(), _as_before(ctx.chance), _statistics_stand([stage.run for stage in run.stages]):
            place = gradient_edge(run(*given))  # the output itself need not stay
        run_backward(place, gradient)
        return None, None, *(one.grad for one in given)


@contextmanager
def _as_before(chance: RngState) -> Iterator[None]:
    """Draws the random numbers of the first time, for dropout."""
    now = RngState.now()
    chance.put_back()
    try:
        yield
    finally:
        now.put_back()


@contextmanager
def _statistics_stand(runs: Sequence[nn.Module]) -> Iterator[None]:
    """A batch that is computed again must not count twice in the running statistics."""
    norms = [one for run in runs for one in run.modules() if isinstance(one, Counting) and one.training]
    before = [norm.track_running_stats for norm in norms]
    kept = [(norm.running_mean, norm.running_var) for norm in norms]
    for norm in norms:
        norm.running_mean = norm.running_var = None
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm, tracks, (mean, variance) in zip(norms, before, kept):
            norm.track_running_stats, norm.running_mean, norm.running_var = tracks, mean, variance
