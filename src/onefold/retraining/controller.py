"""The controller: reads what there is, asks for a plan, retrains, watches, and changes the plan when it must."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from onefold.errors import InputError
from onefold.plans import Expected, Limits, MemoryLesson, MicroWindow, Plan, Reaction, Retrained
from onefold.records import Config
from onefold.retraining.allocator import follow_tensors, give_back
from onefold.retraining.chain import chain_of
from onefold.retraining.checking import check_fits
from onefold.retraining.complaints import complaint_about_memory, complaint_about_time
from onefold.retraining.judging import Judge
from onefold.retraining.limits import Memory, memory_of
from onefold.retraining.profile import Profile, profile_of
from onefold.retraining.ranges import Situation, facts_of
from onefold.retraining.rules import Rules
from onefold.retraining.samples import NewData
from onefold.retraining.statistics import measure_statistics, norms_of
from onefold.retraining.stepping import Stepper
from onefold.retraining.strategies import OomRetry, Strategy
from onefold.workload import Workload

MICRO_WINDOWS = 40  # in a window
MEASURED = 0.02  # of the window, at most, for the statistics of batch norms
FALLS_FROM = 0.5  # of the window on, the learning rate falls to nothing
Told = MicroWindow | Reaction | tuple[Expected, ...] | str


@dataclass
class Job:
    """What is to be retrained, on what, within what."""

    network: nn.Module
    data: NewData
    limits: Limits
    strategy: Strategy
    rules: Rules
    workload: Workload = field(default_factory=Workload)
    config: Config = field(default_factory=Config)
    name: str = "model"
    device: str = "host"
    machine: str = ""
    signature: str = ""
    lessons: tuple[MemoryLesson, ...] = ()
    optimizer: str = "adam"
    metric: str | None = None
    alpha: float = 0.5
    seed: int = 0
    afterwards_bytes: int = 0  # that will be needed once it is done, to write the model
    began: float | None = None  # on the monotonic clock; now without it
    tell: Callable[[Told], None] = lambda _: None


class OutOfMemory(Exception):
    """A step did not fit after all."""


class Retraining:
    """One retraining. `run` leaves the network with the weights that are handed back."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.began = time.monotonic() if job.began is None else job.began
        self.accelerator = job.data.train.device
        self.memory: Memory = memory_of(self.accelerator, job.limits.memory_bytes)
        self.learned: list[MemoryLesson] = []  # for later retrainings
        self.windows: list[MicroWindow] = []
        self.reactions: list[Reaction] = []
        self.rate = 1.0  # by which learning rates were lowered
        self.lowered = 0
        self._tried_out: set[tuple[int, float, int]] = set()  # shapes of plans whose memory is known
        self._random = np.random.default_rng(job.seed)
        self._order: Iterator[np.ndarray] | None = None

    @property
    def elapsed_s(self) -> float:
        """Since the window opened."""
        return time.monotonic() - self.began

    def plan_only(self) -> tuple[Expected, ...]:
        """The feasible plans, without retraining anything."""
        self._prepare()
        return self._plans()

    def run(self) -> Retrained:
        """Retrains. Raises InputError where no plan can keep the limits; the network is then as it was."""
        try:
            self._prepare()
            plans = self._plans()
            self.planning_s = self.elapsed_s - self._scored_before_s
            self.planning_bytes = max(0, (self.memory.peak() or self.held) - self._at_first)
            self.job.tell(plans)
            self._measure_statistics()
            self._train()
            return self._finish()
        except BaseException:
            if hasattr(self, "given"):
                self._put_back(self.given)
            raise

    # What comes first

    def _prepare(self) -> None:
        job = self.job
        torch.manual_seed(job.seed)
        if self.accelerator.type == "cpu":
            follow_tensors()
        job.network.eval()
        check_fits(job.network, job.data, job.workload, job.config)
        job.tell("profiling the network")
        self.given = _copied(job.network)
        self.best = _copied(job.network)
        _collect()
        self._at_first = self.memory.used()
        self.memory.begin()
        batch = job.data.train.batch(slice(0, 4))
        chain = chain_of(job.network, batch[:-1])
        self.profile: Profile = profile_of(chain, batch, self._loss, job.lessons)
        self.stepper = Stepper(chain, self.profile.trace, self._loss, steady_norms=job.strategy.is_careful)
        self.has_norms = bool(norms_of(job.network))
        _collect()
        self.held = self.memory.used()
        self.judge = Judge(job, self.profile, self._room_for_scoring())
        job.tell("scoring the model as it is")
        started = self.elapsed_s
        self.before = self.judge.whole()
        self._scored_before_s = self.elapsed_s - started
        self.reserve_s = 2.5 * self._scored_before_s + 0.02 * job.limits.window_s
        self.first_glimpse = self.best_glimpse = self.judge.glimpse() if job.strategy.is_careful else self.before

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found: Tensor = self.job.workload.loss(outputs, targets, self.job.config)
        return found

    def _room_for_scoring(self) -> int:
        return self.memory.limit() - self.held

    def _situation(self) -> Situation:
        left = self.job.limits.window_s - self.elapsed_s - getattr(self, "reserve_s", 0.0)
        return Situation(
            self.profile,
            self.held,
            self.memory.limit(),
            max(left, 0.0),
            len(self.job.data.train),
            self.has_norms,
            self.job.optimizer,
        )

    def _plans(self) -> tuple[Expected, ...]:
        """The plans that fit now; says what is the least that is possible where there are none."""
        situation = self._situation()
        plans = self.job.strategy.plans(situation)
        if not plans or self.held + self.job.afterwards_bytes > situation.limit:
            raise InputError(complaint_about_memory(situation, self.job.limits, self.job.afterwards_bytes))
        quickest = min(one.update_s / one.plan.accumulation for one in plans)
        if quickest > situation.left_s:
            raise InputError(complaint_about_time(quickest, self.elapsed_s + self.reserve_s, self.job.limits))
        slowest = max(one.update_s for one in plans)
        self.micro_s = min(max(self.job.limits.window_s / MICRO_WINDOWS, 2 * slowest), self.job.limits.window_s / 5)
        self.judge.within(0.1 * self.micro_s)
        return plans

    def _measure_statistics(self) -> None:
        """Of the new data, for batch norms; kept where the model is no worse with them."""
        job = self.job
        if not (job.strategy.is_careful and self.has_norms):
            return
        before = _copied(job.network)
        count = min(len(job.data.train), self.judge.samples_within(MEASURED * job.limits.window_s))
        if count < 32:
            return
        measure_statistics(job.network, job.data.train.share(count).batches(self.judge.batch_size))
        after = self.judge.glimpse()
        if after.loss < self.best_glimpse.loss:
            self.best_glimpse = after
            self._keep()
            self._react("batch norms", f"their statistics were measured on {count} samples of the new data")
        else:
            self._put_back(before)

    # The window

    def _train(self) -> None:
        plan: Plan | None = None
        stalled = 0
        last = self.best_glimpse
        self.lowest_loss = last.loss
        while self._left_s() > 0:
            share = self.elapsed_s / self.job.limits.window_s
            plan = self.job.strategy.following(plan, share)
            try:
                window = self._micro_window(plan)
            except OutOfMemory:
                self._ran_out(plan)
                continue
            if window is None:
                break
            seen = self.judge.glimpse() if self.job.strategy.is_careful else None
            loss_before = last.loss if seen is not None else (self.windows[-1].loss if self.windows else window.loss)
            loss_after = seen.loss if seen is not None else window.loss
            took = max(1e-9, window.ended_s - window.began_s)
            gain = _relative(loss_before, loss_after) / took
            merit = self.job.strategy.tell(plan, gain, took / max(1, window.samples))
            window = replace(window, gain_per_s=gain, merit=merit, score=None if seen is None else seen.score)
            self.windows.append(window)
            self.job.tell(window)
            if seen is not None:
                last = seen
                stalled = 0 if seen.is_better_than(self.best_glimpse) or seen.loss < self.lowest_loss else stalled + 1
                self.lowest_loss = min(self.lowest_loss, seen.loss)
                if seen.is_better_than(self.best_glimpse):
                    self.best_glimpse = seen
                    self._keep()
            if self._reacted(plan, window, stalled) == "finish":
                break

    def _micro_window(self, plan: Plan) -> MicroWindow | None:
        """Trains with a plan for a short time; None when there is no time left for a single update."""
        expected = self.profile.expected(plan, self.held)
        self.stepper.follow(plan)
        _collect()
        self.memory.begin()
        if not self._is_known(plan):
            self._try_out(plan)
            expected = self.profile.expected(plan, self.held)
            if expected.memory_bytes > self.memory.limit() and not isinstance(self.job.strategy, OomRetry):
                raise OutOfMemory
        began, samples, updates, loss = self.elapsed_s, 0, 0, 0.0
        longest = 0.0
        while True:
            started = self.elapsed_s
            over = started - began >= self.micro_s
            if (updates and over) or self._left_s() < max(longest, 0.0 if updates else expected.update_s):
                break
            if updates and self.memory.limit() < expected.memory_bytes:
                break  # the limit fell: the rules decide
            places = self._next(plan.effective_batch)
            loss += self._update(plan, places) * len(places)
            samples, updates = samples + len(places), updates + 1
            longest = max(longest, self.elapsed_s - started)
        if not updates:
            return None
        measured = self.memory.peak()
        self._learn(plan, measured)
        return MicroWindow(
            len(self.windows) + 1, plan, began, self.elapsed_s, updates, samples, loss / samples, None, 0.0, 0.0,
            expected.memory_bytes, measured, self.memory.limit(),
        )  # fmt: skip

    def _update(self, plan: Plan, places: np.ndarray) -> float:
        train = self.job.data.train
        parts = (
            train.batch(places[start : start + plan.batch_size]) for start in range(0, len(places), plan.batch_size)
        )
        try:
            return self.stepper.update(parts, len(places), plan.lr * self.rate * self._falling())
        except (RuntimeError, MemoryError) as error:
            if not _is_about_memory(error):
                raise
            raise OutOfMemory from None

    def _falling(self) -> float:
        """What the learning rate is multiplied with: less and less as the window ends."""
        if not self.job.strategy.is_careful:
            return 1.0
        left = self._left_s() / self.job.limits.window_s
        return min(1.0, max(0.02, left / FALLS_FROM))

    def _left_s(self) -> float:
        return self.job.limits.window_s - self.elapsed_s - self.reserve_s

    def _next(self, count: int) -> np.ndarray:
        """The places of the samples of the next update: every sample once, then in another order again."""
        while True:
            if self._order is None:
                order = self.job.data.train.shuffled(self._random)
                self._order = iter([order[at : at + count] for at in range(0, len(order), count)])
                self._count = count
            if self._count != count:
                rest = [place for part in self._order for place in part]
                self._order = iter([np.array(rest[at : at + count]) for at in range(0, len(rest), count)])
                self._count = count
            found = next(self._order, None)
            if found is not None and len(found) > 1:
                return found
            self._order = None

    # Memory

    def _is_known(self, plan: Plan) -> bool:
        return (plan.batch_size, plan.freeze_rate, plan.segments) in self._tried_out

    def _try_out(self, plan: Plan) -> None:
        """A first update in batches of a quarter of the size tells whether the prediction can be trusted."""
        self._tried_out.add((plan.batch_size, plan.freeze_rate, plan.segments))
        smaller = replace(plan, batch_size=max(1, plan.batch_size // 4))
        if smaller == plan or isinstance(self.job.strategy, OomRetry):
            return
        self._update(smaller, self._next(min(plan.effective_batch, 2 * smaller.batch_size)))
        self._learn(smaller, self.memory.peak())
        self.stepper.follow(plan)
        self.memory.begin()

    def _learn(self, plan: Plan, measured: int | None) -> None:
        if measured is None:
            return
        lesson = MemoryLesson(
            self.job.machine, self.job.signature, plan, self.profile.tensors(plan), measured - self.held
        )
        shape = (plan.batch_size, plan.freeze_rate, plan.segments)
        for lessons in (self.learned, self.profile.lessons):
            lessons[:] = [
                one for one in lessons if (one.plan.batch_size, one.plan.freeze_rate, one.plan.segments) != shape
            ]
            lessons.append(lesson)

    def _ran_out(self, plan: Plan) -> None:
        self.stepper.drop_gradients()
        _collect()
        if isinstance(self.job.strategy, OomRetry):
            self.job.strategy.ran_out()
        else:
            predicted = self.profile.tensors(plan)
            self.profile.lessons.append(
                MemoryLesson(self.job.machine, self.job.signature, plan, predicted, round(predicted * 1.5))
            )
        self._react("memory ran out", f"{plan} does not fit; planning anew")
        self._replan()

    def _replan(self) -> None:
        self.stepper.drop_gradients()
        _collect()
        self._plans()

    # Reactions

    def _reacted(self, plan: Plan, window: MicroWindow, stalled: int) -> str:
        expected = self.profile.expected(plan, self.held)
        situation = self._situation()
        if not self.job.strategy.is_careful:
            if expected.memory_bytes > self.memory.limit():
                self._react("memory shrinks", "planning anew")
                self._replan()
            return "finish" if not math.isfinite(window.loss) else ""
        limit = self.memory.limit()
        facts = facts_of(situation, expected, max(one.samples_per_s for one in self.job.strategy.tried()))
        score = window.score if window.score is not None else -window.loss
        facts |= {
            "elapsed_s": self.elapsed_s,
            "left_s": self._left_s(),
            "micro_window_s": self.micro_s,
            "loss": window.loss if math.isfinite(window.loss) else 1e30,
            "best_loss": min(one.loss for one in self.windows) if math.isfinite(window.loss) else window.loss,
            "first_loss": self.windows[0].loss,
            "score": self.judge.oriented(score),
            "best_score": self.judge.oriented(self.best_glimpse.score),
            "first_score": self.judge.oriented(self.first_glimpse.score),
            "gain_per_s": window.gain_per_s,
            "stalled": float(stalled),
            "merit": window.merit,
            "best_other_merit": self.job.strategy.best_other_merit(plan),
            "predicted_bytes": float(expected.memory_bytes),
            "measured_bytes": float(window.measured_bytes or 0),
            "limit_bytes": float(limit),
            "free_bytes": float(max(0, limit - self.memory.used())),
            "plans": float(len(self.job.strategy.tried())),
            "lowered": float(self.lowered),
            "is_finite": math.isfinite(window.loss),
        }
        verdict = self.job.rules.reaction(facts)
        if verdict is None:
            return ""
        if verdict.then == "replan":
            self._react(verdict.rule, verdict.said)
            self._replan()
        elif verdict.then in ("slow down", "go back"):
            self._react(verdict.rule, verdict.said)
            self.rate, self.lowered = self.rate / 2, self.lowered + 1
            if verdict.then == "go back":
                self._put_back(self.best)
                if self.stepper.updates is not None:
                    self.stepper.updates.forget()
        elif verdict.then == "finish" and self._left_s() > self.micro_s:
            self._react(verdict.rule, verdict.said)
        return verdict.then

    def _react(self, rule: str, said: str) -> None:
        reaction = Reaction(self.elapsed_s, rule, said)
        self.reactions.append(reaction)
        self.job.tell(reaction)

    # The end

    def _keep(self) -> None:
        """What the network knows now is the best so far."""
        for name, value in self.job.network.state_dict().items():
            self.best[name].copy_(value)

    def _put_back(self, weights: dict[str, Tensor]) -> None:
        self.job.network.load_state_dict(weights)

    def _finish(self) -> Retrained:
        """Hands over the best on the kept-back data: what came last, the best on the way, or what was given."""
        network = self.job.network
        self.stepper.drop_gradients()
        after = self.judge.whole()
        if self.job.strategy.is_careful and any(
            not torch.equal(self.best[k], v) for k, v in network.state_dict().items()
        ):
            latest = _copied(network)
            self._put_back(self.best)
            other = self.judge.whole()
            if other.is_better_than(after):
                after = other
            else:
                self._put_back(latest)
        kept_new = after.score != self.before.score and after.is_better_than(self.before)
        if not kept_new:
            self._put_back(self.given)
            after = self.before
        for weight in network.parameters():
            weight.requires_grad_(True)
        network.eval()
        chosen = self._most_used()
        return Retrained(
            model=self.job.name,
            device=self.job.device,
            strategy=self.job.strategy.name,
            limits=self.job.limits,
            metric=self.judge.metric,
            before=self.before.score,
            after=after.score,
            kept_new=kept_new,
            why=self._why(chosen, kept_new),
            chosen=chosen,
            plans=self.job.strategy.tried(),
            windows=tuple(self.windows),
            reactions=tuple(self.reactions),
            layers=self.profile.layers(),
            alpha=self.job.alpha,
            planning_s=self.planning_s,
            planning_bytes=self.planning_bytes,
            peak_bytes=max((one.measured_bytes for one in self.windows if one.measured_bytes), default=None),
            elapsed_s=self.elapsed_s,
            higher_is_better=self.judge.higher_is_better,
        )

    def _most_used(self) -> Plan | None:
        """The plan that had the most time."""
        times: dict[Plan, float] = {}
        for one in self.windows:
            times[one.plan] = times.get(one.plan, 0.0) + one.ended_s - one.began_s
        return max(times, key=lambda plan: times[plan]) if times else None

    def _why(self, chosen: Plan | None, kept_new: bool) -> str:
        if not kept_new:
            return "nothing was better on the data kept back, so the model stays as it was given"
        if chosen is None:
            return "measuring the statistics of batch norms on the new data was enough"
        mine = [one for one in self.windows if one.plan == chosen]
        return (
            f"it had {len(mine)} of {len(self.windows)} micro-windows: no other plan promised more of "
            f"{self.job.alpha:g} x gain + {1 - self.job.alpha:g} / time"
        )


def _relative(before: float, after: float) -> float:
    """By what share a loss fell."""
    if not (math.isfinite(before) and math.isfinite(after)) or before <= 0:
        return 0.0
    return (before - after) / before


def _copied(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def _collect() -> None:
    gc.collect()
    give_back()


def _is_about_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(words in str(error) for words in ("not enough memory", "can't allocate memory", "out of memory"))
