"""What a retraining came to, in a few words: its result, its memory and its time, beside what it had."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from onefold.report.retraining.prediction_error import prediction_error
from onefold.report.tile import Tile
from onefold.vocabulary import quantities
from onefold.vocabulary.retraining import RetrainingPlan, RetrainingSummary

STAYS = "the given model stays"


def numbered(retrained: RetrainingSummary) -> dict[RetrainingPlan, int]:
    """Plans by number: those that were predicted, then those that rules made on the way."""
    made = [window.plan for window in retrained.windows]
    chosen = [] if retrained.chosen is None else [retrained.chosen]
    plans = dict.fromkeys([*(one.plan for one in retrained.plans), *made, *chosen])
    return {plan: place + 1 for place, plan in enumerate(plans)}


def aim(retrained: RetrainingSummary) -> str:
    """What was retrained for, where and by which strategy."""
    better = "higher" if retrained.higher_is_better else "lower"
    return f"{retrained.metric}, {better} is better, on {retrained.device}, strategy {retrained.strategy}"


def reached(retrained: RetrainingSummary) -> str:
    """The metric before and after; once where the given model stays."""
    places = quantities.decimals([retrained.before, retrained.after])
    before, after = (
        quantities.metric(retrained.metric, value, places) for value in (retrained.before, retrained.after)
    )
    return f"{before} →\N{NO-BREAK SPACE}{after}" if retrained.kept_new else before


def gained(retrained: RetrainingSummary) -> str:
    """By how much the model that is handed back is better."""
    if not retrained.kept_new:
        return STAYS
    if retrained.gain == 0 or not math.isfinite(retrained.gain):
        return "no better"
    places = quantities.decimals([retrained.before, retrained.after])
    told = quantities.metric(retrained.metric, abs(retrained.gain), places)
    return f"{'better' if retrained.gain > 0 else 'worse'} by {told}"


def why(retrained: RetrainingSummary) -> str:
    """The reason for this plan, or for the given model, as a sentence."""
    said = retrained.why.strip()
    return f"{said[:1].upper()}{said[1:]}{'' if said[-1:] in '.!?' else '.'}"


def tiles(retrained: RetrainingSummary) -> Iterator[Tile]:
    """The retraining in four numbers."""
    note = gained(retrained) if retrained.kept_new else why(retrained)
    better = retrained.kept_new and retrained.gain > 0
    badge = "" if retrained.kept_new else STAYS
    yield Tile(f"Kept-back {retrained.metric}", reached(retrained), note, badge, accent=better)
    peak = peak_bytes(retrained)
    value = quantities.NOTHING if peak is None else quantities.size(peak)
    yield Tile("Peak memory, measured", value, memory_note(retrained), "over the limit" if is_over(retrained) else "")
    late = retrained.elapsed_s > retrained.limits.window_s
    yield Tile(
        "Time", quantities.duration(retrained.elapsed_s), time_note(retrained), "over the window" if late else ""
    )
    yield Tile("Planning", quantities.duration(retrained.planning_s), planning_note(retrained))


def peak_bytes(retrained: RetrainingSummary) -> int | None:
    """The highest memory that was measured; None where the system tells none."""
    known = [window.measured_bytes for window in retrained.windows if window.measured_bytes is not None]
    return max(known, default=None) if retrained.peak_bytes is None else retrained.peak_bytes


def memory_note(retrained: RetrainingSummary) -> str:
    """The peak beside the limit, which may have changed on the way."""
    limits = _limits(retrained)
    first, last, lowest = (quantities.size(limit) for limit in (limits[0], limits[-1], min(limits)))
    changed = "" if first == lowest else f", {'later' if last == lowest else 'at the least'} {lowest}"
    peak, fullest = peak_bytes(retrained), _fullest(retrained)
    if peak is None:
        predicted = max((window.predicted_bytes for window in retrained.windows), default=None)
        expected = "" if predicted is None else f"; predicted {quantities.size(predicted)} at most"
        return f"not measured{expected}; the limit is {first}{changed}"
    if changed and fullest is not None:
        return f"at most {quantities.share(fullest)} of the limit at the time ({first}{changed})"
    return f"{quantities.share(peak / limits[0])} of the limit of {first}"


def is_over(retrained: RetrainingSummary) -> bool:
    """Whether more memory was measured than was allowed."""
    peak, fullest = peak_bytes(retrained), _fullest(retrained)
    return (peak is not None and peak > max(_limits(retrained))) or (fullest is not None and fullest > 1)


def time_note(retrained: RetrainingSummary) -> str:
    """The time beside the window, and what was done in it."""
    updates = sum(window.updates for window in retrained.windows)
    done = f"{quantities.count(len(retrained.windows), 'micro-window')}, {quantities.count(updates, 'update')}"
    window_s = retrained.limits.window_s
    return (
        f"{quantities.share(retrained.elapsed_s / window_s)} of the window of {quantities.duration(window_s)}; {done}"
    )


def planning_note(retrained: RetrainingSummary) -> str:
    """What planning took of the window and of the memory."""
    share = f"{quantities.share(retrained.planning_s / retrained.limits.window_s)} of the window"
    return f"{share}, {quantities.size(retrained.planning_bytes)} added to the process"


def predictions(retrained: RetrainingSummary) -> str:
    """How far predicted memory was from measured memory."""
    found = prediction_error(retrained.windows)
    if found is None:
        return "no micro-window has measured memory to compare the predicted one with"
    low = f"too low in {found.too_low}" if found.too_low else "never too low"
    worst, typical_error, worst_error = found.worst_window, *map(quantities.share, (found.median, found.worst))
    return (
        f"predicted memory against measured, over {quantities.count(found.windows, 'micro-window')}: off by "
        f"{typical_error} in the median, by {worst_error} at worst (number {worst.number}: predicted "
        f"{quantities.size(worst.predicted_bytes)}, measured {quantities.size(worst.measured_bytes or 0)}), {low}"
    )


def of_plan(retrained: RetrainingSummary, plan: RetrainingPlan) -> Iterator[tuple[str, str]]:
    """A plan and what it came to, name by name."""
    tried = [window for window in retrained.windows if window.plan == plan]
    yield (
        "batch",
        f"{plan.batch_size} × {plan.accumulation}, {quantities.count(plan.effective_batch, 'sample')} an update",
    )
    yield "frozen layers, from the input", quantities.share(plan.freeze_rate)
    yield "checkpoint segments", str(plan.segments)
    yield "epochs, at most", str(plan.epochs)
    yield "learning rate", quantities.number(plan.lr)
    yield "optimizer", plan.optimizer
    yield "predicted memory", _size(predicted_bytes(retrained, plan))
    known = [window.measured_bytes for window in tried if window.measured_bytes is not None]
    yield "measured memory", _size(max(known, default=None))
    expected = next((one for one in retrained.plans if one.plan == plan), None)
    yield (
        "predicted time of an update",
        quantities.NOTHING if expected is None else quantities.duration(expected.update_s),
    )
    yield "micro-windows", str(len(tried))


def predicted_bytes(retrained: RetrainingSummary, plan: RetrainingPlan) -> int | None:
    """What a plan was predicted to need: at first, or else when it was last used."""
    first = next((one.memory_bytes for one in retrained.plans if one.plan == plan), None)
    last = next((w.predicted_bytes for w in reversed(retrained.windows) if w.plan == plan), None)
    return last if first is None else first


def _size(value: int | None) -> str:
    return quantities.NOTHING if value is None else quantities.size(value)


def _limits(retrained: RetrainingSummary) -> list[int]:
    """The limits one after the other: as given, and as each micro-window left it."""
    return [retrained.limits.memory_bytes, *(window.limit_bytes for window in retrained.windows)]


def _fullest(retrained: RetrainingSummary) -> float | None:
    """The largest share of its limit that a micro-window used."""
    # A limit that falls ends a micro-window: what that one needed before was allowed by the limit before.
    limits = _limits(retrained)
    allowed = [max(both) for both in pairwise(limits)]
    known = [(one.measured_bytes, limit) for one, limit in zip(retrained.windows, allowed)]
    return max((size / limit for size, limit in known if size is not None and limit > 0), default=None)
