"""Objectives and budgets: what is optimized, what is required, and when a study stops.

Objective(maximize="accuracy")
Objective(maximize="accuracy", minimize=("train_time_s", "parameters"))     # Pareto front
Objective(minimize="loss", require={"accuracy": at_least(0.9)})
Objective(minimize="latency_s", require={"accuracy": at_least(0.9)})        # with a device
Objective(minimize="latency_s", require={"accuracy": at_least("best-0.01")})    # at most 0.01 below the best
Objective(minimize="(train_time_s + latency_s) / accuracy")                 # or by name: "time_ratio"

Budget(trials=30, minutes=10, max_epochs=9)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, get_args

from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.errors import BudgetError, ObjectiveError, unknown
from onefold.vocabulary.expression import is_plain, names, value
from onefold.vocabulary.pareto import crowding, fronts
from onefold.vocabulary.quantities import number
from onefold.vocabulary.records import Grant, Metrics
from onefold.vocabulary.requirement import Bound

Kind = Literal["multi", "epochs", "data", "time"]
Growth = Literal["geometric", "linear"]

VALUE = "value"  # the metric of a function that returns a number, which is minimized

# Named expressions: the ratios of inference-aware tuning.
RATIOS = {
    "time_ratio": "(train_time_s + latency_s) / accuracy",
    "energy_ratio": "(energy_j + energy_per_sample_j) / accuracy",
}


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
    """One or several goals, and bounds that a feasible result must meet."""

    goals: tuple[Goal, ...]
    require: Mapping[str, Bound]

    def __init__(
        self,
        maximize: str | Iterable[str] = (),
        minimize: str | Iterable[str] = (),
        require: Mapping[str, Bound] | None = None,
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
    def inputs(self) -> tuple[str, ...]:
        """Return every recorded metric that the goals and requirements are computed from."""
        return tuple(dict.fromkeys(name for metric in self.metrics for name in _inputs(metric)))

    def completed(self, metrics: Metrics) -> Metrics:
        """Return the metrics with the value of each expression added under its text, if it can be computed."""
        missing = [metric for metric in self.metrics if metric not in metrics]
        formulas = {m: RATIOS.get(m, m) for m in missing if m in RATIOS or not is_plain(m)}
        able = {m: formula for m, formula in formulas.items() if all(name in metrics for name in _inputs(m))}
        return {**metrics, **{metric: value(formula, metrics) for metric, formula in able.items()}} if able else metrics

    def check(self, reported: Iterable[str]) -> None:
        """Raise ObjectiveError if a metric that the objective needs is not reported."""
        known = set(reported)
        wanted = (metric for metric in self.metrics if metric not in known)
        for metric in (name for expression in wanted for name in _inputs(expression)):
            if metric not in known:
                advice = '; give a goal, such as objective=Objective(minimize="loss")' if metric == VALUE else ""
                raise ObjectiveError(unknown("metric", metric, known) + advice)

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
        maximize, minimize = ([goal.metric for goal in self.goals if goal.maximize is way] for way in (True, False))
        return Objective(maximize, minimize, bounds)

    def violation(self, metrics: Metrics) -> float:
        """Return the total violation of the requirements, relative to their limits; 0 if all are met."""
        return sum(bound.violation(metrics[metric]) for metric, bound in self.require.items())

    def margin(self, metrics: Metrics) -> float:
        """Return the total margin to the requirements; negative if violations outweigh it."""
        return sum(bound.margin(metrics[metric]) for metric, bound in self.require.items())

    def order(self, results: Sequence[Metrics]) -> list[int]:
        """Return the positions of `results`, best first: feasible ones before the rest, then by goal.

        Results that are equal in a single goal are ordered by their margin to the bounds. With several goals, results
        are ordered by non-dominated front and, inside a front, by crowding distance. Equal results keep their order.
        """
        settled = self.settled(results)
        violations = [settled.violation(metrics) for metrics in results]
        losses = [self.losses(metrics) for metrics in results]
        if len(self.goals) == 1:
            margins = [settled.margin(metrics) for metrics in results]
            return sorted(range(len(results)), key=lambda i: (violations[i], losses[i][0], -margins[i], i))
        rank: dict[int, tuple[float, float, int]] = {}
        feasible = [i for i, violation in enumerate(violations) if violation == 0]
        for depth, front in enumerate(fronts([losses[i] for i in feasible])):
            members = [feasible[i] for i in front]
            for i, distance in zip(members, crowding([losses[i] for i in members])):
                rank[i] = (depth, -distance, i)
        for i, violation in enumerate(violations):
            rank.setdefault(i, (math.inf, violation, i))
        return sorted(rank, key=lambda i: rank[i])

    def front(self, results: Sequence[Metrics]) -> list[int]:
        """Return the positions of the Pareto front among the feasible results."""
        settled = self.settled(results)
        feasible = [i for i, metrics in enumerate(results) if settled.violation(metrics) == 0]
        first = next(iter(fronts([self.losses(results[i]) for i in feasible])), [])
        return [feasible[i] for i in first]

    def to_json(self) -> dict[str, Any]:
        """Return the objective as plain JSON values."""
        return {
            "maximize": [goal.metric for goal in self.goals if goal.maximize],
            "minimize": [goal.metric for goal in self.goals if not goal.maximize],
            "require": {metric: bound.to_json() for metric, bound in self.require.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Objective:
        """Return the objective that `to_json` wrote."""
        return cls(
            data["maximize"], data["minimize"], {metric: Bound(**bound) for metric, bound in data["require"].items()}
        )


@suggest_fields
@dataclass(frozen=True)
class Budget:
    """When the study stops, and what each rung of a trial may spend.

    The study stops after `trials` configurations, `minutes`, `joules`, or when the first goal reaches `target`.

    At level `it` a rung grants `min(min_epochs * it, max_epochs)` epochs on `min(min_data * it, 1)` of the data. `kind`
    selects what grows with the level: `multi` both, `epochs` the epochs, `data` the data (each rung adds
    `min_epochs`), `time` the seconds. Levels grow by a factor of `eta` (`geometric`) or by one (`linear`), and the top
    rung is always the full budget; with `multi` it is reached when the epochs are. The best 1/eta of a rung are
    promoted. `fresh` retrains at every rung instead of continuing from the checkpoint.
    """

    trials: int = 27
    minutes: float | None = None
    joules: float | None = None
    target: float | None = None  # of the first goal's metric
    kind: Kind = "epochs"
    min_epochs: int = 1
    max_epochs: int = 9
    min_data: float = 1 / 3
    min_time_s: float = 5.0
    max_time_s: float = 45.0
    eta: int = 2
    growth: Growth = "geometric"
    fresh: bool = False

    def __post_init__(self) -> None:
        for name in ("trials", "min_epochs", "max_epochs", "eta"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise BudgetError(f"{name} must be an integer, got {value!r}")
        for name in ("minutes", "joules", "target", "min_data", "min_time_s", "max_time_s"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
                raise BudgetError(f"{name} must be a number, got {value!r}")
        for name in ("trials", "min_epochs", "max_epochs"):
            if getattr(self, name) < 1:
                raise BudgetError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("minutes", "joules", "min_time_s", "max_time_s"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise BudgetError(f"{name} must be above 0, got {limit}")
        if self.kind not in get_args(Kind):
            raise BudgetError(unknown("kind of budget", self.kind, get_args(Kind)))
        if self.growth not in get_args(Growth):
            raise BudgetError(unknown("growth", self.growth, get_args(Growth)))
        if self.min_epochs > self.max_epochs:
            raise BudgetError(f"min_epochs must not exceed max_epochs, got {self.min_epochs} and {self.max_epochs}")
        if self.min_time_s > self.max_time_s:
            raise BudgetError(f"min_time_s must not exceed max_time_s, got {self.min_time_s} and {self.max_time_s}")
        if not 0 < self.min_data <= 1:
            raise BudgetError(f"min_data must be above 0 and at most 1, got {self.min_data}")
        if self.eta < 2:
            raise BudgetError(f"eta must be 2 or more, got {self.eta}")

    @property
    def top_level(self) -> int:
        """Return the lowest level that grants the full budget."""
        by_epochs = self.max_epochs / self.min_epochs
        by_data = 1 / self.min_data
        by_time = self.max_time_s / self.min_time_s
        # A trial that continues needs epochs to learn from more data, so epochs decide in `multi`.
        by_both = max(by_epochs, by_data) if self.fresh else by_epochs
        wanted = {"multi": by_both, "epochs": by_epochs, "data": by_data, "time": by_time}[self.kind]
        return max(1, math.ceil(wanted - 1e-9))

    def levels(self, most: int | None = None) -> tuple[int, ...]:
        """Return the level of each rung, lowest first, at most `most` of them; the last is always the top level."""
        top = self.top_level
        if self.growth == "linear":
            levels = tuple(range(1, top + 1))
            return levels if most is None or most >= top else (*levels[: most - 1], top)
        steps = math.floor(math.log(top) / math.log(self.eta) + 1e-9)
        levels = tuple(dict.fromkeys(max(1, round(top / self.eta**step)) for step in range(steps, -1, -1)))
        return levels if most is None else levels[-most:]

    def grant(self, level: int, visit: int = 1) -> Grant:
        """Return what the `visit`-th rung of a trial (counted from 1) may spend at this level."""
        epochs = min(self.min_epochs * level, self.max_epochs)
        data = min(self.min_data * level, 1.0) if level < self.top_level else 1.0
        if self.kind == "multi":
            return Grant(level, epochs, data, fresh=self.fresh)
        if self.kind == "epochs":
            return Grant(level, epochs, 1.0, fresh=self.fresh)
        if self.kind == "data":
            epochs = min(self.min_epochs * (1 if self.fresh else visit), self.max_epochs)
            return Grant(level, epochs, data, fresh=self.fresh)
        time_s = min(self.min_time_s * level, self.max_time_s)
        return Grant(level, self.max_epochs, 1.0, time_s=time_s, fresh=self.fresh)


def _inputs(metric: str) -> tuple[str, ...]:
    """Return the metrics that an expression needs; `metric` itself if it is none (functions may report "val loss")."""
    try:
        return names(RATIOS.get(metric, metric))
    except ObjectiveError:
        return (metric,)


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True)
class BudgetUse:
    """What a study has used of its budget."""

    trials: int = 0
    time_s: float = 0.0
    joules: float | None = 0.0
    best: Metrics = field(default_factory=dict)

    def reason_to_stop(self, budget: Budget, objective: Objective) -> str | None:
        """Return which limit is reached, as a message; None if the study may continue."""
        if budget.minutes is not None and self.time_s >= budget.minutes * 60:
            return f"the time limit of {number(budget.minutes)} minutes was reached"
        if budget.joules is not None and self.joules is not None and self.joules >= budget.joules:
            return f"the energy limit of {budget.joules:g} J was reached"
        goal = objective.goals[0]
        if budget.target is not None and goal.metric in self.best and objective.violation(self.best) == 0:
            reached = self.best[goal.metric]
            if goal.loss(reached) <= goal.loss(budget.target):
                return f"the target {goal.metric} {budget.target:g} was reached ({reached:.4g})"
        return None
