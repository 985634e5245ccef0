"""Training steps under a plan: accumulated batches, frozen stages, checkpointed segments."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from onefold.retraining.batch_norm import BatchNorm
from onefold.retraining.checkpointed_segment import StageSequence, checkpoint
from onefold.retraining.lean_optimizer import LeanOptimizer
from onefold.retraining.memory_model import checkpoint_segments
from onefold.retraining.memory_trace import LossFunction, StepTrace
from onefold.retraining.stages import StagedNetwork
from onefold.vocabulary.retraining import RetrainingPlan

SMALL_BATCH = 16  # samples, below which batch statistics are too noisy for BatchNorm


class Stepper:
    """Train a network as a plan says. The plan may change between two updates."""

    def __init__(
        self, staged: StagedNetwork, trace: StepTrace, loss: LossFunction, *, running_statistics: bool = True
    ) -> None:
        """Start without a plan. With `running_statistics`, BatchNorm uses these for small batches."""
        self.staged, self.trace, self.loss = staged, trace, loss
        self.running_statistics = running_statistics
        self.optimizer: LeanOptimizer | None = None
        self.weights: list[nn.Parameter] = []  # that the plan trains
        self.plan: RetrainingPlan | None = None
        self._frozen = 0
        self._segments: list[range] = []
        self._norms: list[nn.Module] = []
        weights = list(staged.network.parameters())
        self._trainable = {weight for weight in weights if weight.requires_grad} or set(weights)

    def use_plan(self, plan: RetrainingPlan) -> None:
        """Switch to a plan; optimizer state of weights that stay unfrozen is kept."""
        if self.optimizer is None or self.optimizer.kind != plan.optimizer:
            self.optimizer = LeanOptimizer(plan.optimizer)
        network = self.staged.network
        self.plan = plan
        self._frozen = self.staged.frozen_stages(plan.freeze_rate)
        self._segments = checkpoint_segments(self.trace, self._frozen, plan.segments)
        unfrozen = {weight for stage in self.staged.stages[self._frozen :] for weight in stage.weights}
        unfrozen &= self._trainable
        self.weights = [weight for weight in network.parameters() if weight in unfrozen]
        for weight in network.parameters():
            weight.requires_grad_(weight in unfrozen)
            if weight not in unfrozen:
                weight.grad = None
        self.optimizer.retain(self.weights)
        network.train()
        for stage in self.staged.stages[: self._frozen]:
            for module in stage.module.modules():
                module.training = False
        self._norms = [module for module in network.modules() if isinstance(module, BatchNorm) and module.training]
        self._set_norm_mode(plan.batch_size)

    def update(self, batches: Iterable[tuple[Tensor, ...]], total: int, lr: float) -> float:
        """Make one update from batches with `total` samples together, each of equal weight; return the mean loss."""
        if self.optimizer is None:
            raise RuntimeError("update() needs a plan; call use_plan() first")
        mean_loss = 0.0
        for *inputs, targets in batches:
            share = len(targets) / total
            self._set_norm_mode(len(targets))
            mean_loss += self._accumulate(inputs, targets, share) * share
        self.optimizer.step(self.weights, lr)
        return mean_loss

    def release(self) -> None:
        """Drop all gradients and restore which weights require one."""
        for weight in self.staged.network.parameters():
            weight.requires_grad_(weight in self._trainable)
            weight.grad = None

    def reset_optimizer(self) -> None:
        """Drop the optimizer state, as after weights were restored."""
        if self.optimizer is not None:
            self.optimizer.reset()

    def drop_gradients(self) -> None:
        """Free all gradients, as after an update that failed."""
        for weight in self.staged.network.parameters():
            weight.grad = None

    def _set_norm_mode(self, batch_size: int) -> None:
        """Use batch statistics from a sufficient batch size on; a single sample has no variance at all."""
        for norm in self._norms:
            norm.training = batch_size >= (SMALL_BATCH if self.running_statistics else 2)

    def _accumulate(self, inputs: list[Tensor], targets: Tensor, share: float) -> float:
        """Accumulate the gradients of one batch and return its loss."""
        stages = self.staged.stages
        values: list[Tensor] = inputs
        with torch.no_grad():
            for stage in stages[: self._frozen]:
                values = [stage.run(inputs, *values)]
        for segment in self._segments[:-1]:
            boundary = checkpoint(
                StageSequence(stages, segment, inputs), *values
            )  # stays alive, as the memory model assumes
            values = [boundary]
        outputs = StageSequence(stages, self._segments[-1], inputs)(*values)
        values = []
        loss = self.loss(outputs, targets)
        del outputs
        value = float(loss.detach())
        if loss.requires_grad:  # else all that may be trained is frozen
            (loss * share).backward()  # type: ignore[no-untyped-call]
        return value
