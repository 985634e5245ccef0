"""The second phase of a retraining: plan, train in micro-windows, and react to rules.

Training begins at once: what later models are compared with, the given model and its re-estimated BatchNorm statistics,
is evaluated after the first micro-window, from the snapshot of the given weights.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain

from onefold.retraining.batch_norm import reestimate_statistics, running_statistics
from onefold.retraining.evaluation import Evaluation, Evaluator
from onefold.retraining.messages import insufficient_memory_message, short_window_message
from onefold.retraining.plan_runner import PlanOutOfMemory
from onefold.retraining.preparation import Baseline, PreparedNetwork, evaluate_given
from onefold.retraining.retraining_record import RetrainingRecord
from onefold.retraining.rule_facts import RetrainingProgress, plan_facts
from onefold.retraining.rules import Verdict
from onefold.retraining.training_step import SMALL_BATCH
from onefold.retraining.weight_snapshot import WeightSnapshot
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.quantities import duration
from onefold.vocabulary.retraining import MicroWindow, PhaseStarted, PlanEstimate, RetrainingPlan

MAX_MICRO_WINDOWS, MIN_MICRO_WINDOWS = 40, 12  # in the time for training
UPDATES_PER_MICRO_WINDOW = 4  # of the slowest plan, at least
EVALUATION_SHARE = 0.08  # of a micro-window, about, to evaluate a subset
SWITCH_SHARE = 0.25  # of a micro-window, at most, to free what another plan left
FORGETTING_REPLAYED_SHARE = 0.5  # of an update, once the network has forgotten some of the original data
STATISTICS_SHARE = 0.02  # of the window, at most, to re-estimate BatchNorm statistics
MIN_STATISTICS_SAMPLES = 32


class MicroWindowTraining:
    """Train a prepared network. `prepared.best` keeps the best model on the validation subset."""

    def __init__(self, prepared: PreparedNetwork, evaluator: Evaluator, record: RetrainingRecord) -> None:
        """Evaluate the given model, if training it for new classes depends on that."""
        self.prepared, self.evaluator, self.record = prepared, evaluator, record
        self.job, self.window, self.memory = prepared.job, prepared.window, prepared.memory
        self.strategy, self.runner = self.job.strategy, prepared.runner
        self.runner.on_first_update = record.begin_update
        self.first_subset: Evaluation  # of the given model
        self.best_subset: Evaluation
        self.micro_window_s = 0.0
        self.lr_halvings = 0
        self._baseline: Baseline | None = None
        if prepared.given.head is not None:
            self._evaluate_given()
        self._length_s = self.job.limits.window_s  # of the window, when plans were last made
        self._told = ""

    @property
    def baseline(self) -> Baseline:
        """The evaluation of the given model, once `run` is over."""
        if self._baseline is None:
            raise RuntimeError("the given model is not evaluated yet; call run() first")
        return self._baseline

    @property
    def evaluation_s(self) -> float:
        """The seconds that evaluating the given model took so far."""
        return 0.0 if self._baseline is None else self._baseline.evaluation_s

    def plan(self) -> tuple[PlanEstimate, ...]:
        """Return the plans that fit now, and size the micro-windows for them. Raises InputError if none fits."""
        prepared = self.prepared
        context = prepared.context()
        plans = self.strategy.plans(context)
        if not plans or prepared.other_bytes > context.limit_bytes:
            raise InputError(insufficient_memory_message(context, self.job.current_limits, prepared.other_bytes))
        step_s = context.contention * min(estimate.update_s / estimate.plan.accumulation for estimate in plans)
        if step_s > context.left_s and not self.window.is_stopped:
            other_s = self.window.elapsed_s + self.window.reserve_s
            raise InputError(short_window_message(step_s, other_s, self.job.current_limits))
        slowest_s = context.contention * max(estimate.update_s for estimate in plans)
        epochs_s = max(estimate.plan.epochs * context.samples / max(estimate.samples_per_s, 1e-9) for estimate in plans)
        training_s = max(0.0, min(self.window.left_s, context.contention * epochs_s))
        wanted_s = max(
            training_s / MAX_MICRO_WINDOWS,
            UPDATES_PER_MICRO_WINDOW * slowest_s,
            self.evaluator.shortest_s / EVALUATION_SHARE,
            context.contention * prepared.reserve.collection_s / SWITCH_SHARE,
        )
        self.micro_window_s = min(wanted_s, training_s / MIN_MICRO_WINDOWS)
        if not self.record.windows:  # later evaluations are compared with earlier ones
            self.evaluator.limit_subset(EVALUATION_SHARE * self.micro_window_s)
        return plans

    def _evaluate_given(self) -> None:
        self._baseline = evaluate_given(self.prepared, self.evaluator)
        self.first_subset, self.best_subset = self._baseline.all, self._baseline.start

    def _evaluate_given_on_subset(self) -> None:
        """Evaluate the given model on the samples by which later ones are judged, if they are not all."""
        head = self.prepared.given.head
        if not self.strategy.is_adaptive or self.evaluator.has_full_subset:
            return
        with nullcontext() if head is None else head.masked():
            self.first_subset = self.best_subset = self.evaluator.evaluate_subset()
        if head is not None:
            self.best_subset = self.evaluator.evaluate_subset()

    def _prepare_comparison(self) -> None:
        """Evaluate the network, which is the given one, on the subset, and re-estimate its statistics."""
        if self._baseline is None:
            self._evaluate_given()
        self._evaluate_given_on_subset()
        self._reestimate_statistics()

    def _compare_first_window(self) -> None:
        """Do what was left out before the first micro-window; the trained network gets the statistics that are kept."""
        began_s = self.window.elapsed_s
        trained = WeightSnapshot(self.job.network)
        self.prepared.best.restore()  # so far the given model
        self._prepare_comparison()
        statistics = running_statistics(self.job.network) if self.record.best is not None else []
        trained.restore()
        for buffer, value in statistics:
            buffer.copy_(value)
        self.runner.exclude(self.window.elapsed_s - began_s)

    def _needs_statistics(self) -> bool:
        """Return whether the first plan would train with the BatchNorm statistics that the given model has."""
        estimates = self.strategy.estimates()
        is_small = bool(estimates) and estimates[0].plan.batch_size < SMALL_BATCH
        return self.strategy.is_adaptive and self.prepared.has_batch_norm and is_small

    def _reestimate_statistics(self) -> None:
        """Re-estimate the BatchNorm statistics on the new data; keep them if the loss falls."""
        job, prepared = self.job, self.prepared
        samples = min(len(job.data.train), self.evaluator.samples_within(STATISTICS_SHARE * self.window.length_s))
        if not (self.strategy.is_adaptive and prepared.has_batch_norm and samples >= MIN_STATISTICS_SAMPLES):
            return
        parts = [job.data.train.first(samples)]
        parts += [job.data.reference.replayed] if job.data.reference is not None else []
        batches = chain.from_iterable(part.batches(self.evaluator.batch_size) for part in parts)
        job.on_event(PhaseStarted("re-estimating BatchNorm statistics"))
        self.record.begin_update()
        reestimate_statistics(job.network, batches)
        after = self.evaluator.evaluate_subset()
        if after.loss < self.best_subset.loss and after.is_sound:
            self._keep(after)
            self.record.latest = after
            self.record.react("batch norms", f"statistics re-estimated on {samples} samples of the new data")
        else:
            prepared.best.restore()

    def run(self) -> None:
        """Run micro-windows until the window is over or a rule ends the retraining."""
        is_compared = self._baseline is not None or self._needs_statistics()
        if is_compared:
            self._prepare_comparison()
        self._train(is_compared=is_compared)
        if self._baseline is None:  # there was no time for an update
            self._evaluate_given()

    def _train(self, *, is_compared: bool) -> None:
        """Run micro-windows; the given model is evaluated after the first one, unless it `is_compared` before."""
        stalled, lowest_loss = 0, math.inf
        last = self.best_subset if is_compared else None
        began_s = self.window.elapsed_s
        while self.window.left_s > 0:
            trained_s = self.window.elapsed_s - began_s
            plan = self.strategy.next_plan(trained_s / (trained_s + self.window.left_s))
            is_trial = bool(self.record.windows) and self._is_untried(plan)
            self.record.latest = None
            try:
                window = self.runner.run(len(self.record.windows) + 1, plan, self.micro_window_s)
                if window is None:
                    break
                self.evaluator.shrink_batch(self.prepared.evaluation_bytes())
                if not is_compared:
                    began_s -= self.window.elapsed_s
                    self._compare_first_window()
                    began_s += self.window.elapsed_s
                    is_compared = True
                last = self.best_subset if last is None else last
                evaluation = self._evaluate() if self.strategy.is_adaptive else None
            except PlanOutOfMemory:
                if not self._recover_from_out_of_memory(plan):
                    break
                continue
            self.window.reserve_s = self.prepared.reserve.seconds
            self._record(window, last, evaluation)
            if evaluation is not None:
                is_best = evaluation is self.best_subset
                lowest_loss = min(lowest_loss, last.loss)
                stalled = 0 if is_best or evaluation.loss < lowest_loss else stalled + 1
                before, last, lowest_loss = last, evaluation, min(lowest_loss, evaluation.loss)
                if not evaluation.is_diverse:
                    self.record.react("collapse", "predictions are of too few classes; back to the best model")
                    self._restore_best()
                    last = self.best_subset
                elif is_trial and not is_best and evaluation.loss > before.loss:
                    self.prepared.best.restore()  # what another plan had gained
                    last = self.record.latest = self.best_subset
            if not self._continue(plan, self.record.windows[-1], stalled):
                break

    def _is_untried(self, plan: RetrainingPlan) -> bool:
        return any(estimate.plan == plan and estimate.gain_per_s is None for estimate in self.strategy.estimates())

    def _evaluate(self) -> Evaluation:
        """Evaluate the network on the subset, with a calibrated head, and keep it if it is the best so far."""
        calibration = self.baseline.calibration
        shift = 0.0 if calibration is None else calibration.shift_biases()
        evaluation = self.evaluator.evaluate_subset()
        if evaluation.is_better_than(self.best_subset):
            self._keep(evaluation)
        if calibration is None:
            self.record.latest = evaluation
        else:
            calibration.lower_biases(-shift)  # training goes on without
        if not evaluation.keeps_reference:
            self._replay_more()
        return evaluation

    def _keep(self, evaluation: Evaluation) -> None:
        """Keep the network as the best model so far."""
        self.best_subset = self.record.best = evaluation
        self.prepared.best.capture()

    def _replay_more(self) -> None:
        order = self.runner.order
        if order.replayed is not None and order.replayed_share < FORGETTING_REPLAYED_SHARE:
            order.replayed_share = FORGETTING_REPLAYED_SHARE
            self.record.react("replay", f"{FORGETTING_REPLAYED_SHARE:.0%} of each update is original data from now on")

    def _record(self, window: MicroWindow, before: Evaluation, evaluation: Evaluation | None) -> None:
        """Record a micro-window with its gain: on validation data if it was evaluated, else on its training data."""
        seconds = max(1e-9, window.ended_s - window.began_s)
        if evaluation is not None:
            gain = _relative_decrease(before.loss, evaluation.loss) / seconds
        else:
            previous_loss = self.record.windows[-1].loss if self.record.windows else window.loss
            gain = _relative_decrease(previous_loss, window.loss) / seconds
        merit = self.strategy.tell(window.plan, gain, seconds / max(1, window.samples))
        score = None if evaluation is None else evaluation.score
        window = replace(window, gain_per_s=gain, merit=merit, score=score)
        self.runner.learn_gain(window)
        self.record.add(window)

    def _recover_from_out_of_memory(self, plan: RetrainingPlan) -> bool:
        """Replan after a failed allocation; return False if no plan fits any more."""
        is_handled = self.strategy.on_out_of_memory()
        is_predicted_to_fit = self.runner.estimate(plan).memory_bytes <= self.memory.limit()
        if not is_handled and is_predicted_to_fit:
            self.runner.mark_infeasible(plan)  # the prediction was too low; the limit did not fall
        has_shrunk = self.strategy.is_adaptive and not is_predicted_to_fit
        self.record.react("memory shrinks" if has_shrunk else "memory ran out", f"{plan} does not fit; replanning")
        return self._replan()

    def _replan(self) -> bool:
        """Search for plans under the present limit; return False if none fits any more."""
        self.runner.release()
        self.runner.update_held_bytes()
        self.evaluator.fit_batch(self.prepared.evaluation_bytes())
        try:
            self.plan()
        except InputError as error:
            self.record.react("no plan fits any more", str(error))
            return False
        return True

    def _continue(self, plan: RetrainingPlan, window: MicroWindow, stalled: int) -> bool:
        """Apply changes of the limits and the first rule that holds; return False to end the retraining."""
        if self.window.is_stopped:
            self.record.react("stopped", "asked to end: the best model so far is returned")
            return False
        if self.job.control.problem not in ("", self._told):
            self._told = self.job.control.problem
            self.record.react("control file", self._told)
        if self.runner.epochs >= plan.epochs:
            self.record.react("epochs", f"all {plan.epochs} epochs are done")
            return False
        if self.window.length_s != self._length_s:
            self._length_s = self.window.length_s
            self.record.react("window changes", f"the window is {duration(self._length_s)} now; replanning")
            return self._replan()
        estimate = self.runner.estimate(plan)
        if not self.strategy.is_adaptive:
            if estimate.memory_bytes > self.memory.limit():
                self.record.react("memory shrinks", "replanning")
                return self._replan()
            return math.isfinite(window.loss)
        progress = self._progress(plan, window, stalled, estimate)
        fastest = max(other.samples_per_s for other in self.strategy.estimates())
        facts = {**plan_facts(self.prepared.context(), estimate, fastest), **progress.facts()}
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
            windows=self.record.windows,
            best_score=oriented(self.best_subset.score),
            first_score=oriented(self.first_subset.score),
            score=oriented(window.score if window.score is not None else math.nan),
            stalled=stalled,
            best_other_merit=self.strategy.best_other_merit(plan),
            predicted_bytes=estimate.memory_bytes,
            limit_bytes=self.memory.limit(),
            used_bytes=self.memory.used(),
            plans=len(self.strategy.estimates()),
            lowered=self.lr_halvings,
        )

    def _apply(self, verdict: Verdict) -> bool:
        """Carry out the action of a rule; return False to end the retraining."""
        if verdict.then == "switch plan":
            self.strategy.switch_plan()
            return True
        is_regular_end = verdict.then == "finish" and self.window.left_s <= self.micro_window_s
        if not is_regular_end:
            self.record.react(verdict.rule, verdict.said)
        if verdict.then == "replan":
            return self._replan()
        if verdict.then == "restore best":
            self._restore_best()
        elif verdict.then == "lower lr":
            self._lower_lr()
        return verdict.then != "finish"

    def _restore_best(self) -> None:
        """Continue from the best model, with half the learning rate."""
        self._lower_lr()
        self.prepared.best.restore()
        self.record.latest = self.best_subset
        self.runner.stepper.reset_optimizer()

    def _lower_lr(self) -> None:
        self.runner.lr_factor, self.lr_halvings = self.runner.lr_factor / 2, self.lr_halvings + 1


def _relative_decrease(before: float, after: float) -> float:
    """Return by what share a loss fell; 0 if either is not finite."""
    if not (math.isfinite(before) and math.isfinite(after)) or before <= 0:
        return 0.0
    return (before - after) / before
