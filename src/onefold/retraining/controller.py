"""The retraining loop: profile, plan, train in micro-windows, react to rules, return the best model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

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
from onefold.retraining.plan_runner import PlanOutOfMemory, PlanRunner
from onefold.retraining.planning_context import PlanningContext, remembered_gains
from onefold.retraining.rule_facts import RetrainingProgress, plan_facts
from onefold.retraining.rules import Verdict
from onefold.retraining.samples import BatchOrder
from onefold.retraining.stages import split_into_stages
from onefold.retraining.time_reserve import EXIT_S, TimeReserve, python_slowdown, time_write
from onefold.retraining.time_window import TimeWindow
from onefold.retraining.training_step import Stepper
from onefold.retraining.weight_snapshot import WeightSnapshot
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.quantities import count, duration
from onefold.vocabulary.retraining import (
    MemoryLesson,
    MicroWindow,
    PhaseStarted,
    PlanEstimate,
    PlansFound,
    Reaction,
    RetrainingPlan,
    RetrainingSummary,
)

MAX_MICRO_WINDOWS, MIN_MICRO_WINDOWS = 40, 12  # in the time for training
UPDATES_PER_MICRO_WINDOW = 4  # of the slowest plan, at least
EVALUATION_SHARE = 0.08  # of a micro-window, about, to evaluate a subset
STATISTICS_SHARE = 0.02  # of the window, at most, to re-estimate BatchNorm statistics
MIN_STATISTICS_SAMPLES = 32
PROFILED_SAMPLES = 4
PROFILING_FORWARDS = 15  # of two samples; profiling takes at least as long as so many


class RetrainingController:
    """One retraining. After `run` the network has the weights that are returned."""

    def __init__(self, job: RetrainingJob) -> None:
        self.job = job
        self.window = TimeWindow(job.limits.window_s, job.started_at, job.clock, job.control)
        self.memory: MemoryMonitor = monitor_for(job.data.train.device, job.limits.memory_bytes, job.control)
        self.windows: list[MicroWindow] = []
        self.reactions: list[Reaction] = []
        self.lr_halvings = 0
        self._length_s = job.limits.window_s  # of the window, when plans were last made
        self._told = ""
        self.strides: dict[nn.Parameter, tuple[int, ...]] = {}  # original memory format of the weights

    @property
    def is_on_cpu(self) -> bool:
        """Whether the memory of the process counts, rather than that of a GPU."""
        return self.job.data.train.device.type == "cpu"

    @property
    def lessons(self) -> list[MemoryLesson]:
        """Return the memory measurements of this retraining."""
        return self.runner.lessons

    def plan_only(self) -> tuple[PlanEstimate, ...]:
        """Return the feasible plans without training. Raises as `run` does."""
        try:
            self._prepare()
            return self._plan()
        finally:
            self._release()

    def run(self) -> RetrainingSummary:
        """Retrain the network. After any exception the network is as given.

        Raises:
            InputError: No plan can keep the limits.
            DatasetError: The network cannot be trained on the data.
        """
        try:
            self._prepare()
            plans = self._plan()
            self.planning_s = self.window.elapsed_s - self.evaluation_s
            self.job.on_event(PlansFound(plans))
            self._reestimate_statistics()
            self._train()
            return self._finish()
        except BaseException:
            if hasattr(self, "given"):
                self.given.restore()
            self._release()
            raise

    def _prepare(self) -> None:
        """Check the data, profile the network and evaluate the given model."""
        job = self.job
        torch.manual_seed(job.seed)
        if self.is_on_cpu:
            map_large_blocks()
        self.memory.open()
        job.network.eval()
        floating = (weight.dtype for weight in job.network.parameters() if weight.is_floating_point())
        job.data = job.data.with_dtype(next(floating, torch.float32))
        started = self.window.elapsed_s
        check_compatible(job.network, job.data, job.workload, job.config)
        forward_s = (self.window.elapsed_s - started) / 2  # of two samples, twice
        self._require(PROFILING_FORWARDS * forward_s)
        if job.strategy.is_adaptive and any(isinstance(module, nn.Conv2d) for module in job.network.modules()):
            self.strides = {weight: weight.stride() for weight in job.network.parameters()}
            job.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            job.data = job.data.with_channels_last()
        job.on_event(PhaseStarted("profiling the network"))
        self.given, self.best = WeightSnapshot(job.network), WeightSnapshot(job.network)
        started = self.window.elapsed_s
        release_free_memory()
        collection_s = self.window.elapsed_s - started  # long in a process with many objects
        slowdown = python_slowdown(job.clock)
        has_folder = job.save_s > 0
        self.reserve = TimeReserve(
            collection_s=collection_s,
            write_s=time_write(self.given, job.clock) if has_folder else 0.0,
            save_s=job.save_s * slowdown,
            exit_s=EXIT_S * slowdown if has_folder else 0.0,
        )
        self.window.reserve_s = self.reserve.seconds
        self._require(PROFILING_FORWARDS * forward_s)
        used = self.memory.used()
        self.memory.reset_peak()
        batch = job.data.train.few(PROFILED_SAMPLES)
        staged = split_into_stages(job.network, batch[:-1])
        self.profile: NetworkProfile = profile_network(staged, batch, self._loss, job.lessons, job.clock)
        self.profiling_bytes = self.memory.peak() or used
        self.planning_bytes = max(0, self.profiling_bytes - used)
        release_free_memory()
        self.has_batch_norm = bool(batch_norms(job.network))
        reference = job.data.reference if job.strategy.is_adaptive else None
        replayed = None if reference is None else reference.replayed
        self.runner = PlanRunner(
            Stepper(staged, self.profile.trace, self._loss, running_statistics=job.strategy.is_adaptive),
            self.profile,
            self.memory,
            self.window,
            BatchOrder(job.data.train, job.seed, replayed),
            self.memory.used(),
            job.machine,
            job.signature,
            job.strategy.is_adaptive,
        )
        self._evaluate_given()

    def _evaluate_given(self) -> None:
        job = self.job
        job.on_event(PhaseStarted("evaluating the given model"))
        self.evaluator = Evaluator(job, self.profile, self._evaluation_bytes(), self.reserve)
        self._require(self.evaluator.samples * self.evaluator.sample_s / 2)  # which is a rough estimate
        started = self.window.elapsed_s
        try:
            self.before = self.evaluator.evaluate()
        except PlanOutOfMemory:
            raise InputError(insufficient_memory_message(self._context(), job.limits, self._other_bytes)) from None
        self.evaluation_s = self.window.elapsed_s - started
        self.window.reserve_s = self.reserve.seconds
        self.first_subset = self.best_subset = (
            self.evaluator.evaluate_subset() if job.strategy.is_adaptive else self.before
        )

    def _require(self, seconds: float) -> None:
        """Raise InputError if the window is too short for what takes this long before training can begin."""
        if self.window.left_s < seconds and not self.window.is_stopped:
            needed_s = self.window.elapsed_s + seconds + self.window.reserve_s
            raise InputError(short_window_message(0.0, needed_s, self.job.limits))

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = self.job.workload.loss(outputs, targets, self.job.config)
        return loss

    def _context(self) -> PlanningContext:
        return PlanningContext(
            self.profile,
            self.runner.held_bytes,
            self.memory.limit(),
            max(self.window.left_s, 0.0),
            len(self.job.data.train),
            self.has_batch_norm,
            self.job.optimizer,
            remembered_gains(self.job.lessons),
        )

    @property
    def _other_bytes(self) -> int:
        """The memory of the process that everything but training needs at least: profiling and saving the model."""
        return max(self.profiling_bytes, self.runner.held_bytes + self.job.save_bytes)

    def _evaluation_bytes(self) -> int:
        """Return what an evaluation may add to the process."""
        return round(self._context().usable_bytes) - self.runner.held_bytes

    def _plan(self) -> tuple[PlanEstimate, ...]:
        """Return the plans that fit now, and size the micro-windows for them. Raises InputError if none fits."""
        context = self._context()
        plans = self.job.strategy.plans(context)
        if not plans or self._other_bytes > context.limit_bytes:
            raise InputError(insufficient_memory_message(context, self.job.limits, self._other_bytes))
        step_s = min(estimate.update_s / estimate.plan.accumulation for estimate in plans)
        if step_s > context.left_s and not self.window.is_stopped:
            other_s = self.window.elapsed_s + self.window.reserve_s
            raise InputError(short_window_message(step_s, other_s, self.job.limits))
        slowest_s = max(estimate.update_s for estimate in plans)
        training_s = max(0.0, self.window.left_s)
        wanted_s = max(
            training_s / MAX_MICRO_WINDOWS,
            UPDATES_PER_MICRO_WINDOW * slowest_s,
            self.evaluator.shortest_s / EVALUATION_SHARE,
        )
        self.micro_window_s = min(wanted_s, training_s / MIN_MICRO_WINDOWS)
        self.evaluator.limit_subset(EVALUATION_SHARE * self.micro_window_s)
        return plans

    def _replan(self) -> bool:
        """Search for plans under the present limit; return False if none fits any more."""
        self.runner.release()
        self.runner.update_held_bytes()
        self.evaluator.fit_batch(self._evaluation_bytes())
        try:
            self._plan()
        except InputError as error:
            self._react("no plan fits any more", str(error))
            return False
        return True

    def _reestimate_statistics(self) -> None:
        """Re-estimate the BatchNorm statistics on the new data; keep them if the loss falls."""
        job = self.job
        samples = min(len(job.data.train), self.evaluator.samples_within(STATISTICS_SHARE * self.window.length_s))
        if not (job.strategy.is_adaptive and self.has_batch_norm and samples >= MIN_STATISTICS_SAMPLES):
            return
        parts = [job.data.train.first(samples)]
        parts += [job.data.reference.replayed] if job.data.reference is not None else []
        batches = chain.from_iterable(part.batches(self.evaluator.batch_size) for part in parts)
        reestimate_statistics(job.network, batches)
        after = self.evaluator.evaluate_subset()
        if after.loss < self.best_subset.loss and after.keeps_reference:
            self.best_subset = after
            self.best.capture()
            self._react("batch norms", f"statistics re-estimated on {samples} samples of the new data")
        else:
            self.given.restore()

    def _train(self) -> None:
        """Run micro-windows until the window is over or a rule ends the retraining."""
        stalled, last, lowest_loss = 0, self.best_subset, self.best_subset.loss
        began_s = self.window.elapsed_s
        while self.window.left_s > 0:
            trained_s = self.window.elapsed_s - began_s
            plan = self.job.strategy.next_plan(trained_s / (trained_s + self.window.left_s))
            try:
                window = self.runner.run(len(self.windows) + 1, plan, self.micro_window_s)
                if window is None:
                    break
                self.evaluator.shrink_batch(self._evaluation_bytes())
                evaluation = self.evaluator.evaluate_subset() if self.job.strategy.is_adaptive else None
            except PlanOutOfMemory:
                if not self._recover_from_out_of_memory(plan):
                    break
                continue
            self.window.reserve_s = self.reserve.seconds
            self._record(window, last, evaluation)
            if evaluation is not None:
                is_better = evaluation.is_better_than(self.best_subset)
                stalled = 0 if is_better or evaluation.loss < lowest_loss else stalled + 1
                last, lowest_loss = evaluation, min(lowest_loss, evaluation.loss)
                if is_better:
                    self.best_subset = evaluation
                    self.best.capture()
            if not self._continue(plan, self.windows[-1], stalled):
                break

    def _record(self, window: MicroWindow, before: Evaluation, evaluation: Evaluation | None) -> None:
        """Record a micro-window with its gain: on validation data if it was evaluated, else on its training data."""
        seconds = max(1e-9, window.ended_s - window.began_s)
        if evaluation is not None:
            gain = _relative_decrease(before.loss, evaluation.loss) / seconds
        else:
            previous_loss = self.windows[-1].loss if self.windows else window.loss
            gain = _relative_decrease(previous_loss, window.loss) / seconds
        merit = self.job.strategy.tell(window.plan, gain, seconds / max(1, window.samples))
        score = None if evaluation is None else evaluation.score
        self.windows.append(replace(window, gain_per_s=gain, merit=merit, score=score))
        self.runner.learn_gain(self.windows[-1])
        self.job.on_event(self.windows[-1])

    def _recover_from_out_of_memory(self, plan: RetrainingPlan) -> bool:
        """Replan after a failed allocation; return False if no plan fits any more."""
        is_handled = self.job.strategy.on_out_of_memory()
        is_predicted_to_fit = self.runner.estimate(plan).memory_bytes <= self.memory.limit()
        if not is_handled and is_predicted_to_fit:
            self.runner.mark_infeasible(plan)  # the prediction was too low; the limit did not fall
        has_shrunk = self.job.strategy.is_adaptive and not is_predicted_to_fit
        self._react("memory shrinks" if has_shrunk else "memory ran out", f"{plan} does not fit; replanning")
        return self._replan()

    def _continue(self, plan: RetrainingPlan, window: MicroWindow, stalled: int) -> bool:
        """Apply changes of the limits and the first rule that holds; return False to end the retraining."""
        if self.window.is_stopped:
            self._react("stopped", "asked to end: the best model so far is returned")
            return False
        if self.job.control.problem not in ("", self._told):
            self._told = self.job.control.problem
            self._react("control file", self._told)
        passes = sum(other.samples for other in self.windows) / len(self.job.data.train)
        if passes >= plan.epochs:
            self._react("epochs", f"all {plan.epochs} epochs are done")
            return False
        if self.window.length_s != self._length_s:
            self._length_s = self.window.length_s
            self._react("window changes", f"the window is {duration(self._length_s)} now; replanning")
            return self._replan()
        estimate = self.runner.estimate(plan)
        if not self.job.strategy.is_adaptive:
            if estimate.memory_bytes > self.memory.limit():
                self._react("memory shrinks", "replanning")
                return self._replan()
            return math.isfinite(window.loss)
        progress = self._progress(plan, window, stalled, estimate)
        fastest = max(other.samples_per_s for other in self.job.strategy.estimates())
        facts = {**plan_facts(self._context(), estimate, fastest), **progress.facts()}
        verdict = self.job.rules.reaction(facts)
        return True if verdict is None else self._apply(verdict)

    def _progress(
        self, plan: RetrainingPlan, window: MicroWindow, stalled: int, estimate: PlanEstimate
    ) -> RetrainingProgress:
        oriented = self.evaluator.oriented
        return RetrainingProgress(
            elapsed_s=self.window.elapsed_s,
            left_s=self.window.left_s,
            micro_window_s=self.micro_window_s,
            windows=self.windows,
            best_score=oriented(self.best_subset.score),
            first_score=oriented(self.first_subset.score),
            score=oriented(window.score if window.score is not None else math.nan),
            stalled=stalled,
            best_other_merit=self.job.strategy.best_other_merit(plan),
            predicted_bytes=estimate.memory_bytes,
            limit_bytes=self.memory.limit(),
            used_bytes=self.memory.used(),
            plans=len(self.job.strategy.estimates()),
            lowered=self.lr_halvings,
        )

    def _apply(self, verdict: Verdict) -> bool:
        """Carry out the action of a rule; return False to end the retraining."""
        if verdict.then == "switch plan":
            self.job.strategy.switch_plan()
            return True
        is_regular_end = verdict.then == "finish" and self.window.left_s <= self.micro_window_s
        if not is_regular_end:
            self._react(verdict.rule, verdict.said)
        if verdict.then == "replan":
            return self._replan()
        if verdict.then in ("lower lr", "restore best"):
            self.runner.lr_factor, self.lr_halvings = self.runner.lr_factor / 2, self.lr_halvings + 1
        if verdict.then == "restore best":
            self.best.restore()
            self.runner.stepper.reset_optimizer()
        return verdict.then != "finish"

    def _react(self, rule: str, message: str) -> None:
        reaction = Reaction(self.window.elapsed_s, rule, message)
        self.reactions.append(reaction)
        self.job.on_event(reaction)

    def _finish(self) -> RetrainingSummary:
        """Keep the best model on all validation data: the last one, the best on the subset, or the given one."""
        after = self._best_evaluation()
        self.is_forgetful = not after.keeps_reference
        kept_new = after.score != self.before.score and after.is_better_than(self.before)
        if not kept_new:
            self.given.restore()
            after = self.before
        self._release()
        return self._summary(after, kept_new)

    def _best_evaluation(self) -> Evaluation:
        """Evaluate the last model, and the best so far if there is time; the network has the better weights."""
        self.runner.stepper.reset_optimizer()
        self.runner.release()
        self.evaluator.fit_batch(self._evaluation_bytes())
        try:
            last = self.evaluator.evaluate()
        except PlanOutOfMemory:
            self._react("memory ran out", "not enough memory to evaluate the new model; the given model is returned")
            self.given.restore()
            self.best.capture()
            return self.before
        end_s = self.window.elapsed_s + self.reserve.evaluation_s * self.reserve.margin + self.reserve.end_s
        is_in_time = end_s < self.window.length_s
        if not self.job.strategy.is_adaptive or not is_in_time or self.best.matches_network():
            return last
        latest = WeightSnapshot(self.job.network)
        self.best.restore()
        best = self.evaluator.evaluate()
        if best.is_better_than(last):
            return best
        latest.restore()
        return last

    def _summary(self, after: Evaluation, kept_new: bool) -> RetrainingSummary:
        chosen = self._most_used_plan()
        return RetrainingSummary(
            model=self.job.name,
            device=self.job.device,
            strategy=self.job.strategy.name,
            limits=replace(self.job.limits, window_s=self.window.length_s),
            metric=self.evaluator.metric,
            before=self.before.score,
            after=after.score,
            kept_new=kept_new,
            why=self._reason(chosen, kept_new),
            chosen=chosen,
            plans=self.job.strategy.estimates(),
            windows=tuple(self.windows),
            reactions=tuple(self.reactions),
            layers=self.profile.layers(),
            alpha=self.job.alpha,
            planning_s=self.planning_s,
            planning_bytes=self.planning_bytes,
            held_bytes=self.runner.held_bytes,
            peak_bytes=self.memory.highest(),
            elapsed_s=self.window.elapsed_s,
            higher_is_better=self.evaluator.higher_is_better,
            reference_before=self.before.reference,
            reference_after=after.reference,
            notes=tuple(self._notes(after)),
        )

    def _notes(self, after: Evaluation) -> Iterator[str]:
        data, metric = self.job.data, self.evaluator.metric
        if data.skipped:
            yield f"{count(data.skipped, 'row')} of the new data with NaN or infinity left out."
        if data.reference is not None and self.before.reference is not None and after.reference is not None:
            yield (
                f"On {count(len(data.reference.judged), 'sample')} of the original data: {metric} "
                f"{self.before.reference:.4g} before, {after.reference:.4g} after."
            )

    def _release(self) -> None:
        """Put the network into evaluation mode, without gradients and in its original memory format."""
        self.memory.close()
        if hasattr(self, "runner"):
            self.runner.stepper.release()
            self.runner.stepper.reset_optimizer()
        for weight, strides in self.strides.items():
            if weight.stride() != strides:
                weight.data = torch.empty_like(weight.data).as_strided(weight.shape, strides).copy_(weight.data)
        self.job.network.eval()

    def _most_used_plan(self) -> RetrainingPlan | None:
        seconds: dict[RetrainingPlan, float] = {}
        for window in self.windows:
            seconds[window.plan] = seconds.get(window.plan, 0.0) + window.ended_s - window.began_s
        return max(seconds, key=lambda plan: seconds[plan]) if seconds else None

    def _reason(self, chosen: RetrainingPlan | None, kept_new: bool) -> str:
        if not kept_new and self.is_forgetful:
            return "the new models were worse on samples of the original data, so the given model is returned"
        if not kept_new:
            return "no new model was better on the validation data, so the given model is returned"
        if chosen is None:
            return "re-estimating the BatchNorm statistics on the new data was enough"
        windows = sum(window.plan == chosen for window in self.windows)
        tried = {window.plan for window in self.windows}
        had = f"it had {windows} of {count(len(self.windows), 'micro-window')}"
        others = len(self.job.strategy.estimates()) - len(tried)
        if len(tried) == 1:
            return f"{had}; no other plan was tried" if others > 0 else f"{had}: no other plan fits the limits"
        return (
            f"{had}: none of the {len(tried)} plans that were tried had a higher merit, "
            f"{self.job.alpha:g} x gain + {1 - self.job.alpha:g} / time"
        )


def _relative_decrease(before: float, after: float) -> float:
    """Return by what share a loss fell; 0 if either is not finite."""
    if not (math.isfinite(before) and math.isfinite(after)) or before <= 0:
        return 0.0
    return (before - after) / before
