"""The sentences that explain a recommendation: why this trial, why these serving points, and what was missed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from onefold.serving.ranked_trials import (
    RankedTrial,
    TrialRecords,
    best_points,
    cost_goal,
    is_fraction,
    labeled,
    source_label,
)
from onefold.vocabulary.objective import Goal, Objective
from onefold.vocabulary.quantities import count, number
from onefold.vocabulary.ranking import front, is_feasible
from onefold.vocabulary.records import Trial
from onefold.vocabulary.requirement import Bound
from onefold.vocabulary.serving import OptimizeFor, Served, Surface, best

EVEN = 1.05  # values whose ratio is below this count as equal
CHEAPER = {  # by metric: how an advantage is phrased, by factor or percentage
    "latency_s": "is {factor:.3g}x faster",
    "latency_p99_s": "is {factor:.3g}x faster at p99",
    "throughput_per_s": "has {factor:.3g}x the throughput",
    "energy_per_sample_j": "takes {percent:.2g} % less energy per sample",
    "size_bytes": "is {percent:.2g} % smaller",
    "serving_memory_bytes": "takes {percent:.2g} % less memory",
}


def trial_reasons(records: TrialRecords, ranking: Sequence[Trial]) -> Iterator[str]:
    """Explain why the first trial of the ranking is recommended."""
    winner, objective = ranking[0], records.objective
    bounds = " and ".join(f"{metric}{bound}" for metric, bound in objective.require.items())
    values = ", ".join(f"{goal.metric} {records.formatted(winner, goal.metric)}" for goal in objective.goals)
    feasible = [trial for trial in ranking if is_feasible(trial.metrics, objective)]
    solutions = [trial for trial in feasible if trial.failure is None]
    peers = [trial for trial in solutions if trial.level == winner.level]
    at_level = f" at level {winner.level}" if len({trial.level for trial in solutions}) > 1 else ""
    sound = " without a failure" if len(solutions) < len(feasible) else ""
    if not feasible:
        is_closest = all(objective.violation(winner.metrics) <= objective.violation(trial.metrics) for trial in ranking)
        among = "" if is_closest else ", of those without a failure,"
        yield f"no trial meets every requirement; trial {winner.number}{among} comes closest: {values}"
    elif not solutions:
        meets = f"that meets {bounds}" if bounds else "with a result"
        yield f"every trial {meets} failed later; trial {winner.number} got furthest: {values}"
    elif len(objective.goals) > 1:
        meets = f"meets {bounds} and is" if bounds else "is"
        yield f"trial {winner.number} {meets} {_place_on_front(records, winner, at_level)}"
    elif len(peers) == 1:
        meets = f"that meets {bounds}" if bounds else "with a result"
        yield f"trial {winner.number} is the only one{at_level} {meets}{sound}: {values}"
    else:
        meets = f"meets {bounds} and has" if bounds else "has"
        value = records.formatted(winner, objective.goals[0].metric)
        others = f"{len(peers)} that do{at_level}{sound}" if bounds else f"{len(peers)} trials{at_level}{sound}"
        yield f"trial {winner.number} {meets} the {objective.goals[0]} of the {others}: {value}"


def _place_on_front(records: TrialRecords, winner: Trial, at_level: str) -> str:
    """Explain why the winner is taken from its Pareto front, which is that of the trials `at_level`."""
    objective, prefer = records.objective, records.objective.prefer
    members = front(records.trials, objective)
    choice = objective.front_choice([trial.metrics for trial in members])
    admitted = [trial for trial in members if choice.admits(trial.metrics)]
    bounds = " and ".join(map(_settled_bound, choice.guard))
    guard = bounds if admitted else ""
    weighed = [goal for goal in objective.goals if prefer.weight(goal.metric)]
    among = f", of the {len(admitted)} with {guard}," if guard else ""
    if len(members) == 1:
        reason = f"the only trial on the Pareto front{at_level}"
        reason += f", which has no trial with {bounds}" if bounds and not admitted else ""
    elif bounds and not admitted:
        reason = (
            f"on the Pareto front of {len(members)} trials{at_level}, none of which has {bounds}, and comes closest"
        )
    elif len(admitted) == 1:
        reason = f"on the Pareto front of {len(members)} trials{at_level} and the only one with {guard}"
    else:
        reason = f"on the Pareto front of {len(members)} trials{at_level} and{among} "
        if len(weighed) == 1:
            reason += f"has the {weighed[0]}"
        elif prefer.weights:
            weights = ", ".join(f"{goal.metric} {prefer.weight(goal.metric):g}" for goal in weighed)
            reason += f"closest to the best of its goals, weighed by {weights}"
        else:
            reason += "closest to the best of every goal"
    return f"{reason}: " + ", ".join(_goal_value(records, goal, winner, members) for goal in objective.goals)


def _settled_bound(item: tuple[str, Bound]) -> str:
    metric, bound = item
    known = f" ({number(bound.limit)})" if bound.from_best is not None and bound.limit is not None else ""
    return f"{metric}{bound}{known}"


def _goal_value(records: TrialRecords, goal: Goal, winner: Trial, members: Sequence[Trial]) -> str:
    """Format the winner's value of a goal, called the highest or lowest only if it is that of the front."""
    loss = goal.loss(winner.metrics[goal.metric])
    is_best = all(loss <= goal.loss(trial.metrics[goal.metric]) for trial in members)
    return f"{goal if is_best else goal.metric} {records.formatted(winner, goal.metric)}"


def trial_comparisons(
    records: TrialRecords, winner: Trial, top: int, alternatives: Sequence[RankedTrial]
) -> Iterator[str]:
    """Compare the recommended trial with the top-1, and with a cheaper trial of nearly the same quality.

    A comparison names every goal in which the cheaper trial is worse.
    """
    by_number = {trial.trial: trial for trial in alternatives}
    quality, cost = records.quality, cost_goal(records.objective)
    chosen, best_quality = by_number.get(winner.number), by_number[top]
    if chosen is None:
        return
    known = [trial.metrics[quality.metric] for trial in records.trials if quality.metric in trial.metrics]
    is_best = all(quality.loss(best_quality.quality) <= quality.loss(value) for value in known if math.isfinite(value))
    best_of = str(quality) if is_best else f"{quality} of the trials compared"
    if best_quality is not chosen:
        loss = _quality_loss(quality, chosen.quality, best_quality.quality)
        advantage = _advantage(cost, chosen, best_quality)
        if advantage:
            price = _price(records, chosen, best_quality)
            yield f"compared with the trial of the {best_of} (trial {top}) it {advantage}{price}"
        elif loss:
            but = "" if best_quality.keeps else ", but it misses a requirement"
            yield f"trial {top} has the {best_of}, {loss} better{but}"
    cheapest = alternatives[0]
    advantage = _advantage(cost, cheapest, chosen)
    if cheapest is not chosen and cheapest.keeps and advantage:
        price = _price(records, cheapest, chosen)
        if _worse_goals(records, cheapest, chosen):
            yield f"trial {cheapest.trial} {advantage}{price}"
        else:
            degree = "nearly" if price else "at least"
            yield f"trial {cheapest.trial} is {degree} as good and {advantage}{price}"


def _price(records: TrialRecords, trial: RankedTrial, other: RankedTrial) -> str:
    """Phrase everything in which a trial is worse than another: its quality, and every other goal; "" if nothing."""
    loss = _quality_loss(records.quality, trial.quality, other.quality)
    losses = [*([loss] if loss else []), *_worse_goals(records, trial, other)]
    return f", for {' and '.join(losses)}" if losses else ""


def _worse_goals(records: TrialRecords, trial: RankedTrial, other: RankedTrial) -> list[str]:
    """Phrase how much worse a trial is than another in the goals besides the quality."""
    metrics = {each.number: each.metrics for each in records.trials}
    own, others = metrics[trial.trial], metrics[other.trial]
    goals = [goal for goal in records.objective.goals if goal.metric in own and goal.metric in others]
    return [
        _goal_loss(goal, own[goal.metric], others[goal.metric])
        for goal in goals
        if goal.metric != records.quality.metric and goal.loss(own[goal.metric]) > goal.loss(others[goal.metric])
    ]


def _goal_loss(goal: Goal, value: float, better: float) -> str:
    """Phrase a worse value of a goal as a multiple of a better one: "13.7x the encoded_bytes"."""
    multiple = f"{value / better:.3g}" if value > 0 and better > 0 else "1"
    if multiple == "1":
        return f"a {goal.metric} of {value:.6g} instead of {better:.6g}"
    return f"{multiple}x the {goal.metric}"


def _advantage(cost: Goal, trial: RankedTrial, other: RankedTrial) -> str:
    """Phrase how much cheaper a trial is than another; "" if it is not."""
    value, other_value = trial.costs.get(cost.metric), other.costs.get(cost.metric)
    if not value or not other_value:
        return ""
    factor = value / other_value if cost.maximize else other_value / value
    return CHEAPER[cost.metric].format(factor=factor, percent=100 - 100 / factor) if factor >= EVEN else ""


def _quality_loss(quality: Goal, value: float, better: float) -> str:
    """Phrase how much quality is given up; "" if none is."""
    loss = quality.loss(value) - quality.loss(better)
    if loss <= 0:
        return ""
    if is_fraction(quality, better):
        points = f"{loss * 100:.2g}"
        return f"{points} point{'s' * (points != '1')} of {quality.metric}"
    return f"{loss / abs(better) * 100:.2g} % of {quality.metric}" if better else f"{loss:.3g} of {quality.metric}"


def shortfalls(records: TrialRecords, ranking: Sequence[Trial]) -> Iterator[str]:
    """Explain which requirements no trial meets, and by how much the closest trial misses them."""
    objective = records.objective
    if any(is_feasible(trial.metrics, objective) for trial in ranking):
        return
    each_is_met = True
    for metric, bound in objective.require.items():
        closest = min(ranking, key=lambda trial: bound.violation(trial.metrics[metric]))
        if bound.violation(closest.metrics[metric]) > 0:
            each_is_met = False
            missed = _missed_by(records, closest, metric, bound)
            yield f"no trial meets {metric}{bound}; the closest, trial {closest.number}, {missed}"
    if not each_is_met:
        return
    yield f"each requirement is met by some trial, but none meets all; trial {ranking[0].number} comes closest"
    for metric, bound in objective.require.items():
        if bound.violation(ranking[0].metrics[metric]) > 0:
            missed = _missed_by(records, ranking[0], metric, bound)
            yield f"trial {ranking[0].number} misses {metric}{bound}: it {missed}"


def _missed_by(records: TrialRecords, trial: Trial, metric: str, bound: Bound) -> str:
    verb, direction = ("reaches", "too little") if bound.at_least else ("needs", "too much")
    excess = [f"{bound.violation(trial.metrics[metric]) * 100:.3g} % {direction}"] if bound.limit else []
    remark = ", ".join([*excess, *filter(None, [records.source_label(trial, metric)])])
    return f"{verb} {number(trial.metrics[metric])}" + (f" ({remark})" if remark else "")


def point_reasons(objective: Objective, surface: Surface) -> Iterator[str]:
    """Explain the best serving points of a surface."""
    points = best_points(surface)
    latency, throughput, energy = points["latency"], points["throughput"], points.get("energy")
    yield _explain_latency(surface, latency)
    yield _explain_throughput(surface, throughput)
    if energy is not None:
        label = source_label(energy, "energy_per_sample_j")
        value = labeled("energy_per_sample_j", energy.cost(OptimizeFor.ENERGY), label)
        point = "the same point" if energy.point == throughput.point else _describe(surface, energy)
        yield f"{point} takes the least energy, {value} per sample"
    for metric, bound in objective.require.items():
        base, _, device = metric.partition("@")
        if base == "latency_s" and device in ("", surface.device) and bound.violation(throughput.latency_s) > 0:
            value = labeled("latency_s", throughput.latency_s, source_label(throughput, "latency_s"))
            yield f"a batch of {throughput.point.batch_size} takes {value}, which misses {metric}{bound}"
    yield from (f"note: {note}" for note in surface.notes)


def _explain_latency(surface: Surface, latency: Served) -> str:
    value = labeled("latency_s", latency.latency_s, source_label(latency, "latency_s"))
    same_batch = [served for served in surface.served if served.point.batch_size == latency.point.batch_size]
    single_thread = [served for served in same_batch if served.point.threads == 1]
    reason = f"{_describe(surface, latency)} has the lowest latency, {value}"
    if latency.point.threads > 1 and single_thread:
        speedup = min(served.latency_s for served in single_thread) / latency.latency_s
        reason = f"{reason}: {speedup:.2g}x faster than 1 thread"
    if doubtful := _doubtful(same_batch, latency, OptimizeFor.LATENCY):
        return f"{reason}; {doubtful}"
    if latency.point.threads == 1 and any(served.point.threads > 1 for served in same_batch):
        return f"{reason}; more threads are not faster"
    return reason


def _doubtful(known: Sequence[Served], chosen: Served, optimize_for: OptimizeFor) -> str:
    """Describe the predicted point that may be cheaper than the chosen one; "" if there is none."""
    cheaper = [
        served for served in known if served.is_predicted and served.cost(optimize_for) < chosen.cost(optimize_for)
    ]
    if chosen.is_predicted or not cheaper:
        return ""
    likely = min(cheaper, key=lambda served: served.cost(optimize_for))
    metric = "throughput_per_s" if optimize_for is OptimizeFor.THROUGHPUT else "latency_s"
    value = likely.throughput_per_s if optimize_for is OptimizeFor.THROUGHPUT else likely.latency_s
    return (
        f"batch {likely.point.batch_size} on {count(likely.point.threads, 'thread')} may be better but did not run: "
        f"{labeled(metric, value, source_label(likely, metric))}"
    )


def _explain_throughput(surface: Surface, throughput: Served) -> str:
    label = source_label(throughput, "throughput_per_s")
    reason = (
        f"{_describe(surface, throughput)} has the highest throughput, "
        f"{labeled('throughput_per_s', throughput.throughput_per_s, label)}"
    )
    if doubtful := _doubtful(surface.served, throughput, OptimizeFor.THROUGHPUT):
        reason = f"{reason} ({doubtful})"
    smallest = min(served.point.batch_size for served in surface.served)
    smallest_batch = [served for served in surface.served if served.point.batch_size == smallest]
    if throughput.point.batch_size > smallest:
        factor = throughput.throughput_per_s / best(smallest_batch, OptimizeFor.THROUGHPUT).throughput_per_s
        return f"{reason}: {factor:.2g}x that of batch {smallest}"
    if smallest < max(served.point.batch_size for served in surface.served):
        return f"{reason}; larger batches do not increase it"
    return reason


def _describe(surface: Surface, served: Served) -> str:
    """Describe a point by its batch size, threads, and those other knobs that were varied."""
    point = served.point
    others = (("graph_level", "graph level "), ("execution", ""), ("precision", ""))
    varied = [
        f"{noun}{getattr(point, knob)}"
        for knob, noun in others
        if len({getattr(candidate.point, knob) for candidate in surface.served}) > 1
    ]
    text = f"batch {point.batch_size} on {count(point.threads, 'thread')}"
    return f"{text} ({', '.join(varied)})" if varied else text
