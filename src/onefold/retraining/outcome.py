"""The last phase of a retraining: choose among the given, the best and the last model, and summarize."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from onefold.retraining.calibration import CALIBRATION_EVALUATIONS, SHARES
from onefold.retraining.evaluation import Evaluation
from onefold.retraining.plan_runner import PlanOutOfMemory
from onefold.retraining.preparation import Baseline, PreparedNetwork
from onefold.retraining.retraining_record import RetrainingRecord
from onefold.retraining.weight_snapshot import WeightSnapshot
from onefold.vocabulary.quantities import count
from onefold.vocabulary.retraining import GrownClasses, RetrainingPlan, RetrainingSummary

LEAST_INFORMATION_GAIN = 0.01  # nats; less is noise


@dataclass(frozen=True)
class Outcome:
    """The chosen model, which the network is, by its evaluation on all validation data."""

    evaluation: Evaluation
    kept_new: bool  # False if it is the given one
    is_forgetful: bool  # whether a new model was worse on the original data
    grown: GrownClasses | None  # if the new data has new classes


def choose_model(prepared: PreparedNetwork, baseline: Baseline, record: RetrainingRecord) -> Outcome:
    """Keep the best model on all validation data: the last one, the best on the subset, or the given one."""
    after = _calibrate(prepared, baseline, _best_evaluation(prepared, baseline, record), record)
    is_forgetful = not after.keeps_reference or (record.latest is not None and not record.latest.keeps_reference)
    head = prepared.given.head
    grown = None if head is None else GrownClasses(head.name, head.old_classes, head.classes)
    least_gain = 0.0 if prepared.job.data.has_labels else LEAST_INFORMATION_GAIN
    if abs(after.score - baseline.all.score) > least_gain and after.is_better_than(baseline.all):
        return Outcome(after, True, is_forgetful, grown)
    prepared.given.restore()
    return Outcome(baseline.all, False, is_forgetful, grown)


def _best_evaluation(prepared: PreparedNetwork, baseline: Baseline, record: RetrainingRecord) -> Evaluation:
    """Evaluate the best model so far, and the last one if there is time; the network has the better weights."""
    runner, evaluator, best = prepared.runner, baseline.evaluator, prepared.best
    runner.stepper.reset_optimizer()
    runner.release()
    evaluator.fit_batch(prepared.evaluation_bytes())
    try:
        if not prepared.job.strategy.is_adaptive:
            return evaluator.evaluate()
        if best.matches_network():
            return _evaluation_of_best(baseline, record)
        latest = WeightSnapshot(prepared.job.network)
        best.restore()
        chosen = _evaluation_of_best(baseline, record)
        is_known = record.latest is not None and evaluator.has_full_subset
        # With new classes, the last model too was calibrated before it was compared.
        if baseline.calibration is None and (is_known or _has_time(prepared, 1)):
            latest.restore()
            record.latest = record.latest if is_known and record.latest is not None else evaluator.evaluate()
            chosen = _keep_better(record.latest, chosen, best)
    except PlanOutOfMemory:
        record.react("memory ran out", "not enough memory to evaluate the new model; the given model is returned")
        return baseline.all
    return chosen if baseline.calibration is not None else _blend(prepared, baseline, latest, chosen, record)


def _evaluation_of_best(baseline: Baseline, record: RetrainingRecord) -> Evaluation:
    """Return the evaluation of the best model so far, which the network is, on all validation data."""
    if record.best is None:
        return baseline.start
    return record.best if baseline.evaluator.has_full_subset else baseline.evaluator.evaluate()


def _keep_better(after: Evaluation, chosen: Evaluation, snapshot: WeightSnapshot) -> Evaluation:
    """Keep the better one of the network and the snapshot in both, and return its evaluation."""
    if after.is_better_than(chosen):
        snapshot.capture()
        return after
    snapshot.restore()
    return chosen


def _blend(
    prepared: PreparedNetwork, baseline: Baseline, latest: WeightSnapshot, chosen: Evaluation, record: RetrainingRecord
) -> Evaluation:
    """If the last model forgot the original data, interpolate it with the given one until it is sound."""
    start, best = prepared.given.snapshot, prepared.best
    if start is None or prepared.job.data.reference is None:
        return chosen
    first = 1.0 if record.latest is None else baseline.evaluator.sound_share(record.latest)
    shares = SHARES[1:] if first == 1.0 else (first, *(share for share in SHARES[1:] if share < first))
    for share in shares:
        if not _has_time(prepared, 1):
            break
        latest.restore()
        start.blend(1 - share)
        after = baseline.evaluator.evaluate()
        is_better = after.is_better_than(chosen)
        chosen = _keep_better(after, chosen, best)
        if is_better:
            record.react("forgetting", f"{share:.0%} of the weight change kept, so as not to forget the original data")
        if after.is_sound:
            break
    return chosen


def _calibrate(
    prepared: PreparedNetwork, baseline: Baseline, chosen: Evaluation, record: RetrainingRecord
) -> Evaluation:
    """Calibrate a chosen model that has learned new classes; keep it unchanged if that is no better."""
    calibration, start = baseline.calibration, prepared.given.snapshot
    if calibration is None or start is None or not _has_time(prepared, CALIBRATION_EVALUATIONS):
        return chosen
    trained = WeightSnapshot(prepared.job.network)
    if not calibration.blend(start):
        return chosen
    after = baseline.evaluator.evaluate()
    if not after.is_better_than(chosen):
        trained.restore()
        return chosen
    record.react("new classes", "calibrated: as much of the weight change is kept as does not forget the old classes")
    return after


def _has_time(prepared: PreparedNetwork, evaluations: int) -> bool:
    """Return whether there is time for so many evaluations before the model is saved."""
    reserve, window = prepared.reserve, prepared.window
    seconds = evaluations * reserve.evaluation_s * reserve.margin + reserve.end_s
    return window.elapsed_s + seconds < window.length_s


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
        first_update_s=record.first_update_s,
        planning_bytes=prepared.planning_bytes,
        held_bytes=prepared.runner.held_bytes,
        peak_bytes=prepared.memory.highest(),
        elapsed_s=prepared.window.elapsed_s,
        higher_is_better=baseline.evaluator.higher_is_better,
        reference_before=baseline.all.reference,
        reference_after=after.reference,
        grown=outcome.grown if outcome.kept_new else None,
        notes=tuple(_notes(prepared, baseline, outcome)),
    )


def _notes(prepared: PreparedNetwork, baseline: Baseline, outcome: Outcome) -> Iterator[str]:
    data, before, after = prepared.job.data, baseline.all, outcome.evaluation
    if (grown := outcome.grown) is not None:
        number = grown.classes - grown.before
        new = f"{number} new class{'es' * (number != 1)}, from {grown.before} on"
        judged = "" if data.reference else " Without a reference set, nothing is known of the old classes."
        done = f"the layer {grown.module} has {grown.classes} now" if outcome.kept_new else "they were not learned"
        yield f"The data has {new}; {done}. The given model is wrong on all of their samples.{judged}"
    if not data.has_labels:
        yield from _label_free_notes(prepared)
    if data.skipped:
        yield f"{count(data.skipped, 'row')} of the new data with NaN or infinity left out."
    if data.reference is not None and before.reference is not None and after.reference is not None:
        yield (
            f"On {count(len(data.reference.judged), 'sample')} of the original data: "
            f"{baseline.evaluator.reference_metric} "
            f"{before.reference:.4g} before, {after.reference:.4g} after."
        )


def _label_free_notes(prepared: PreparedNetwork) -> Iterator[str]:
    weights = sum(weight.numel() for weight in prepared.given.trainable or ())
    statistics = "the statistics of BatchNorms and " if prepared.has_batch_norm else ""
    yield (
        f"The new data has no labels. Adapted: {statistics}{count(weights, 'affine parameter')} of normalization "
        "layers, by entropy minimization. The accuracy on the new data is unknown; models are compared by the mutual "
        "information of held-out inputs and predictions, in nats."
    )
    if prepared.job.data.reference is None:
        yield "There is no reference set: nothing is known of the original data."


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
