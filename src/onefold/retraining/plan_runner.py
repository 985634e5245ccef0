"""Training under a plan for one micro-window, and measuring the memory that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from torch import Tensor

from onefold.retraining.allocator import SPARING, AllocationMode, allocating, fastest_mode, release_free_memory
from onefold.retraining.lean_optimizer import LeanOptimizer
from onefold.retraining.memory_monitor import MemoryMonitor, is_out_of_memory
from onefold.retraining.network_profile import NetworkProfile
from onefold.retraining.samples import BatchOrder, Indices
from onefold.retraining.time_window import TimeWindow
from onefold.retraining.training_step import Stepper
from onefold.vocabulary.retraining import MemoryLesson, MicroWindow, PlanEstimate, RetrainingPlan

DECAY_START = 0.5  # share of the training time, or of the epochs, left from which the learning rate decays linearly
LOWEST_LR_FACTOR = 0.02
WARM_UP_UPDATES, WARM_UP_SHARE = 20, 0.1  # of the training time: the learning rate of a new optimizer rises linearly
SHRINK_FACTOR = 0.75  # tensor bytes to try next, relative to those of a plan that ran out of memory
LIMIT_POLL_S = 0.05
MemoryShape = tuple[int, float, int]  # batch size, freeze rate, segments: what determines a plan's memory


class PlanOutOfMemory(Exception):
    """A step ran out of memory although its plan was predicted to fit."""


@dataclass
class PlanRunner:
    """Train under plans. Memory measurements correct the profile at once and are kept as lessons for later."""

    stepper: Stepper
    profile: NetworkProfile
    memory: MemoryMonitor
    window: TimeWindow
    order: BatchOrder
    held_bytes: int  # of the process before any plan
    machine: str
    signature: str
    is_adaptive: bool  # probes new plans with a small batch, and decays the learning rate
    is_on_cpu: bool  # whether malloc's memory is what is limited
    on_first_update: Callable[[], None] = lambda: None  # called just before it
    lr_factor: float = 1.0
    lessons: list[MemoryLesson] = field(default_factory=list)
    _gained: dict[RetrainingPlan, int] = field(default_factory=dict)  # the micro-window that its gain is from
    _probed: set[MemoryShape] = field(default_factory=set)
    _has_begun: bool = False
    _new_samples: int = 0  # trained on so far, without replayed ones
    _updates: int = 0  # of the present optimizer
    _optimizer: LeanOptimizer | None = None
    _optimizer_since: float = 0.0  # share of the training time
    _training_since_s: float | None = None  # the first update
    _polled_at_s: float = float("-inf")
    _polled_limit: int = 0

    def run(self, number: int, plan: RetrainingPlan, length_s: float) -> MicroWindow | None:
        """Train for a micro-window. Return None if no time is left for a single update.

        Raises:
            PlanOutOfMemory: The plan does not fit after all.
        """
        is_new = plan != self.stepper.plan
        self.stepper.use_plan(plan)
        if is_new:  # frees what the previous plan left; too slow to do every time
            release_free_memory()
        self.memory.reset_peak()
        if self.is_adaptive and _memory_shape(plan) not in self._probed:
            self._probe(plan)
        estimate = self.estimate(plan)
        if self.is_adaptive and estimate.memory_bytes > self.memory.limit():
            raise PlanOutOfMemory  # what was measured meanwhile has raised the prediction
        mode = self._allocation_mode(plan)
        with allocating(mode) if self.is_on_cpu else nullcontext():
            return self._train(number, plan, length_s, mode)

    def _train(self, number: int, plan: RetrainingPlan, length_s: float, mode: AllocationMode) -> MicroWindow | None:
        """Make updates until the micro-window is over, or the memory limit falls below what they may take."""
        estimate, added = self.estimate(plan), self.profile.added_bytes(plan)
        highest_bytes, usual_bytes = self.held_bytes + mode.highest(added), self.held_bytes + mode.usual(added)
        began, samples, updates, loss, longest = self.window.elapsed_s, 0, 0, 0.0, 0.0
        while True:
            started = self.window.elapsed_s
            if self.window.left_s < (longest if updates else estimate.update_s):
                break
            if updates and (started - began >= length_s or self._limit(started) < highest_bytes):
                break  # when the limit falls, the rules decide, or a mode that takes less is enough
            if updates and self.epochs >= plan.epochs:
                break
            indices = self.order.take(plan.effective_batch)
            loss += self._update(plan, indices) * len(indices)
            samples, updates = samples + len(indices), updates + 1
            self._new_samples += self.order.new_samples(indices)
            longest = max(longest, self.window.elapsed_s - started)
        if not updates:
            return None
        measured = self.memory.peak()
        self._learn(plan, measured, mode)
        return MicroWindow(
            number, plan, began, self.window.elapsed_s, updates, samples, loss / samples, None, 0.0, 0.0,
            usual_bytes, measured, self.memory.limit(),
        )  # fmt: skip

    @property
    def epochs(self) -> float:
        """Passes over the new data so far."""
        return self._new_samples / len(self.order.samples)

    def estimate(self, plan: RetrainingPlan) -> PlanEstimate:
        """Return the predicted cost of a plan in the process as it is."""
        return self.profile.estimate(plan, self.held_bytes)

    def release(self) -> None:
        """Free everything that a plan needs besides the network and the optimizer state."""
        self.stepper.drop_gradients()
        release_free_memory()

    def update_held_bytes(self) -> None:
        """Measure what the process holds besides a plan: generated code and fragments grow with every plan."""
        self.memory.reset_peak()  # also empties the cache of a GPU's allocator
        optimizer = self.stepper.optimizer
        state_bytes = optimizer.state_bytes if optimizer is not None else 0
        growth = self.memory.used() - state_bytes - self.held_bytes
        if growth > 0:
            self.held_bytes += growth
            own = {_memory_shape(lesson.plan) for lesson in self.lessons}
            self.profile.lessons = [
                replace(lesson, measured_bytes=max(1, lesson.measured_bytes - growth))
                if _memory_shape(lesson.plan) in own
                else lesson
                for lesson in self.profile.lessons
            ]

    def mark_infeasible(self, plan: RetrainingPlan) -> None:
        """Rule out this plan and larger ones after it ran out of memory."""
        bound = SHRINK_FACTOR * self.profile.tensor_bytes(plan)
        self.profile.infeasible_tensor_bytes = min(self.profile.infeasible_tensor_bytes, bound)

    def exclude(self, seconds: float) -> None:
        """Leave a pause out of the time for training, by which the learning rate rises and decays."""
        if self._training_since_s is not None:
            self._training_since_s += seconds

    def learn_gain(self, window: MicroWindow) -> None:
        """Keep what a plan gained in its first micro-window, for later retrainings.

        The first one of a retraining, in which the optimizer warms up, counts only until the plan has another.
        """
        seconds = max(1e-9, window.ended_s - window.began_s)
        is_first = window.plan not in self._gained
        if not (is_first or self._gained[window.plan] == 1):
            return
        self._gained[window.plan] = window.number
        self.lessons = [
            replace(lesson, gain_per_s=window.gain_per_s, samples_per_s=window.samples / seconds)
            if lesson.plan == window.plan
            else lesson
            for lesson in self.lessons
        ]

    def _limit(self, now_s: float) -> int:
        """Return the memory limit, read at most every LIMIT_POLL_S."""
        if now_s - self._polled_at_s > LIMIT_POLL_S:
            self._polled_at_s, self._polled_limit = now_s, self.memory.limit()
        return self._polled_limit

    def _probe(self, plan: RetrainingPlan) -> None:
        """Make an update with a quarter of the batch size, to check the prediction before the full batch."""
        self._probed.add(_memory_shape(plan))
        smaller = replace(plan, batch_size=max(1, plan.batch_size // 4))
        if smaller != plan:
            self.stepper.use_plan(smaller)
            with allocating(SPARING) if self.is_on_cpu else nullcontext():
                self._update(smaller, self.order.take(2 * smaller.batch_size))
            self._learn(smaller, self.memory.peak(), SPARING)
            self.stepper.use_plan(plan)
            self.memory.reset_peak()
        if self.estimate(plan).memory_bytes > self.memory.limit():
            raise PlanOutOfMemory

    def _update(self, plan: RetrainingPlan, indices: Indices) -> float:
        if not self._has_begun:
            self._has_begun = True
            self.on_first_update()
        try:
            lr = plan.lr * self.lr_factor * self._lr_decay(plan) * self._warm_up()
            return self.stepper.update(self._batches(plan, indices), len(indices), lr)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise PlanOutOfMemory from None

    def _batches(self, plan: RetrainingPlan, indices: Indices) -> Iterator[tuple[Tensor, ...]]:
        for start in range(0, len(indices), plan.batch_size):
            batch = self.order.batch(indices[start : start + plan.batch_size])
            if len(batch[-1]):  # else all of its rows had NaN in them
                yield batch

    def _lr_decay(self, plan: RetrainingPlan) -> float:
        """Return the factor of the learning rate, which falls toward the end of the window or of the epochs."""
        if not self.is_adaptive:
            return 1.0
        left = min(1.0 - self._trained_share, 1.0 - self.epochs / plan.epochs)
        return min(1.0, max(LOWEST_LR_FACTOR, left / DECAY_START))

    @property
    def _trained_share(self) -> float:
        """Share of the training time that is over."""
        now_s = self.window.elapsed_s
        if self._training_since_s is None:
            self._training_since_s = now_s
        trained_s = now_s - self._training_since_s
        return trained_s / max(1e-9, trained_s + max(0.0, self.window.left_s))

    def _warm_up(self) -> float:
        """Return the factor of the learning rate, which rises linearly in the first updates of an optimizer."""
        if not self.is_adaptive:
            return 1.0
        share = self._trained_share
        if self.stepper.optimizer is not self._optimizer:
            self._optimizer, self._updates, self._optimizer_since = self.stepper.optimizer, 0, share
        self._updates += 1
        return min(1.0, max(self._updates / WARM_UP_UPDATES, (share - self._optimizer_since) / WARM_UP_SHARE))

    def _allocation_mode(self, plan: RetrainingPlan) -> AllocationMode:
        if not self.is_on_cpu:
            return SPARING
        return fastest_mode(self.profile.added_bytes(plan), self.memory.limit() - self.held_bytes)

    def _learn(self, plan: RetrainingPlan, measured_bytes: int | None, mode: AllocationMode) -> None:
        if measured_bytes is None:
            return
        added = max(1, measured_bytes - self.held_bytes)  # a small plan may fit into memory that is held anyway
        predicted = self.profile.added_bytes(plan)
        if mode is not SPARING and added <= mode.highest(predicted):
            added = min(added, predicted)  # the plan needs no more than that; malloc kept the rest
        lesson = MemoryLesson(self.machine, self.signature, plan, self.profile.tensor_bytes(plan), added)
        before = next((earlier for earlier in self.lessons if earlier.plan == plan), lesson)
        lesson = replace(lesson, gain_per_s=before.gain_per_s, samples_per_s=before.samples_per_s)
        self.lessons = [*(earlier for earlier in self.lessons if earlier.plan != plan), lesson]
        self.profile.lessons = [*_without(self.profile.lessons, plan), lesson]


def _memory_shape(plan: RetrainingPlan) -> MemoryShape:
    return plan.batch_size, plan.freeze_rate, plan.segments


def _without(lessons: list[MemoryLesson], plan: RetrainingPlan) -> list[MemoryLesson]:
    return [lesson for lesson in lessons if _memory_shape(lesson.plan) != _memory_shape(plan)]
