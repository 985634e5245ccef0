"""The results of a retraining in short phrases: metric, memory and time, with their limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from onefold.report.retraining.prediction_error import prediction_error
from onefold.report.tile import Tile
from onefold.vocabulary import quantities
from onefold.vocabulary.retraining import RetrainingPlan, RetrainingSummary

STAYS = "the given model is kept"


def numbered(retrained: RetrainingSummary) -> dict[RetrainingPlan, int]:
    """Number the plans: the feasible ones first, then those found during the retraining."""
    used = [window.plan for window in retrained.windows]
    chosen = [] if retrained.chosen is None else [retrained.chosen]
    plans = dict.fromkeys([*(estimate.plan for estimate in retrained.plans), *used, *chosen])
    return {plan: index + 1 for index, plan in enumerate(plans)}


def subtitle(retrained: RetrainingSummary) -> str:
    """State metric, device and strategy."""
    better = "higher" if retrained.higher_is_better else "lower"
    return f"{retrained.metric}, {better} is better, on {retrained.device}, strategy {retrained.strategy}"


def reached(retrained: RetrainingSummary) -> str:
    """Format the metric before and after; once if the given model is kept."""
    places = quantities.decimals([retrained.before, retrained.after])
    before, after = (
        quantities.metric(retrained.metric, value, places) for value in (retrained.before, retrained.after)
    )
    return f"{before} →\N{NO-BREAK SPACE}{after}" if retrained.kept_new else before


def gained(retrained: RetrainingSummary) -> str:
    """State by how much the returned model is better."""
    if not retrained.kept_new:
        return STAYS
    if retrained.gain == 0 or not math.isfinite(retrained.gain):
        return "no better"
    places = quantities.decimals([retrained.before, retrained.after])
    gain = quantities.metric(retrained.metric, abs(retrained.gain), places)
    return f"{'better' if retrained.gain > 0 else 'worse'} by {gain}"


def why(retrained: RetrainingSummary) -> str:
    """Return the reason for the chosen plan, or for keeping the given model, as a sentence."""
    reason = retrained.why.strip()
    return f"{reason[:1].upper()}{reason[1:]}{'' if reason[-1:] in '.!?' else '.'}"


def tiles(retrained: RetrainingSummary) -> Iterator[Tile]:
    """Yield the four headline numbers."""
    note = gained(retrained) if retrained.kept_new else why(retrained)
    better = retrained.kept_new and retrained.gain > 0
    badge = "" if retrained.kept_new else STAYS
    yield Tile(f"Validation {retrained.metric}", reached(retrained), note, badge, accent=better)
    over = "over the limit" if is_over(retrained) else ""
    yield Tile("Peak memory, measured", quantities.size(peak_bytes(retrained)), memory_note(retrained), over)
    late = "over the window" if retrained.elapsed_s > retrained.limits.window_s else ""
    yield Tile("Time", quantities.duration(retrained.elapsed_s), time_note(retrained), late)
    yield Tile("Planning", quantities.duration(retrained.planning_s), planning_note(retrained))


def peak_bytes(retrained: RetrainingSummary) -> int | None:
    """Return the highest measured memory; None if the system does not report it."""
    known = [window.measured_bytes for window in retrained.windows if window.measured_bytes is not None]
    return max(known, default=None) if retrained.peak_bytes is None else retrained.peak_bytes


def memory_note(retrained: RetrainingSummary) -> str:
    """Relate the peak to the limit, which may have changed during the retraining."""
    limits = _limits(retrained)
    first, last, lowest = (quantities.size(limit) for limit in (limits[0], limits[-1], min(limits)))
    changed = "" if first == lowest else f", {'later' if last == lowest else 'at the lowest'} {lowest}"
    peak, fullest = peak_bytes(retrained), _fullest(retrained)
    if peak is None:
        predicted = max((window.predicted_bytes for window in retrained.windows), default=None)
        expected = "" if predicted is None else f"; predicted {quantities.size(predicted)} at most"
        return f"not measured{expected}; the limit is {first}{changed}"
    if changed and fullest is not None:
        return f"at most {quantities.share(fullest)} of the limit at the time ({first}{changed})"
    return f"{quantities.share(peak / limits[0])} of the limit of {first}"


def is_over(retrained: RetrainingSummary) -> bool:
    """Return whether measured memory exceeded the limit."""
    peak, fullest = peak_bytes(retrained), _fullest(retrained)
    return (peak is not None and peak > max(_limits(retrained))) or (fullest is not None and fullest > 1)


def time_note(retrained: RetrainingSummary) -> str:
    """Relate the time to the window, with the number of updates."""
    updates = sum(window.updates for window in retrained.windows)
    done = f"{quantities.count(len(retrained.windows), 'micro-window')}, {quantities.count(updates, 'update')}"
    window_s = retrained.limits.window_s
    return (
        f"{quantities.share(retrained.elapsed_s / window_s)} of the window of {quantities.duration(window_s)}; {done}"
    )


def planning_note(retrained: RetrainingSummary) -> str:
    """State the share of the window and the memory that planning took."""
    share = f"{quantities.share(retrained.planning_s / retrained.limits.window_s)} of the window"
    return f"{share}, {quantities.size(retrained.planning_bytes)} added to the process"


def predictions(retrained: RetrainingSummary) -> str:
    """Summarize the errors of predicted memory."""
    error = prediction_error(retrained.windows)
    if error is None:
        return "no micro-window has measured memory to compare predictions with"
    low = f"too low in {error.too_low}" if error.too_low else "never too low"
    worst, typical_error, worst_error = error.worst_window, *map(quantities.share, (error.median, error.worst))
    return (
        f"error of predicted memory over {quantities.count(error.windows, 'micro-window')}: median "
        f"{typical_error}, worst {worst_error} (number {worst.number}: predicted "
        f"{quantities.size(worst.predicted_bytes)}, measured {quantities.size(worst.measured_bytes or 0)}), {low}"
    )


def of_plan(retrained: RetrainingSummary, plan: RetrainingPlan) -> Iterator[tuple[str, str]]:
    """Yield the settings and results of a plan by name."""
    tried = [window for window in retrained.windows if window.plan == plan]
    yield (
        "batch",
        f"{plan.batch_size} × {plan.accumulation}, {quantities.count(plan.effective_batch, 'sample')} per update",
    )
    yield "frozen layers, from the input", quantities.share(plan.freeze_rate)
    yield "checkpoint segments", str(plan.segments)
    yield "epochs, at most", str(plan.epochs)
    yield "learning rate", quantities.number(plan.lr)
    yield "optimizer", plan.optimizer
    yield "predicted memory", quantities.size(predicted_bytes(retrained, plan))
    known = [window.measured_bytes for window in tried if window.measured_bytes is not None]
    yield "measured memory", quantities.size(max(known, default=None))
    update_s = next((estimate.update_s for estimate in retrained.plans if estimate.plan == plan), None)
    yield "predicted time of an update", quantities.duration(update_s)
    yield "micro-windows", str(len(tried))


def predicted_bytes(retrained: RetrainingSummary, plan: RetrainingPlan) -> int | None:
    """Return the first prediction of a plan's memory, or else the one of its last micro-window."""
    first = next((estimate.memory_bytes for estimate in retrained.plans if estimate.plan == plan), None)
    last = next((w.predicted_bytes for w in reversed(retrained.windows) if w.plan == plan), None)
    return last if first is None else first


def _limits(retrained: RetrainingSummary) -> list[int]:
    """Return the initial limit and the limit at the end of each micro-window."""
    return [retrained.limits.memory_bytes, *(window.limit_bytes for window in retrained.windows)]


def _fullest(retrained: RetrainingSummary) -> float | None:
    """Return the largest share of its limit that a micro-window used."""
    # A falling limit ends a micro-window, which was subject to the limit before.
    limits = _limits(retrained)
    allowed = [max(both) for both in pairwise(limits)]
    known = [(window.measured_bytes, limit) for window, limit in zip(retrained.windows, allowed)]
    return max((size / limit for size, limit in known if size is not None and limit > 0), default=None)
