"""The controller: reads what there is, asks for a plan, retrains, watches, and changes the plan when it must."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from onefold.retraining.allocator import map_large_blocks, release_free_memory
from onefold.retraining.batch_norm import batch_norms, reestimate_statistics
from onefold.retraining.data_compatibility import check_compatible
from onefold.retraining.evaluation import Evaluation, Evaluator
from onefold.retraining.job import RetrainingJob
from onefold.retraining.memory_monitor import MemoryMonitor, monitor_for
from onefold.retraining.messages import insufficient_memory_message, short_window_message
from onefold.retraining.network_profile import NetworkProfile, profile_network
from onefold.retraining.plan_runner import OutOfMemory, PlanRunner
from onefold.retraining.planning_context import PlanningContext
from onefold.retraining.rule_facts import RetrainingProgress, plan_facts
from onefold.retraining.samples import BatchOrder
from onefold.retraining.stages import split_into_stages
from onefold.retraining.time_window import TimeWindow
from onefold.retraining.training_step import Stepper
from onefold.retraining.weight_snapshot import WeightSnapshot
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.retraining import (
    MemoryLesson,
    MicroWindow,
    PlanEstimate,
    Reaction,
    RetrainingPlan,
    RetrainingSummary,
)

MICRO_WINDOWS, FEWEST_MICRO_WINDOWS = 40, 8  # in a window
GLANCE = 0.08  # of a micro-window, about, to look how good the model is by then
MEASURED = 0.02  # of the window, at most, for the statistics of batch norms
FEWEST_MEASURED = 32  # samples, below which statistics say nothing


class RetrainingController:
    """One retraining. `run` leaves the network with the weights that are handed back."""

    def __init__(self, job: RetrainingJob) -> None:
        self.job = job
        self.window = TimeWindow(job.limits.window_s, job.began)
        self.memory: MemoryMonitor = monitor_for(job.data.train.device, job.limits.memory_bytes)
        self.windows: list[MicroWindow] = []
        self.reactions: list[Reaction] = []
        self.lowered = 0  # how often learning rates were halved
        self.layouts: dict[nn.Parameter, tuple[int, ...]] = {}  # of weights, as they were found

    @property
    def learned(self) -> list[MemoryLesson]:
        """What plans really took, for later retrainings."""
        return self.practice.learned

    def plan_only(self) -> tuple[PlanEstimate, ...]:
        """The feasible plans, without retraining anything."""
        try:
            self._prepare()
            return self._plans()
        finally:
            self._leave()

    def run(self) -> RetrainingSummary:
        """Retrains. Raises InputError where no plan can keep the limits; the network is then as it was."""
        try:
            self._prepare()
            plans = self._plans()
            self.planning_s = self.window.elapsed_s - self.scored_s
            self.job.tell(plans)
            self._measure_statistics()
            self._train()
            return self._finish()
        except BaseException:
            if hasattr(self, "given"):
                self.given.put_back()
            self._leave()
            raise

    def _prepare(self) -> None:
        """Looks at the data, the network and the model as it is."""
        job = self.job
        torch.manual_seed(job.seed)
        if job.data.train.device.type == "cpu":
            map_large_blocks()
        self.memory.open()
        job.network.eval()
        check_compatible(job.network, job.data, job.workload, job.config)
        if job.strategy.is_adaptive and any(isinstance(one, nn.Conv2d) for one in job.network.modules()):
            self.layouts = {weight: weight.stride() for weight in job.network.parameters()}
            job.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            job.data = job.data.with_channels_last()
        job.tell("profiling the network")
        self.given, self.best = WeightSnapshot(job.network), WeightSnapshot(job.network)
        started = self.window.elapsed_s
        release_free_memory()
        self.collecting_s = self.window.elapsed_s - started  # long where a process has many objects
        at_first = self.memory.used()
        self.memory.begin()
        batch = job.data.train.batch(slice(0, 4))
        staged = split_into_stages(job.network, batch[:-1])
        self.profile: NetworkProfile = profile_network(staged, batch, self._loss, job.lessons)
        self.planning_bytes = max(0, (self.memory.peak() or 0) - at_first)
        release_free_memory()
        self.has_norms = bool(batch_norms(job.network))
        self.practice = PlanRunner(
            Stepper(staged, self.profile.trace, self._loss, steady_norms=job.strategy.is_adaptive),
            self.profile,
            self.memory,
            self.window,
            BatchOrder(job.data.train, job.seed),
            self.memory.used(),
            job.machine,
            job.signature,
            job.strategy.is_adaptive,
        )
        self._score_as_given()

    def _score_as_given(self) -> None:
        job = self.job
        job.tell("scoring the model as it is")
        self.judge = Evaluator(job, self.profile, self._room())
        started = self.window.elapsed_s
        try:
            self.before = self.judge.whole()
        except OutOfMemory:
            raise InputError(insufficient_memory_message(self._situation(), job.limits, job.afterwards_bytes)) from None
        self.scored_s = self.window.elapsed_s - started
        self.window.reserve_s = (
            2.2 * self.scored_s + 2 * self.collecting_s + 0.015 * self.window.length_s + 0.1 + job.afterwards_s
        )
        self.first_glimpse = self.best_glimpse = self.judge.glimpse() if job.strategy.is_adaptive else self.before

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found: Tensor = self.job.workload.loss(outputs, targets, self.job.config)
        return found

    def _situation(self) -> PlanningContext:
        return PlanningContext(
            self.profile,
            self.practice.held,
            self.memory.limit(),
            max(self.window.left_s, 0.0),
            len(self.job.data.train),
            self.has_norms,
            self.job.optimizer,
        )

    def _room(self) -> int:
        """What scoring may take above the process as it is."""
        return round(self._situation().room) - self.practice.held

    def _plans(self) -> tuple[PlanEstimate, ...]:
        """The plans that fit now; says what is the least that is possible where there are none."""
        context = self._situation()
        plans = self.job.strategy.plans(context)
        if not plans or self.practice.held + self.job.afterwards_bytes > context.limit:
            raise InputError(insufficient_memory_message(context, self.job.limits, self.job.afterwards_bytes))
        quickest = min(one.update_s / one.plan.accumulation for one in plans)
        if quickest > context.left_s:
            besides_s = self.window.elapsed_s + self.window.reserve_s
            raise InputError(short_window_message(quickest, besides_s, self.job.limits))
        slowest = max(one.update_s for one in plans)
        longest = max(self.window.length_s / MICRO_WINDOWS, 4 * slowest, self.judge.least_s / GLANCE)
        self.micro_s = min(longest, self.window.length_s / FEWEST_MICRO_WINDOWS)
        self.judge.within(GLANCE * self.micro_s)
        return plans

    def _replanned(self) -> bool:
        """Whether there are plans for what is there now."""
        self.practice.let_go()
        self.practice.weigh()
        self.judge.fit(self._room())
        try:
            self._plans()
        except InputError as error:
            self._react("nothing fits any more", str(error))
            return False
        return True

    def _measure_statistics(self) -> None:
        """Of the new data, for batch norms; kept where the model is no worse with them."""
        job = self.job
        count = min(len(job.data.train), self.judge.samples_within(MEASURED * self.window.length_s))
        if not (job.strategy.is_adaptive and self.has_norms and count >= FEWEST_MEASURED):
            return
        before = WeightSnapshot(job.network)
        reestimate_statistics(job.network, job.data.train.share(count).batches(self.judge.batch_size))
        after = self.judge.glimpse()
        if after.loss < self.best_glimpse.loss:
            self.best_glimpse = after
            self.best.take()
            self._react("batch norms", f"their statistics were measured on {count} samples of the new data")
        else:
            before.put_back()

    def _train(self) -> None:
        """Micro-window after micro-window, until the window is over or a rule says so."""
        plan: RetrainingPlan | None = None
        stalled, last, lowest = 0, self.best_glimpse, self.best_glimpse.loss
        while self.window.left_s > 0:
            plan = self.job.strategy.next_plan(self.window.share)
            try:
                window = self.practice.run(len(self.windows) + 1, plan, self.micro_s)
            except OutOfMemory:
                if not self._ran_out(plan):
                    break
                continue
            if window is None:
                break
            self.judge.shrink(self._room())
            try:
                seen = self.judge.glimpse() if self.job.strategy.is_adaptive else None
            except OutOfMemory:
                if not self._ran_out(plan):
                    break
                continue
            self._judge(window, last if seen is not None else None, seen)
            if seen is not None:
                is_better = seen.is_better_than(self.best_glimpse)
                stalled = 0 if is_better or seen.loss < lowest else stalled + 1
                last, lowest = seen, min(lowest, seen.loss)
                if is_better:
                    self.best_glimpse = seen
                    self.best.take()
            if not self._goes_on(plan, self.windows[-1], stalled):
                break

    def _judge(self, window: MicroWindow, before: Evaluation | None, seen: Evaluation | None) -> None:
        """What a micro-window gained: on kept-back data where that was looked at, else on what it learned from."""
        took = max(1e-9, window.ended_s - window.began_s)
        if before is not None and seen is not None:
            gain = _fell(before.loss, seen.loss) / took
        else:
            gain = _fell(self.windows[-1].loss if self.windows else window.loss, window.loss) / took
        merit = self.job.strategy.tell(window.plan, gain, took / max(1, window.samples))
        score = None if seen is None else seen.score
        self.windows.append(replace(window, gain_per_s=gain, merit=merit, score=score))
        self.job.tell(self.windows[-1])

    def _ran_out(self, plan: RetrainingPlan) -> bool:
        """Memory did; whether there is another plan."""
        is_handled = self.job.strategy.on_out_of_memory()
        if not is_handled and self.profile.estimate(plan, self.practice.held).memory_bytes <= self.memory.limit():
            self.practice.does_not_fit(plan)  # and not because the limit fell
        self._react("memory ran out", f"{plan} does not fit; planning anew")
        return self._replanned()

    def _goes_on(self, plan: RetrainingPlan, window: MicroWindow, stalled: int) -> bool:
        """Does what the rules say; whether there is anything more to do."""
        expected = self.profile.estimate(plan, self.practice.held)
        if not self.job.strategy.is_adaptive:
            if expected.memory_bytes > self.memory.limit():
                self._react("memory shrinks", "planning anew")
                return self._replanned()
            return math.isfinite(window.loss)
        fastest = max(one.samples_per_s for one in self.job.strategy.estimates())
        way = RetrainingProgress(
            elapsed_s=self.window.elapsed_s,
            left_s=self.window.left_s,
            micro_window_s=self.micro_s,
            windows=self.windows,
            best_score=self.judge.oriented(self.best_glimpse.score),
            first_score=self.judge.oriented(self.first_glimpse.score),
            score=self.judge.oriented(window.score if window.score is not None else math.nan),
            stalled=stalled,
            best_other_merit=self.job.strategy.best_other_merit(plan),
            predicted_bytes=expected.memory_bytes,
            limit_bytes=self.memory.limit(),
            used_bytes=self.memory.used(),
            plans=len(self.job.strategy.estimates()),
            lowered=self.lowered,
        )
        facts = {**plan_facts(self._situation(), expected, fastest), **way.facts()}
        verdict = self.job.rules.reaction(facts)
        if verdict is None:
            return True
        if verdict.then == "give way":
            self.job.strategy.switch_plan()
            return True
        if verdict.then != "finish" or self.window.left_s > self.micro_s:
            self._react(verdict.rule, verdict.said)
        if verdict.then == "replan":
            return self._replanned()
        if verdict.then in ("slow down", "go back"):
            self.practice.rate, self.lowered = self.practice.rate / 2, self.lowered + 1
        if verdict.then == "go back":
            self.best.put_back()
            self.practice.stepper.forget()
        return verdict.then != "finish"

    def _react(self, rule: str, said: str) -> None:
        reaction = Reaction(self.window.elapsed_s, rule, said)
        self.reactions.append(reaction)
        self.job.tell(reaction)

    def _finish(self) -> RetrainingSummary:
        """Hands over the best on the kept-back data: what came last, the best on the way, or what was given."""
        network = self.job.network
        self.practice.let_go()
        self.judge.fit(self._room())
        try:
            after = self.judge.whole()
        except OutOfMemory:
            self._react("memory ran out", "none is left to score the model with: it stays as it was given")
            self.given.put_back()
            self.best.take()
            after = self.before
        soon = self.window.elapsed_s + 1.2 * self.scored_s + self.job.afterwards_s
        in_time = soon < self.window.length_s
        if self.job.strategy.is_adaptive and in_time and not self.best.is_what_is_there():
            latest = WeightSnapshot(network)
            self.best.put_back()
            other = self.judge.whole()
            if other.is_better_than(after):
                after = other
            else:
                latest.put_back()
        kept_new = after.score != self.before.score and after.is_better_than(self.before)
        if not kept_new:
            self.given.put_back()
            after = self.before
        self._leave()
        chosen = self._most_used()
        return RetrainingSummary(
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
            plans=self.job.strategy.estimates(),
            windows=tuple(self.windows),
            reactions=tuple(self.reactions),
            layers=self.profile.layers(),
            alpha=self.job.alpha,
            planning_s=self.planning_s,
            planning_bytes=self.planning_bytes,
            held_bytes=self.practice.held,
            peak_bytes=self.memory.highest(),
            elapsed_s=self.window.elapsed_s,
            higher_is_better=self.judge.higher_is_better,
        )

    def _leave(self) -> None:
        """The network as anybody would expect it."""
        self.memory.close()
        if hasattr(self, "practice"):
            self.practice.stepper.leave()
        for weight, strides in self.layouts.items():
            if weight.stride() != strides:
                weight.data = torch.empty_like(weight.data).as_strided(weight.shape, strides).copy_(weight.data)
        self.job.network.eval()

    def _most_used(self) -> RetrainingPlan | None:
        """The plan that had the most time."""
        times: dict[RetrainingPlan, float] = {}
        for one in self.windows:
            times[one.plan] = times.get(one.plan, 0.0) + one.ended_s - one.began_s
        return max(times, key=lambda plan: times[plan]) if times else None

    def _why(self, chosen: RetrainingPlan | None, kept_new: bool) -> str:
        if not kept_new:
            return "nothing was better on the data kept back, so the model stays as it was given"
        if chosen is None:
            return "measuring the statistics of batch norms on the new data was enough"
        mine = [one for one in self.windows if one.plan == chosen]
        return (
            f"it had {len(mine)} of {len(self.windows)} micro-windows: no other plan promised more of "
            f"{self.job.alpha:g} x gain + {1 - self.job.alpha:g} / time"
        )


def _fell(before: float, after: float) -> float:
    """By what share a loss fell."""
    if not (math.isfinite(before) and math.isfinite(after)) or before <= 0:
        return 0.0
    return (before - after) / before
