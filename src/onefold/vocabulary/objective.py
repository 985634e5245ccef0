"""Objectives: what is optimized, what is required, and which trial of a Pareto front is handed over.

Objective(maximize="accuracy")
Objective(maximize="accuracy", minimize=("train_time_s", "parameters"))     # Pareto front
Objective(maximize="accuracy", minimize="latency_s", prefer="latency_s")    # of the front, hand over the fastest
Objective(minimize="loss", require={"accuracy": at_least(0.9)})
Objective(minimize="latency_s", require={"accuracy": at_least(0.9)})        # with a device
Objective(minimize="latency_s", require={"accuracy": at_least("best-0.01")})    # at most 0.01 below the best
Objective(minimize="(train_time_s + 1e4 * latency_s) / accuracy")           # or by name: "time_ratio"
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.errors import ObjectiveError, unknown
from onefold.vocabulary.expression import is_plain, names, value
from onefold.vocabulary.pareto import KneeDistance, fronts, spread
from onefold.vocabulary.preference import Preference, SettledGuard, guard_violation, preference
from onefold.vocabulary.ratios import FORMER_FORMULAS, RATIOS, ratio_formula
from onefold.vocabulary.records import Metrics
from onefold.vocabulary.requirement import Bound

VALUE = "value"  # the metric of a function that returns a number, which is minimized


@dataclass(frozen=True)
class Goal:
    """A metric, or an expression over several, and whether it is maximized."""

    metric: str
    maximize: bool

    def loss(self, value: float) -> float:
        """Return the value with the sign that makes smaller better."""
        return -value if self.maximize else value

    def __str__(self) -> str:
        return f"{'highest' if self.maximize else 'lowest'} {self.metric}"


@suggest_fields
@dataclass(frozen=True, init=False)
class Objective:
    """One or several goals, bounds that a feasible result must meet, and which trial of a Pareto front is handed over.

    `prefer` is a Preference, weights of the goals, or text such as "latency_s" or "accuracy=2,latency_s=1". `formulas`
    are the expressions behind the ratios among the metrics; a study sets them by the workload's own metric.
    """

    goals: tuple[Goal, ...]
    require: Mapping[str, Bound]
    prefer: Preference
    formulas: Mapping[str, str]

    def __init__(
        self,
        maximize: str | Iterable[str] = (),
        minimize: str | Iterable[str] = (),
        require: Mapping[str, Bound] | None = None,
        prefer: Preference | Mapping[str, float] | str | None = None,
        formulas: Mapping[str, str] | None = None,
    ) -> None:
        goals = [Goal(metric, True) for metric in _names(maximize)] + [
            Goal(metric, False) for metric in _names(minimize)
        ]
        if not goals:
            raise ObjectiveError("an objective needs a metric to maximize or minimize; give maximize= or minimize=")
        if len({goal.metric for goal in goals}) < len(goals):
            raise ObjectiveError(f"each metric can be a goal only once, got {[goal.metric for goal in goals]}")
        object.__setattr__(self, "goals", tuple(goals))
        object.__setattr__(self, "require", dict(require or {}))
        object.__setattr__(self, "prefer", preference(prefer))
        self.prefer.check([goal.metric for goal in goals])
        used = [metric for metric in (*self.metrics, *self.guarded_metrics) if metric in RATIOS]
        given = formulas or {}
        object.__setattr__(self, "formulas", {ratio: given.get(ratio) or ratio_formula(ratio) for ratio in used})
        for metric in self.metrics:
            if set(metric) & set("()*/+"):
                names(metric)  # raises now if it is not an expression

    def __str__(self) -> str:
        bounds = ", ".join(f"{metric}{bound}" for metric, bound in self.require.items())
        return ", ".join(map(str, self.goals)) + (f" with {bounds}" if bounds else "")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return every metric of the goals and requirements."""
        return tuple(dict.fromkeys([goal.metric for goal in self.goals] + list(self.require)))

    @property
    def guarded_metrics(self) -> tuple[str, ...]:
        """Return every metric of the guard."""
        return tuple(self.prefer.guard or ())

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return every recorded metric that the goals and requirements are computed from."""
        return self._all_inputs(self.metrics)

    @property
    def guard_inputs(self) -> tuple[str, ...]:
        """Return every recorded metric that the guard is computed from."""
        return self._all_inputs(self.guarded_metrics)

    def completed(self, metrics: Metrics) -> Metrics:
        """Return the metrics with the value of each expression added under its text, if it can be computed."""
        missing = [metric for metric in (*self.metrics, *self.guarded_metrics) if metric not in metrics]
        formulas = {m: self.formulas.get(m, m) for m in missing if m in self.formulas or not is_plain(m)}
        able = {m: formula for m, formula in formulas.items() if all(name in metrics for name in self._inputs(m))}
        return {**metrics, **{metric: value(formula, metrics) for metric, formula in able.items()}} if able else metrics

    def check(self, reported: Iterable[str]) -> None:
        """Raise ObjectiveError if a metric that the goals or requirements need is not reported."""
        self._check_reported(self.metrics, set(reported))

    def check_guard(self, reported: Iterable[str]) -> None:
        """Raise ObjectiveError if a metric that the guard needs is not reported."""
        self._check_reported(self.guarded_metrics, set(reported))

    def losses(self, metrics: Metrics) -> tuple[float, ...]:
        """Return one number per goal; smaller is better."""
        return tuple(goal.loss(metrics[goal.metric]) for goal in self.goals)

    def settled(self, results: Iterable[Metrics]) -> Objective:
        """Return the objective with every bound relative to the best fixed by the best of these results."""
        if not any(bound.is_open for bound in self.require.values()):
            return self
        known = list(results)
        bounds = {
            metric: bound.settled(candidate[metric] for candidate in known if metric in candidate)
            for metric, bound in self.require.items()
        }
        return self._replaced(require=bounds)

    def guarded(self, metric: str, *, maximize: bool) -> Objective:
        """Return the objective with the default guard on the workload's own metric; one goal needs none."""
        if len(self.goals) == 1:
            return self
        return self._replaced(prefer=self.prefer.guarded(metric, maximize=maximize))

    def with_ratios_over(self, metric: str, *, maximize: bool) -> Objective:
        """Return the objective with its ratios over the workload's own metric."""
        return self._replaced(formulas={ratio: ratio_formula(ratio, metric, maximize) for ratio in self.formulas})

    def preferring(self, prefer: Preference) -> Objective:
        """Return the objective with another preference, whose weights or guard stay as they are if it has none."""
        weights, guard = prefer.weights or self.prefer.weights, prefer.guard
        return self._replaced(prefer=Preference(weights, self.prefer.guard if guard is None else guard))

    def _replaced(
        self,
        *,
        require: Mapping[str, Bound] | None = None,
        prefer: Preference | None = None,
        formulas: Mapping[str, str] | None = None,
    ) -> Objective:
        maximize, minimize = ([goal.metric for goal in self.goals if goal.maximize is way] for way in (True, False))
        return Objective(
            maximize,
            minimize,
            self.require if require is None else require,
            self.prefer if prefer is None else prefer,
            self.formulas if formulas is None else formulas,
        )

    def _inputs(self, metric: str) -> tuple[str, ...]:
        """Return the metrics that an expression needs; `metric` itself if it is none (functions report "val loss")."""
        try:
            return names(self.formulas.get(metric, metric))
        except ObjectiveError:
            return (metric,)

    def _all_inputs(self, metrics: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for metric in metrics for name in self._inputs(metric)))

    def _check_reported(self, metrics: Iterable[str], reported: set[str]) -> None:
        """Raise ObjectiveError, with all names and the nearest one, for a metric not reported nor computed."""
        for metric in self._all_inputs(metric for metric in metrics if metric not in reported):
            if metric not in reported:
                advice = '; give a goal, such as objective=Objective(minimize="loss")' if metric == VALUE else ""
                raise ObjectiveError(unknown("metric", metric, reported, with_list=True) + advice)

    def violation(self, metrics: Metrics) -> float:
        """Return the total violation of the requirements, relative to their limits; 0 if all are met."""
        return sum(bound.violation(metrics[metric]) for metric, bound in self.require.items())

    def margin(self, metrics: Metrics) -> float:
        """Return the total margin to the requirements; negative if violations outweigh it."""
        return sum(bound.margin(metrics[metric]) for metric, bound in self.require.items())

    def order(self, results: Sequence[Metrics]) -> list[int]:
        """Return the positions of `results`, the first to promote first: feasible ones before the rest, then by goal.

        Results that are equal in a single goal are ordered by their margin to the bounds. With several goals, results
        are ordered by non-dominated front and, inside a front, by `order_of_front`. Equal results keep their order.
        """
        if len(self.goals) == 1:
            return self._order_by_goal(results)
        layers, rest = self._layers(results)
        return [layer[at] for layer in layers for at in self.order_of_front([results[i] for i in layer])] + rest

    def order_of_front(self, front: Sequence[Metrics]) -> Iterator[int]:
        """Yield the positions of the results of one front, the first to promote first.

        The first one is the one to hand over if no better one comes; the others follow by hypervolume contribution.
        """
        choice = self.front_choice(front)
        first = min(range(len(front)), key=lambda i: (*choice.key(front[i]), i))
        return spread([self.losses(metrics) for metrics in front], first)

    def order_of_preference(self, results: Sequence[Metrics]) -> list[int]:
        """Return the positions of `results`, the first to hand over first: feasible ones before the rest, then by goal.

        With several goals, results are ordered by non-dominated front. Inside a front, those that meet the guard of the
        preference come first, the closest to the knee first, and then the smallest violation. Equal results keep their
        order.
        """
        if len(self.goals) == 1:
            return self._order_by_goal(results)
        layers, rest = self._layers(results)
        if not layers:
            return rest
        choice = self.front_choice([results[i] for i in layers[0]])
        return [i for layer in layers for i in sorted(layer, key=lambda i: (*choice.key(results[i]), i))] + rest

    def front_choice(self, front: Sequence[Metrics]) -> FrontChoice:
        """Return how to choose from a Pareto front, which must not be empty."""
        guard = self.prefer.settled_guard(front)
        violations = [guard_violation(metrics, guard) for metrics in front]
        least = min(violations)
        eligible = [metrics for metrics, violation in zip(front, violations) if violation == least]
        distance = KneeDistance(
            [self.losses(metrics) for metrics in eligible],
            [self.prefer.weight(goal.metric) for goal in self.goals],
            [_guarded_loss(goal, guard) for goal in self.goals],
        )
        return FrontChoice(self, guard, distance)

    def _order_by_goal(self, results: Sequence[Metrics]) -> list[int]:
        settled = self.settled(results)
        keys = [
            (settled.violation(metrics), *self.losses(metrics), -settled.margin(metrics), i)
            for i, metrics in enumerate(results)
        ]
        return sorted(range(len(results)), key=lambda i: keys[i])

    def _layers(self, results: Sequence[Metrics]) -> tuple[list[list[int]], list[int]]:
        """Return the positions of the feasible results by front, and the others, the smallest violation first."""
        settled = self.settled(results)
        violations = [settled.violation(metrics) for metrics in results]
        feasible = [i for i, violation in enumerate(violations) if violation == 0]
        layers = [[feasible[at] for at in layer] for layer in fronts([self.losses(results[i]) for i in feasible])]
        rest = [i for i, violation in enumerate(violations) if violation != 0]
        return layers, sorted(rest, key=lambda i: (violations[i], i))

    def front(self, results: Sequence[Metrics]) -> list[int]:
        """Return the positions of the Pareto front among the feasible results."""
        layers, _ = self._layers(results)
        return layers[0] if layers else []

    def to_json(self) -> dict[str, Any]:
        """Return the objective as plain JSON values."""
        return {
            "maximize": [goal.metric for goal in self.goals if goal.maximize],
            "minimize": [goal.metric for goal in self.goals if not goal.maximize],
            "require": {metric: bound.to_json() for metric, bound in self.require.items()},
            **({} if self.prefer == Preference() else {"prefer": self.prefer.to_json()}),
            **({"formulas": dict(self.formulas)} if self.formulas else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Objective:
        """Return the objective that `to_json` wrote; what earlier versions preferred with one goal is left out.

        The ratios of studies before 0.2.0 stay what they were.
        """
        has_choice = len(data["maximize"]) + len(data["minimize"]) > 1
        return cls(
            data["maximize"],
            data["minimize"],
            {metric: Bound(**bound) for metric, bound in data["require"].items()},
            Preference.from_json(data["prefer"]) if has_choice and data.get("prefer") else None,
            data.get("formulas", FORMER_FORMULAS),
        )


@dataclass(frozen=True, slots=True)
class FrontChoice:
    """How to choose from one Pareto front: the guard with its limits, and the distance from the best of every goal."""

    objective: Objective
    guard: SettledGuard
    distance: KneeDistance

    def admits(self, metrics: Metrics) -> bool:
        """Return whether the metrics meet the guard."""
        return guard_violation(metrics, self.guard) == 0

    def key(self, metrics: Metrics) -> tuple[float, ...]:
        """Return a key that sorts the trials of a front, the one to hand over first.

        Trials that meet the guard come first, then the smallest violation; the first goal breaks ties.
        """
        losses = self.objective.losses(metrics)
        return (guard_violation(metrics, self.guard), *self.distance(losses), *losses)


def _guarded_loss(goal: Goal, guard: SettledGuard) -> float | None:
    """Return the loss of a goal at the limit of its guard, if that is relative to the best."""
    limits = [
        goal.loss(bound.limit)
        for metric, bound in guard
        if metric == goal.metric and bound.at_least is goal.maximize and bound.from_best and bound.limit is not None
    ]
    return min(limits, default=None)


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
