"""The last phase of a retraining: choose among the given, the best and the last model, and summarize."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from onefold.retraining.evaluation import Evaluation
from onefold.retraining.plan_runner import PlanOutOfMemory
from onefold.retraining.preparation import Baseline, PreparedNetwork
from onefold.retraining.retraining_record import RetrainingRecord
from onefold.retraining.weight_snapshot import WeightSnapshot
from onefold.vocabulary.quantities import count
from onefold.vocabulary.retraining import RetrainingPlan, RetrainingSummary


@dataclass(frozen=True)
class Outcome:
    """The chosen model, which the network is, by its evaluation on all validation data."""

    evaluation: Evaluation
    kept_new: bool  # False if it is the given one
    is_forgetful: bool  # whether the best new model was worse on the original data


def choose_model(prepared: PreparedNetwork, baseline: Baseline, record: RetrainingRecord) -> Outcome:
    """Keep the best model on all validation data: the last one, the best on the subset, or the given one."""
    after = _best_evaluation(prepared, baseline, record)
    is_forgetful = not after.keeps_reference
    if after.score != baseline.all.score and after.is_better_than(baseline.all):
        return Outcome(after, True, is_forgetful)
    prepared.given.restore()
    return Outcome(baseline.all, False, is_forgetful)


def _best_evaluation(prepared: PreparedNetwork, baseline: Baseline, record: RetrainingRecord) -> Evaluation:
    """Evaluate the last model, and the best so far if there is time; the network has the better weights."""
    runner, evaluator, reserve = prepared.runner, baseline.evaluator, prepared.reserve
    runner.stepper.reset_optimizer()
    runner.release()
    evaluator.fit_batch(prepared.evaluation_bytes())
    try:
        last = evaluator.evaluate()
    except PlanOutOfMemory:
        record.react("memory ran out", "not enough memory to evaluate the new model; the given model is returned")
        return baseline.all
    end_s = prepared.window.elapsed_s + reserve.evaluation_s * reserve.margin + reserve.end_s
    is_in_time = end_s < prepared.window.length_s
    if not prepared.job.strategy.is_adaptive or not is_in_time or prepared.best.matches_network():
        return last
    latest = WeightSnapshot(prepared.job.network)
    prepared.best.restore()
    best = evaluator.evaluate()
    if best.is_better_than(last):
        return best
    latest.restore()
    return last


def summarize(
    prepared: PreparedNetwork, baseline: Baseline, record: RetrainingRecord, outcome: Outcome, planning_s: float
) -> RetrainingSummary:
    """Return the summary of a retraining."""
    job, after = prepared.job, outcome.evaluation
    chosen = record.most_used_plan()
    return RetrainingSummary(
        model=job.name,
        device=job.device,
        strategy=job.strategy.name,
        limits=replace(job.limits, window_s=prepared.window.length_s),
        metric=baseline.evaluator.metric,
        before=baseline.all.score,
        after=after.score,
        kept_new=outcome.kept_new,
        why=_reason(prepared, record, outcome, chosen),
        chosen=chosen,
        plans=job.strategy.estimates(),
        windows=tuple(record.windows),
        reactions=tuple(record.reactions),
        layers=prepared.profile.layers(),
        alpha=job.alpha,
        planning_s=planning_s,
        planning_bytes=prepared.planning_bytes,
        held_bytes=prepared.runner.held_bytes,
        peak_bytes=prepared.memory.highest(),
        elapsed_s=prepared.window.elapsed_s,
        higher_is_better=baseline.evaluator.higher_is_better,
        reference_before=baseline.all.reference,
        reference_after=after.reference,
        notes=tuple(_notes(prepared, baseline, after)),
    )


def _notes(prepared: PreparedNetwork, baseline: Baseline, after: Evaluation) -> Iterator[str]:
    data, before = prepared.job.data, baseline.all
    if data.skipped:
        yield f"{count(data.skipped, 'row')} of the new data with NaN or infinity left out."
    if data.reference is not None and before.reference is not None and after.reference is not None:
        yield (
            f"On {count(len(data.reference.judged), 'sample')} of the original data: {baseline.evaluator.metric} "
            f"{before.reference:.4g} before, {after.reference:.4g} after."
        )


def _reason(
    prepared: PreparedNetwork, record: RetrainingRecord, outcome: Outcome, chosen: RetrainingPlan | None
) -> str:
    if not outcome.kept_new and outcome.is_forgetful:
        return "the new models were worse on samples of the original data, so the given model is returned"
    if not outcome.kept_new:
        return "no new model was better on the validation data, so the given model is returned"
    if chosen is None:
        return "re-estimating the BatchNorm statistics on the new data was enough"
    windows = sum(window.plan == chosen for window in record.windows)
    tried = {window.plan for window in record.windows}
    had = f"it had {windows} of {count(len(record.windows), 'micro-window')}"
    others = len(prepared.job.strategy.estimates()) - len(tried)
    if len(tried) == 1:
        return f"{had}; no other plan was tried" if others > 0 else f"{had}: no other plan fits the limits"
    alpha = prepared.job.alpha
    return (
        f"{had}: none of the {len(tried)} plans that were tried had a higher merit, "
        f"{alpha:g} x gain + {1 - alpha:g} / time"
    )
