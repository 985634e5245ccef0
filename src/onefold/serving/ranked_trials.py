"""Trials with their serving costs on each device, the input of a recommendation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onefold.vocabulary import quantities
from onefold.vocabulary.objective import Goal, Objective
from onefold.vocabulary.ranking import is_feasible
from onefold.vocabulary.records import Metrics, Trial
from onefold.vocabulary.serving import SERVING_METRICS, LatencySource, OptimizeFor, Served, Surface

Servings = Mapping[tuple[int, str], Surface]  # by trial and device


@dataclass(frozen=True, slots=True)
class RankedTrial:
    """A trial and its serving costs on one device, by the names in SERVING_METRICS."""

    trial: int
    level: int
    quality: float
    keeps: bool  # the requirements
    near: bool  # in quality to the top-1
    costs: Metrics
    labels: Mapping[str, str]  # sources of the costs that were not measured on the device
    relative: Metrics  # each cost as a multiple of the top-1's


@dataclass(frozen=True, slots=True)
class TrialRecords:
    """The trials of a study with their surfaces, its objective, and the workload's own goal (`quality`)."""

    trials: tuple[Trial, ...]
    objective: Objective
    servings: Servings
    devices: tuple[str, ...]
    quality: Goal

    def on_device(self, device: str) -> list[RankedTrial]:
        """Return the trials without a failure that have a quality and a surface on this device."""
        ranked = []
        for trial in self.trials:
            quality, surface = trial.metrics.get(self.quality.metric), self.servings.get((trial.number, device))
            if surface and quality is not None and math.isfinite(quality) and trial.failure is None:
                feasible = is_feasible(trial.metrics, self.objective)
                costs, labels = compared_costs(trial, surface, several=len(self.devices) > 1)
                ranked.append(
                    RankedTrial(trial.number, trial.level, quality, feasible, False, costs, labels, relative={})
                )
        return ranked

    def source_label(self, trial: Trial, metric: str) -> str:
        """Return the source of a metric of a trial; "" if it was measured."""
        base, _, device = metric.partition("@")
        surface = self.servings.get((trial.number, device or next(iter(self.devices), "")))
        return surface_costs(surface)[1].get(base, "") if surface else ""

    def formatted(self, trial: Trial, metric: str) -> str:
        """Format a metric of a trial with its source."""
        return labeled(metric.partition("@")[0], trial.metrics[metric], self.source_label(trial, metric))


def best_points(surface: Surface) -> dict[str, Served]:
    """Return the best point for each goal; none for energy if no energy is known."""
    points = {goal.value: surface.best(goal) for goal in OptimizeFor}
    if points[OptimizeFor.ENERGY.value].energy_per_sample_j is None:
        del points[OptimizeFor.ENERGY.value]
    return points


def source_label(served: Served, metric: str) -> str:
    """Return the source of a metric of a serving point; "" if it was measured on the device itself."""
    if metric == "size_bytes":
        return ""
    if served.is_predicted:
        return _predicted_label(served, metric)
    if metric.startswith("energy") and not served.energy.measured:
        return served.energy.source
    return "" if served.source is LatencySource.MEASURED else served.source.value


def _predicted_label(served: Served, metric: str) -> str:
    """Return the source and the interval of a metric of a predicted point."""
    low, high = served.low_s / served.latency_s, served.high_s / served.latency_s
    value = {
        "latency_s": served.latency_s,
        "latency_p99_s": served.p99_s,
        "throughput_per_s": served.throughput_per_s,
        "energy_per_sample_j": served.energy_per_sample_j,
    }.get(metric)
    if value is None:
        return served.source.value
    ends = (value / high, value / low) if metric == "throughput_per_s" else (value * low, value * high)
    return f"{served.source.value}, {' to '.join(quantities.metric(metric, end) for end in ends)}"


def energy_source(served: Served) -> str:
    """Return the source of a point's energy; for a predicted point it is not the meter."""
    if served.is_predicted:
        return served.source.value
    return source_label(served, "energy_per_sample_j") or served.energy.source


def surface_costs(surface: Surface) -> tuple[dict[str, float], dict[str, str]]:
    """Return the costs at the best points, by the names in SERVING_METRICS, and the sources of unmeasured ones."""
    points, costs = best_points(surface), dict(surface.metrics())
    goals = {"throughput_per_s": "throughput", "energy_per_sample_j": "energy"}
    labels = {metric: source_label(points[goals.get(metric, "latency")], metric) for metric in costs}
    return costs, {metric: label for metric, label in labels.items() if label}


def compared_costs(trial: Trial, surface: Surface, *, several: bool) -> tuple[dict[str, float], dict[str, str]]:
    """Return the costs as measured for all trials with the same effort; the winner was measured again more precisely.

    `several` says that the study has several devices, whose names are part of the names of the metrics.
    """
    costs, labels = surface_costs(surface)
    names = {metric: f"{metric}@{surface.device}" if several else metric for metric in costs}
    return {metric: trial.metrics.get(names[metric], cost) for metric, cost in costs.items()}, labels


def cost_goal(objective: Objective) -> Goal:
    """Return the first goal of the objective that is a serving cost, or else the lowest latency."""
    for goal in objective.goals:
        if (base := goal.metric.partition("@")[0]) in SERVING_METRICS:
            return Goal(base, goal.maximize)
    return Goal("latency_s", maximize=False)


def is_fraction(quality: Goal, value: float) -> bool:
    """Return whether a quality is a fraction such as accuracy, whose differences are given in percentage points."""
    return quality.maximize and 0 <= value <= 1


def labeled(metric: str, value: float, label: str) -> str:
    """Format a value with its source."""
    quantity = quantities.metric(metric, value)
    return f"{quantity} ({label})" if label else quantity
