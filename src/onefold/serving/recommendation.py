"""Everything measured -> one recommendation: which trial to serve, at which points, why, and what else would do.

    found = recommend(trials, objective, servings, devices, quality)
    found.trial   found.reasons   found.devices[0].points["throughput"]   found.devices[0].alternatives

`quality` is the workload's own goal, such as the highest accuracy; its best trial is the "top-1" that an ordinary tuner
would ship. What a trial costs is read from its surface on each device, so every figure knows how it was obtained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onefold.vocabulary import quantities
from onefold.vocabulary.objective import Goal, Objective, fronts
from onefold.vocabulary.ranking import front, is_feasible, ranked, settled
from onefold.vocabulary.records import Metrics, Trial
from onefold.vocabulary.requirement import Bound
from onefold.vocabulary.serving import SERVING_METRICS, LatencySource, OptimizeFor, Served, Surface, best

Servings = Mapping[tuple[int, str], Surface]  # by trial and device

NEAR = 0.01  # of quality is given up without regret: one point of a share, one per cent of anything else
TOP_LEVELS = 2  # trials of lower levels are not compared: little training says too little about their quality
EVEN = 1.05  # figures whose ratio is below this are called the same
ON_THE_FRONT = ("latency_s", "energy_per_sample_j", "size_bytes")  # what else than quality a front is over
CHEAPER = {  # than another: how it is said, by factor or per cent
    "latency_s": "is {factor:.3g}x faster",
    "latency_p99_s": "is {factor:.3g}x faster at p99",
    "throughput_per_s": "serves {factor:.3g}x the samples per second",
    "energy_per_sample_j": "takes {percent:.2g} % less energy per sample",
    "size_bytes": "is {percent:.2g} % smaller",
    "serving_memory_bytes": "takes {percent:.2g} % less memory",
}


@dataclass(frozen=True, slots=True)
class RankedTrial:
    """A trial and what serving it costs on one device, by the names in SERVING_METRICS."""

    trial: int
    level: int
    quality: float
    keeps: bool  # the requirements
    near: bool  # in quality to the top-1
    costs: Metrics
    labels: Mapping[str, str]  # of the costs that were not measured on the device: how they were obtained
    relative: Metrics  # each cost as a multiple of the top-1's


@dataclass(frozen=True, slots=True)
class DeviceRecommendation:
    """What is recommended on one device."""

    device: str
    points: Mapping[str, Served]  # of the recommended trial, by purpose; no point for energy where none is known
    reasons: tuple[str, ...]  # for these points
    top: int  # the trial of the best quality, with which the costs of the others are compared
    alternatives: tuple[RankedTrial, ...]  # near the top-1 in quality, and the recommended trial; cheapest first
    compared: tuple[int, ...]  # the trials that the front is among: those of the top levels
    front: tuple[int, ...]  # those that no other beats in quality, latency, energy and size; best quality first


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The trial to serve, why this one, and how to serve it on each device."""

    trial: int
    keeps: bool  # the requirements
    quality: Goal
    reasons: tuple[str, ...]  # for this trial
    shortfalls: tuple[str, ...]  # where no trial keeps the requirements: how far the nearest one is
    devices: tuple[DeviceRecommendation, ...]  # those of which anything is known, in the order of the study

    def on(self, device: str) -> DeviceRecommendation | None:
        """What is recommended on this device, if anything is known about it."""
        return next((found for found in self.devices if found.device == device), None)


def recommend(
    trials: Iterable[Trial], objective: Objective, servings: Servings, devices: Sequence[str], quality: Goal
) -> Recommendation | None:
    """The recommendation, or None before any trial has all that the objective asks for.

    `devices` are the names of the study's devices; figures that name no device are of the first one.
    """
    trials = tuple(trials)
    objective = settled(objective, trials)
    known = _Known(trials, objective, servings, tuple(devices), quality)
    ranking = ranked(known.trials, objective)
    if not ranking:
        return None
    on = tuple(found for device in known.devices if (found := _on_device(known, ranking[0], device)) is not None)
    return Recommendation(
        trial=ranking[0].number,
        keeps=is_feasible(ranking[0].metrics, objective),
        quality=quality,
        reasons=tuple(_reasons(known, ranking, on)),
        shortfalls=tuple(_shortfalls(known, ranking)),
        devices=on,
    )


# What a surface says


def chosen_points(surface: Surface) -> dict[str, Served]:
    """The best point for each purpose; none for energy where no energy is known."""
    found = {purpose.value: surface.best(purpose) for purpose in OptimizeFor}
    if found[OptimizeFor.ENERGY.value].energy_per_sample_j is None:
        del found[OptimizeFor.ENERGY.value]
    return found


def label(served: Served, metric: str) -> str:
    """How a figure of a served point was obtained; "" when it was measured on the device itself."""
    if metric == "size_bytes":
        return ""
    if metric.startswith("energy") and not served.energy.measured:
        return served.energy.source
    return "" if served.source is LatencySource.MEASURED else served.source.value


def energy_way(served: Served) -> str:
    """Where a point's energy comes from; that of a point that nobody ran does not come from a meter."""
    return label(served, "energy_per_sample_j") or served.energy.source


def costs_of(surface: Surface) -> tuple[dict[str, float], dict[str, str]]:
    """What serving costs at the chosen points, by the names in SERVING_METRICS, and labels of what is not measured."""
    points, costs = chosen_points(surface), dict(surface.metrics())
    at = {"throughput_per_s": "throughput", "energy_per_sample_j": "energy"}
    labels = {metric: label(points[at.get(metric, "latency")], metric) for metric in costs}
    return costs, {metric: said for metric, said in labels.items() if said}


def compared_costs(trial: Trial, surface: Surface, *, several: bool) -> tuple[dict[str, float], dict[str, str]]:
    """The same by what all trials were measured for with one effort; the one handed over was measured again, with more.

    `several` says that the study has several devices, whose names are in those of the metrics.
    """
    costs, labels = costs_of(surface)
    names = {metric: f"{metric}@{surface.device}" if several else metric for metric in costs}
    return {metric: trial.metrics.get(names[metric], cost) for metric, cost in costs.items()}, labels


def cost_goal(objective: Objective) -> Goal:
    """What "cheapest" means under this objective: its first goal that is a cost of serving, else the lowest latency."""
    for goal in objective.goals:
        if (base := goal.metric.partition("@")[0]) in SERVING_METRICS:
            return Goal(base, goal.maximize)
    return Goal("latency_s", maximize=False)


# Trials beside each other


@dataclass(frozen=True, slots=True)
class _Known:
    """What a recommendation is made from."""

    trials: tuple[Trial, ...]
    objective: Objective
    servings: Servings
    devices: tuple[str, ...]
    quality: Goal

    def candidates(self, device: str) -> list[RankedTrial]:
        """The sound trials that have a quality and a surface on this device."""
        found = []
        for trial in self.trials:
            quality, surface = trial.metrics.get(self.quality.metric), self.servings.get((trial.number, device))
            if surface and quality is not None and math.isfinite(quality) and trial.failure is None:
                held = is_feasible(trial.metrics, self.objective)
                costs, labels = compared_costs(trial, surface, several=len(self.devices) > 1)
                found.append(RankedTrial(trial.number, trial.level, quality, held, False, costs, labels, relative={}))
        return found

    def label(self, trial: Trial, metric: str) -> str:
        """How a trial's figure was obtained; "" when it was measured."""
        base, _, device = metric.partition("@")
        surface = self.servings.get((trial.number, device or next(iter(self.devices), "")))
        return costs_of(surface)[1].get(base, "") if surface else ""

    def told(self, trial: Trial, metric: str) -> str:
        """A trial's figure in words, with its label."""
        return _told(metric.partition("@")[0], trial.metrics[metric], self.label(trial, metric))


def _on_device(known: _Known, chosen: Trial, device: str) -> DeviceRecommendation | None:
    everyone, quality, cheap = known.candidates(device), known.quality, cost_goal(known.objective)
    if not everyone:
        return None
    levels = sorted({candidate.level for candidate in everyone})[-TOP_LEVELS:]
    among = [candidate for candidate in everyone if candidate.level in levels]
    top = min(among, key=lambda c: (quality.loss(c.quality), -c.level, c.trial))
    worst = quality.loss(top.quality) + NEAR * (1.0 if _is_share(quality, top.quality) else abs(top.quality)) + 1e-12
    among = [replace(c, near=quality.loss(c.quality) <= worst) for c in among]
    shown = [c for c in among if c.near or c.trial == chosen.number]
    shown += [c for c in everyone if c.trial == chosen.number and c.level not in levels]
    shown.sort(key=lambda c: (_loss(cheap, c), quality.loss(c.quality), c.trial))
    surface = known.servings.get((chosen.number, device))
    return DeviceRecommendation(
        device=device,
        points=chosen_points(surface) if surface else {},
        reasons=tuple(_point_reasons(known.objective, surface)) if surface else (),
        top=top.trial,
        alternatives=tuple(replace(c, relative=_relative(c.costs, top.costs)) for c in shown),
        compared=tuple(c.trial for c in among),
        front=_front(quality, [c for c in among if c.keeps]),
    )


def _loss(goal: Goal, candidate: RankedTrial) -> float:
    return goal.loss(candidate.costs[goal.metric]) if goal.metric in candidate.costs else math.inf


def _relative(costs: Metrics, reference: Metrics) -> dict[str, float]:
    return {metric: cost / reference[metric] for metric, cost in costs.items() if reference.get(metric, 0.0) > 0}


def _front(quality: Goal, candidates: Sequence[RankedTrial]) -> tuple[int, ...]:
    metrics = [metric for metric in ON_THE_FRONT if all(metric in candidate.costs for candidate in candidates)]
    losses = [(quality.loss(c.quality), *(c.costs[metric] for metric in metrics)) for c in candidates]
    members = [candidates[place] for place in next(iter(fronts(losses)), [])]
    return tuple(c.trial for c in sorted(members, key=lambda c: (quality.loss(c.quality), c.trial)))


# Why, in words


def _reasons(known: _Known, ranking: Sequence[Trial], on: Sequence[DeviceRecommendation]) -> Iterator[str]:
    chosen, objective = ranking[0], known.objective
    bounds = " and ".join(f"{metric}{bound}" for metric, bound in objective.require.items())
    goals = ", ".join(f"{goal} {known.told(chosen, goal.metric)}" for goal in objective.goals)
    solutions = [trial for trial in ranking if is_feasible(trial.metrics, objective) and trial.failure is None]
    peers = [trial for trial in solutions if trial.level == chosen.level]
    place = f" at level {chosen.level}" if len({trial.level for trial in solutions}) > 1 else ""
    if chosen not in solutions:
        missed = "finished without a failure" if is_feasible(chosen.metrics, objective) else "keeps every requirement"
        yield f"no trial {missed}; trial {chosen.number} comes nearest: {goals}"
    elif len(objective.goals) > 1:
        kept = f"keeps {bounds} and is" if bounds else "is"
        members = len(front(known.trials, objective))
        yield f"trial {chosen.number} {kept} one of {members} that no other beats in all of: {goals}"
    elif len(peers) == 1:
        kept = f"that keeps {bounds}" if bounds else "with a result"
        yield f"trial {chosen.number} is the only one{place} {kept}: {goals}"
    else:
        kept = f"keeps {bounds} and has" if bounds else "has"
        told = known.told(chosen, objective.goals[0].metric)
        count = f"{len(peers)} that do{place}" if bounds else f"{len(peers)} trials{place}"
        yield f"trial {chosen.number} {kept} the {objective.goals[0]} of the {count}: {told}"
    asked = [goal.metric.partition("@")[2] for goal in objective.goals]
    for found in sorted(on, key=lambda found: found.device not in asked)[:1]:  # the device asked for, else the first
        where = f"on {found.device}, " if len(on) > 1 else ""
        yield from (where + said for said in _beside_others(known, chosen, found))
    for device in known.devices:
        if (chosen.number, device) not in known.servings:
            yield f"serving trial {chosen.number} on {device} has not been measured"


def _beside_others(known: _Known, chosen: Trial, on: DeviceRecommendation) -> Iterator[str]:
    """The recommended trial beside the top-1, and beside what is cheaper still and nearly as good."""
    by_number = {candidate.trial: candidate for candidate in on.alternatives}
    quality, cheap = known.quality, cost_goal(known.objective)
    mine, top = by_number.get(chosen.number), by_number[on.top]
    if mine is None:
        return
    if top is not mine:
        gap = _gap(quality, mine.quality, top.quality)
        but = "" if top.keeps else ", but it misses a requirement"
        says = _cheaper(cheap, mine, top)
        if says:
            yield f"against the trial of the {quality} (trial {top.trial}) it {says}{f', for {gap}' if gap else ''}"
        elif gap:
            yield f"trial {top.trial} has the {quality}, {gap} better{but}"
    first = on.alternatives[0]
    says = _cheaper(cheap, first, mine)
    if first is not mine and first.keeps and says:
        gap = _gap(quality, first.quality, mine.quality)
        yield f"trial {first.trial} is nearly as good and {says}" + (f", for {gap}" if gap else "")


def _cheaper(cheap: Goal, one: RankedTrial, other: RankedTrial) -> str:
    """How much cheaper one is than the other; "" when it is not."""
    a, b = one.costs.get(cheap.metric), other.costs.get(cheap.metric)
    if not a or not b:
        return ""
    factor = a / b if cheap.maximize else b / a
    return CHEAPER[cheap.metric].format(factor=factor, percent=100 - 100 / factor) if factor >= EVEN else ""


def _gap(quality: Goal, mine: float, better: float) -> str:
    """How much quality is given up; "" when none is."""
    lost = quality.loss(mine) - quality.loss(better)
    if lost <= 0:
        return ""
    if _is_share(quality, better):
        points = f"{lost * 100:.2g}"
        return f"{points} point{'s' * (points != '1')} of {quality.metric}"
    return f"{lost / abs(better) * 100:.2g} % of {quality.metric}" if better else f"{lost:.3g} of {quality.metric}"


def _is_share(quality: Goal, value: float) -> bool:
    """Whether a quality counts from 0 to 1, so that people speak of points of it."""
    return quality.maximize and 0 <= value <= 1


def _shortfalls(known: _Known, ranking: Sequence[Trial]) -> Iterator[str]:
    objective = known.objective
    if any(is_feasible(trial.metrics, objective) for trial in ranking):
        return
    alone = True
    for metric, bound in objective.require.items():
        nearest = min(ranking, key=lambda trial: bound.violation(trial.metrics[metric]))
        if bound.violation(nearest.metrics[metric]) > 0:
            alone = False
            missing = _missing(known, nearest, metric, bound)
            yield f"no trial keeps {metric}{bound}; the nearest, trial {nearest.number}, {missing}"
    if alone:
        yield f"each requirement is kept by some trial, but none keeps all; trial {ranking[0].number} comes nearest"
    for metric, bound in objective.require.items():
        if alone and bound.violation(ranking[0].metrics[metric]) > 0:
            yield f"trial {ranking[0].number} misses {metric}{bound}: it {_missing(known, ranking[0], metric, bound)}"


def _missing(known: _Known, trial: Trial, metric: str, bound: Bound) -> str:
    verb, much = ("reaches", "too little") if bound.at_least else ("needs", "too much")
    off = [f"{bound.violation(trial.metrics[metric]) * 100:.3g} % {much}"] if bound.limit else []
    said = ", ".join([*off, *filter(None, [known.label(trial, metric)])])
    return f"{verb} {trial.metrics[metric]:.4g}" + (f" ({said})" if said else "")


def _point_reasons(objective: Objective, surface: Surface) -> Iterator[str]:
    points = chosen_points(surface)
    latency, throughput, energy = points["latency"], points["throughput"], points.get("energy")
    yield from _why_latency(surface, latency)
    yield from _why_throughput(surface, throughput)
    if energy is not None:
        told = _told("energy_per_sample_j", energy.cost(OptimizeFor.ENERGY), label(energy, "energy_per_sample_j"))
        where = "the same point" if energy.point == throughput.point else _place(surface, energy)
        yield f"{where} takes the least energy, {told} a sample"
    for metric, bound in objective.require.items():
        base, _, device = metric.partition("@")
        if base == "latency_s" and device in ("", surface.device) and bound.violation(throughput.latency_s) > 0:
            told = _told("latency_s", throughput.latency_s, label(throughput, "latency_s"))
            yield f"a batch of {throughput.point.batch_size} takes {told}, which misses {metric}{bound}"
    yield from (f"note: {note}" for note in surface.notes)


def _why_latency(surface: Surface, latency: Served) -> Iterator[str]:
    told = _told("latency_s", latency.latency_s, label(latency, "latency_s"))
    same = [one for one in surface.served if one.point.batch_size == latency.point.batch_size]
    single = [one for one in same if one.point.threads == 1]
    said = f"{_place(surface, latency)} answers first, in {told}"
    if latency.point.threads > 1 and single:
        said += f": {min(one.latency_s for one in single) / latency.latency_s:.2g}x faster than 1 thread"
    elif latency.point.threads < max(one.point.threads for one in same):
        said += "; more threads do not make it faster"
    yield said


def _why_throughput(surface: Surface, throughput: Served) -> Iterator[str]:
    told = _told("throughput_per_s", throughput.throughput_per_s, label(throughput, "throughput_per_s"))
    said = f"{_place(surface, throughput)} serves the most, {told}"
    smallest = min(one.point.batch_size for one in surface.served)
    reference = best((one for one in surface.served if one.point.batch_size == smallest), OptimizeFor.THROUGHPUT)
    if throughput.point.batch_size > smallest:
        factor = throughput.throughput_per_s / reference.throughput_per_s
        said += f": {factor:.2g}x the samples per second of batch {smallest}"
    elif smallest < max(one.point.batch_size for one in surface.served):
        said += "; larger batches do not serve more"
    yield said


def _place(surface: Surface, served: Served) -> str:
    """A point in words: its batch, its threads, and of the other knobs those that were varied."""
    point = served.point
    said = f"batch {point.batch_size} on {point.threads} thread{'s' * (point.threads > 1)}"
    others = (("graph_level", "graph level "), ("execution", ""), ("precision", ""))
    varied = [
        f"{noun}{getattr(point, knob)}"
        for knob, noun in others
        if len({getattr(one.point, knob) for one in surface.served}) > 1
    ]
    return f"{said} ({', '.join(varied)})" if varied else said


def _told(metric: str, value: float, said: str) -> str:
    quantity = quantities.metric(metric, value)
    return f"{quantity} ({said})" if said else quantity
