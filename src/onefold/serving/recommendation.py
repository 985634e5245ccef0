"""Recommend a trial to serve, with its serving points, the reasons, and alternatives.

    recommendation = recommend(trials, objective, servings, devices, quality)
    recommendation.trial
    recommendation.reasons
    recommendation.devices[0].points["throughput"]
    recommendation.devices[0].alternatives

`quality` is the workload's own goal, such as the highest accuracy; the best trial by it is the "top-1", which a tuner
without serving costs would choose. Serving costs come from the trial's surface on each device, with their sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from onefold.serving.ranked_trials import RankedTrial, Servings, TrialRecords, best_points, cost_goal, is_fraction
from onefold.serving.recommendation_reasons import point_reasons, shortfalls, trial_comparisons, trial_reasons
from onefold.vocabulary.objective import Goal, Objective
from onefold.vocabulary.pareto import fronts
from onefold.vocabulary.ranking import is_feasible, ranked, settled
from onefold.vocabulary.records import Metrics, Trial
from onefold.vocabulary.serving import Served

NEAR = 0.01  # a negligible loss of quality: one percentage point of a fraction, one percent of anything else
TOP_LEVELS = 2  # only trials of the top rung levels are compared: less training says too little about quality
FRONT_METRICS = ("latency_s", "energy_per_sample_j", "size_bytes")  # of the Pareto front, besides quality


@dataclass(frozen=True, slots=True)
class DeviceRecommendation:
    """The recommendation for one device."""

    device: str
    points: Mapping[str, Served]  # of the recommended trial, by goal; none for energy if it is unknown
    reasons: tuple[str, ...]  # for these points
    top: int  # the trial of the best quality, the reference of relative costs
    alternatives: tuple[RankedTrial, ...]  # near the top-1 in quality, and the recommended trial; cheapest first
    compared: tuple[int, ...]  # the trials of the top levels, which the front is computed from
    front: tuple[int, ...]  # Pareto front over quality, latency, energy and size; best quality first


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The trial to serve, the reasons for it, and how to serve it on each device."""

    trial: int
    keeps: bool  # the requirements
    quality: Goal
    reasons: tuple[str, ...]  # for this trial
    shortfalls: tuple[str, ...]  # if no trial meets the requirements: how far the closest one is
    devices: tuple[DeviceRecommendation, ...]  # those with measurements, in the order of the study

    def on(self, device: str) -> DeviceRecommendation | None:
        """Return the recommendation for a device; None if it has no measurements."""
        return next((recommended for recommended in self.devices if recommended.device == device), None)


def recommend(
    trials: Iterable[Trial], objective: Objective, servings: Servings, devices: Sequence[str], quality: Goal
) -> Recommendation | None:
    """Return the recommendation, or None before any trial has every metric of the objective.

    `devices` are the names of the study's devices; metrics without a device name are those of the first.
    """
    trials = tuple(trials)
    objective = settled(objective, trials)
    records = TrialRecords(trials, objective, servings, tuple(devices), quality)
    ranking = ranked(trials, objective)
    if not ranking:
        return None
    winner = ranking[0]
    on = tuple(
        recommended for device in records.devices if (recommended := _on_device(records, winner, device)) is not None
    )
    goal_devices = [goal.metric.partition("@")[2] for goal in objective.goals]
    reasons = list(trial_reasons(records, ranking))
    for recommended in sorted(on, key=lambda recommended: recommended.device not in goal_devices)[
        :1
    ]:  # the goal's device, else the first
        where = f"on {recommended.device}, " if len(on) > 1 else ""
        comparisons = trial_comparisons(records, winner, recommended.top, recommended.alternatives)
        reasons += [where + comparison for comparison in comparisons]
    for device in records.devices:
        if (winner.number, device) not in servings:
            reasons.append(f"trial {winner.number} has not been measured on {device}")
    return Recommendation(
        trial=winner.number,
        keeps=is_feasible(winner.metrics, objective),
        quality=quality,
        reasons=tuple(reasons),
        shortfalls=tuple(shortfalls(records, ranking)),
        devices=on,
    )


def _on_device(records: TrialRecords, winner: Trial, device: str) -> DeviceRecommendation | None:
    measured, quality, cost = records.on_device(device), records.quality, cost_goal(records.objective)
    if not measured:
        return None
    levels = sorted({trial.level for trial in measured})[-TOP_LEVELS:]
    compared = [trial for trial in measured if trial.level in levels]
    top = min(compared, key=lambda trial: (quality.loss(trial.quality), -trial.level, trial.trial))
    margin = NEAR * (1.0 if is_fraction(quality, top.quality) else abs(top.quality))
    worst = quality.loss(top.quality) + margin + 1e-12
    compared = [replace(trial, near=quality.loss(trial.quality) <= worst) for trial in compared]
    shown = [trial for trial in compared if trial.near or trial.trial == winner.number]
    shown += [trial for trial in measured if trial.trial == winner.number and trial.level not in levels]
    shown.sort(key=lambda trial: (_loss(cost, trial), quality.loss(trial.quality), trial.trial))
    surface = records.servings.get((winner.number, device))
    return DeviceRecommendation(
        device=device,
        points=best_points(surface) if surface else {},
        reasons=tuple(point_reasons(records.objective, surface)) if surface else (),
        top=top.trial,
        alternatives=tuple(replace(trial, relative=_relative(trial.costs, top.costs)) for trial in shown),
        compared=tuple(trial.trial for trial in compared),
        front=_pareto_front(quality, [trial for trial in compared if trial.keeps]),
    )


def _loss(goal: Goal, trial: RankedTrial) -> float:
    return goal.loss(trial.costs[goal.metric]) if goal.metric in trial.costs else math.inf


def _relative(costs: Metrics, reference: Metrics) -> dict[str, float]:
    return {metric: cost / reference[metric] for metric, cost in costs.items() if reference.get(metric, 0.0) > 0}


def _pareto_front(quality: Goal, trials: Sequence[RankedTrial]) -> tuple[int, ...]:
    metrics = [metric for metric in FRONT_METRICS if all(metric in trial.costs for trial in trials)]
    losses = [(quality.loss(trial.quality), *(trial.costs[metric] for metric in metrics)) for trial in trials]
    members = [trials[index] for index in next(iter(fronts(losses)), [])]
    return tuple(trial.trial for trial in sorted(members, key=lambda trial: (quality.loss(trial.quality), trial.trial)))
