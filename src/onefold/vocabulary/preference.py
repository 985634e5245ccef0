"""Which trial of a Pareto front is handed over: the knee by default, or by weights, within a guard.

Objective(maximize="accuracy", minimize="latency_s")                                          # the knee
Objective(maximize="accuracy", minimize="latency_s", prefer="latency_s")                      # the fastest
Objective(maximize="accuracy", minimize="latency_s", prefer={"accuracy": 2, "latency_s": 1})
Objective(maximize="accuracy", minimize="latency_s", prefer=Preference(guard={"accuracy": at_least("best-10%")}))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.errors import ObjectiveError, unknown
from onefold.vocabulary.pareto import LEAST_SHARE
from onefold.vocabulary.records import Metrics
from onefold.vocabulary.requirement import Bound

GUARD_SHARE = LEAST_SHARE  # of the best value of the workload's own metric that a model may give up for the other goals
Guard = Mapping[str, Bound | Sequence[Bound]]
SettledGuard = Sequence[tuple[str, Bound]]  # with known limits


@suggest_fields
@dataclass(frozen=True)
class Preference:
    """Weights of the goals, and a guard: bounds that the trial handed over meets if any trial of the front does.

    Without weights all goals count alike; with weights, goals that have none do not count. If no trial of the front
    meets the guard, the one that violates it least is handed over. A guard of None stands for the default, which a
    study sets: at most GUARD_SHARE worse than the best trial of the front by the workload's own metric. An empty guard
    admits every trial of the front. A metric may have several bounds.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    guard: Guard | None = None

    def __post_init__(self) -> None:
        for metric, weight in self.weights.items():
            is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
            if not is_number or not (math.isfinite(weight) and weight >= 0):
                raise ObjectiveError(f"the weight of {metric} must be a number of 0 or more, got {weight!r}")
        for metric, bound in guard_bounds(self.guard):
            if not isinstance(bound, Bound):
                raise ObjectiveError(
                    f"the guard of {metric} must be a bound such as at_least('best-5%'), got {bound!r}"
                )
        if self.weights and not any(self.weights.values()):
            raise ObjectiveError("no goal has a weight above 0; leave the weights out to weigh all goals alike")

    def check(self, goals: Sequence[str]) -> None:
        """Raise ObjectiveError if there is one goal, so that nothing can be preferred, or a weight is not of a goal."""
        if len(goals) == 1 and self != Preference():
            raise ObjectiveError(
                f"a preference and a guard choose from the Pareto front of several goals, and {goals[0]} is the only "
                "one; leave them out, or add a goal"
            )
        for metric in self.weights:
            if metric not in goals:
                raise ObjectiveError(f"only goals can be preferred: {unknown('goal', metric, goals)}")

    def weight(self, metric: str) -> float:
        """Return the weight of a goal."""
        return float(self.weights.get(metric, 0.0)) if self.weights else 1.0

    def guarded(self, metric: str, *, maximize: bool) -> Preference:
        """Return the preference with the default guard on the workload's own metric, unless it has a guard."""
        if self.guard is not None:
            return self
        bound = Bound(None, maximize, -GUARD_SHARE if maximize else GUARD_SHARE, is_share=True)
        return replace(self, guard={metric: bound})

    def settled_guard(self, front: Iterable[Metrics]) -> SettledGuard:
        """Return the guard with bounds relative to the best fixed by the best of the front.

        A bound on a metric that no trial of the front has is left out: a workload may not report its default metric.
        """
        results = list(front)
        known = {metric: [metrics[metric] for metrics in results if metric in metrics] for metric in self.guard or ()}
        return [(metric, bound.settled(known[metric])) for metric, bound in guard_bounds(self.guard) if known[metric]]

    def to_json(self) -> dict[str, Any]:
        """Return the preference as plain JSON values."""
        guard = None if self.guard is None else {metric: _plain(bounds) for metric, bounds in self.guard.items()}
        return {"weights": dict(self.weights), "guard": guard}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Preference:
        """Return the preference that `to_json` wrote."""
        guard = data["guard"]
        return cls(data["weights"], None if guard is None else {metric: _bounds(guard[metric]) for metric in guard})


def guard_bounds(guard: Guard | None) -> Iterator[tuple[str, Bound]]:
    """Yield every bound of a guard with its metric."""
    for metric, bounds in (guard or {}).items():
        is_several = isinstance(bounds, Sequence) and not isinstance(bounds, str)
        yield from ((metric, bound) for bound in (bounds if is_several else (bounds,)))  # type: ignore[misc, union-attr]


def _plain(bounds: Bound | Sequence[Bound]) -> Any:
    return bounds.to_json() if isinstance(bounds, Bound) else [bound.to_json() for bound in bounds]


def _bounds(data: Any) -> Bound | tuple[Bound, ...]:
    return Bound(**data) if isinstance(data, Mapping) else tuple(Bound(**each) for each in data)


def preference(given: Preference | Mapping[str, float] | str | None) -> Preference:
    """Return the preference that an argument describes: a record, weights, or text such as "accuracy=2,latency_s=1"."""
    if isinstance(given, Preference):
        return given
    if given is not None and not isinstance(given, (str, Mapping)):
        raise ObjectiveError(f"a preference is a goal, weights of goals or a Preference, got {given!r}")
    return Preference(_weights(given) if isinstance(given, str) else dict(given or {}))


def guard_violation(metrics: Metrics, guard: SettledGuard) -> float:
    """Return the total violation of a guard, relative to its limits: 0 if it is met, infinite without a metric."""
    return sum(bound.violation(metrics.get(metric, math.nan)) for metric, bound in guard)


def _weights(text: str) -> dict[str, float]:
    """Parse "accuracy", "accuracy=2,latency_s=1" or the name of a single goal."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        metric, has_weight, weight = (piece.strip() for piece in part.partition("="))
        try:
            value = float(weight) if has_weight else 1.0
        except ValueError:
            value = math.nan
        if not metric or math.isnan(value) or metric in weights:
            raise ObjectiveError(
                f"{text!r} is not a preference; write a goal, or weights of goals, such as accuracy=2,latency_s=1"
            )
        weights[metric] = value
    return weights
