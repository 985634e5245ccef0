"""Training with a plan for a micro-window, and learning what memory it really takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from torch import Tensor

from onefold.retraining.allocator import release_free_memory
from onefold.retraining.memory_monitor import MemoryMonitor, is_out_of_memory
from onefold.retraining.network_profile import NetworkProfile
from onefold.retraining.samples import BatchOrder, Indices
from onefold.retraining.time_window import TimeWindow
from onefold.retraining.training_step import Stepper
from onefold.vocabulary.retraining import MemoryLesson, MicroWindow, RetrainingPlan

FALLS_FROM = 0.5  # of the window on, the learning rate falls to nothing
SMALLER = 0.75  # of the tensors of a plan that did not fit: what is tried next
LOOKS_EVERY_S = 0.05  # at the limit of the memory
Shape = tuple[int, float, int]


class OutOfMemory(Exception):
    """A step does not fit after all."""


@dataclass
class PlanRunner:
    """Trains; what it learns about memory corrects the profile at once, and is kept for later retrainings."""

    stepper: Stepper
    profile: NetworkProfile
    memory: MemoryMonitor
    window: TimeWindow
    order: BatchOrder
    held: int  # bytes of the process before any plan
    machine: str
    signature: str
    is_adaptive: bool  # tries new plans out in small, and lets learning rates fall towards the end
    rate: float = 1.0  # by which learning rates were lowered on the way
    learned: list[MemoryLesson] = field(default_factory=list)
    _tried_out: set[Shape] = field(default_factory=set)
    _looked: float = 0.0
    _limit: int = 0

    def run(self, number: int, plan: RetrainingPlan, micro_s: float) -> MicroWindow | None:
        """Trains with a plan for a short time; None when there is none left for a single update."""
        is_new = plan != self.stepper.plan
        self.stepper.follow(plan)
        if is_new:  # what the former one left; not every time, since looking for it takes a while
            release_free_memory()
        self.memory.begin()
        if self.is_adaptive and _shape(plan) not in self._tried_out:
            self._try_out(plan)
        expected = self.profile.estimate(plan, self.held)
        began, samples, updates, loss, longest = self.window.elapsed_s, 0, 0, 0.0, 0.0
        while True:
            started = self.window.elapsed_s
            if self.window.left_s < (longest if updates else expected.update_s):
                break
            if updates and (started - began >= micro_s or self.limit() < expected.memory_bytes):
                break  # its time is over; or the limit fell, and the rules decide
            places = self.order.following(plan.effective_batch)
            loss += self._update(plan, places) * len(places)
            samples, updates = samples + len(places), updates + 1
            longest = max(longest, self.window.elapsed_s - started)
        if not updates:
            return None
        measured = self.memory.peak()
        self._learn(plan, measured)
        return MicroWindow(
            number, plan, began, self.window.elapsed_s, updates, samples, loss / samples, None, 0.0, 0.0,
            expected.memory_bytes, measured, self.memory.limit(),
        )  # fmt: skip

    def limit(self) -> int:
        """The limit of the memory, as it was a moment ago."""
        now = time.monotonic()
        if now - self._looked > LOOKS_EVERY_S:
            self._looked, self._limit = now, self.memory.limit()
        return self._limit

    def let_go(self) -> None:
        """Of all that a plan needs besides the network."""
        self.stepper.drop_gradients()
        release_free_memory()

    def weigh(self) -> None:
        """What the process holds by now besides a plan: code written for earlier ones, and pieces nobody can use."""
        self.memory.begin()  # a GPU's allocator keeps what nobody uses until then
        updates = self.stepper.updates
        grown = self.memory.used() - (updates.bytes if updates is not None else 0) - self.held
        if grown > 0:
            self.held += grown
            mine = {_shape(one.plan) for one in self.learned}
            self.profile.lessons = [
                replace(one, measured_bytes=max(1, one.measured_bytes - grown)) if _shape(one.plan) in mine else one
                for one in self.profile.lessons
            ]

    def does_not_fit(self, plan: RetrainingPlan) -> None:
        """Such plans take more than was thought, and so do larger ones; of smaller ones that says nothing."""
        self.profile.too_much = min(self.profile.too_much, SMALLER * self.profile.tensors(plan))

    def _try_out(self, plan: RetrainingPlan) -> None:
        """A first update in batches of a quarter of the size tells whether the prediction can be trusted."""
        self._tried_out.add(_shape(plan))
        smaller = replace(plan, batch_size=max(1, plan.batch_size // 4))
        if smaller != plan:
            self.stepper.follow(smaller)
            self._update(smaller, self.order.following(2 * smaller.batch_size))
            self._learn(smaller, self.memory.peak())
            self.stepper.follow(plan)
            self.memory.begin()
        if self.profile.estimate(plan, self.held).memory_bytes > self.memory.limit():
            raise OutOfMemory

    def _update(self, plan: RetrainingPlan, places: Indices) -> float:
        try:
            return self.stepper.update(self._batches(plan, places), len(places), plan.lr * self.rate * self._falling())
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory from None

    def _batches(self, plan: RetrainingPlan, places: Indices) -> Iterator[tuple[Tensor, ...]]:
        for start in range(0, len(places), plan.batch_size):
            yield self.order.samples.batch(places[start : start + plan.batch_size])

    def _falling(self) -> float:
        """What the learning rate is multiplied with: less and less as the window ends."""
        if not self.is_adaptive:
            return 1.0
        return min(1.0, max(0.02, self.window.left_s / self.window.length_s / FALLS_FROM))

    def _learn(self, plan: RetrainingPlan, measured: int | None) -> None:
        if measured is None:
            return
        above = measured - self.held
        lesson = MemoryLesson(self.machine, self.signature, plan, self.profile.tensors(plan), above)
        self.learned = [*_others(self.learned, plan), lesson]
        self.profile.lessons = [*_others(self.profile.lessons, plan), lesson]


def _shape(plan: RetrainingPlan) -> Shape:
    """What decides its memory."""
    return plan.batch_size, plan.freeze_rate, plan.segments


def _others(lessons: list[MemoryLesson], plan: RetrainingPlan) -> list[MemoryLesson]:
    return [one for one in lessons if _shape(one.plan) != _shape(plan)]
