"""What is better, what is required, and when to stop.

Objective(maximize="accuracy")
Objective(maximize="accuracy", minimize=("train_time_s", "parameters"))     # a Pareto front
Objective(minimize="loss", require={"accuracy": at_least(0.9)})
Objective(minimize="latency_s", require={"accuracy": at_least(0.9)})        # with a device
Objective(minimize="latency_s", require={"accuracy": at_least("best-0.01")})    # no more than a point below the best
Objective(minimize="(train_time_s + latency_s) / accuracy")                 # or its name, "time_ratio"

Budget(trials=30, minutes=10, max_epochs=9)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from onefold.vocabulary.errors import BudgetError, ObjectiveError, suggestion
from onefold.vocabulary.expression import is_plain, names, value
from onefold.vocabulary.records import Grant, Metrics
from onefold.vocabulary.requirement import Bound

Kind = Literal["multi", "epochs", "data", "time"]
Growth = Literal["geometric", "linear"]

# Expressions that have a name of their own: the ratios of inference-aware tuning.
RATIOS = {
    "time_ratio": "(train_time_s + latency_s) / accuracy",
    "energy_ratio": "(energy_j + energy_per_sample_j) / accuracy",
}


@dataclass(frozen=True)
class Goal:
    """One metric, or an expression over several, and its better direction."""

    metric: str
    maximize: bool

    def loss(self, value: float) -> float:
        """The value with its sign turned so that smaller is better."""
        return -value if self.maximize else value

    def __str__(self) -> str:
        return f"{'highest' if self.maximize else 'lowest'} {self.metric}"


@dataclass(frozen=True, init=False)
class Objective:
    """One or several goals, and bounds that a result must keep to count as a solution."""

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
            raise ObjectiveError("an objective needs a metric to maximize or to minimize")
        if len({goal.metric for goal in goals}) < len(goals):
            raise ObjectiveError(f"each metric can be a goal once, but got {[goal.metric for goal in goals]}")
        object.__setattr__(self, "goals", tuple(goals))
        object.__setattr__(self, "require", dict(require or {}))
        for metric in self.metrics:
            if set(metric) & set("()*/+"):
                names(metric)  # an expression that cannot be read is told now

    def __str__(self) -> str:
        bounds = ", ".join(f"{metric}{bound}" for metric, bound in self.require.items())
        return ", ".join(map(str, self.goals)) + (f" with {bounds}" if bounds else "")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric that it looks at."""
        return tuple(dict.fromkeys([goal.metric for goal in self.goals] + list(self.require)))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Every metric that it is worked out from: its metrics, or what their expressions name."""
        return tuple(dict.fromkeys(name for metric in self.metrics for name in _inputs(metric)))

    def completed(self, metrics: Metrics) -> Metrics:
        """The metrics and the value of each of its expressions, under its own text, where that can be worked out."""
        missing = [metric for metric in self.metrics if metric not in metrics]
        formulas = {m: RATIOS.get(m, m) for m in missing if m in RATIOS or not is_plain(m)}
        able = {m: formula for m, formula in formulas.items() if all(name in metrics for name in _inputs(m))}
        return {**metrics, **{metric: value(formula, metrics) for metric, formula in able.items()}} if able else metrics

    def check(self, reported: Iterable[str]) -> None:
        """Raises ObjectiveError when it looks at a metric that is not among the reported ones."""
        known = set(reported)
        wanted = (metric for metric in self.metrics if metric not in known)
        for metric in (name for expression in wanted for name in _inputs(expression)):
            if metric not in known:
                raise ObjectiveError(f"the metric {metric!r} does not exist{suggestion(metric, known)}")

    def losses(self, metrics: Metrics) -> tuple[float, ...]:
        """One number per goal, smaller is better."""
        return tuple(goal.loss(metrics[goal.metric]) for goal in self.goals)

    def settled(self, results: Iterable[Metrics]) -> Objective:
        """The same with every bound that is counted from the best taken from the best of these results."""
        if not any(bound.is_open for bound in self.require.values()):
            return self
        known = list(results)
        bounds = {
            metric: bound.settled(found[metric] for found in known if metric in found)
            for metric, bound in self.require.items()
        }
        maximize, minimize = ([goal.metric for goal in self.goals if goal.maximize is way] for way in (True, False))
        return Objective(maximize, minimize, bounds)

    def violation(self, metrics: Metrics) -> float:
        """How much the requirements are missed in all; 0 when they hold."""
        return sum(bound.violation(metrics[metric]) for metric, bound in self.require.items())

    def margin(self, metrics: Metrics) -> float:
        """How much room there is inside the requirements in all; below 0 where more is missed than kept."""
        return sum(bound.margin(metrics[metric]) for metric, bound in self.require.items())

    def order(self, results: Sequence[Metrics]) -> list[int]:
        """The positions of `results`, best first: solutions before the rest, then by goal.

        Of results that are equal in the one goal, those come first that have the most room inside their bounds.
        Several goals are ordered by non-dominated front, and inside a front by how much room a result has around it.
        Equal results keep their order.
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
            for i, room in zip(members, crowding([losses[i] for i in members])):
                rank[i] = (depth, -room, i)
        for i, violation in enumerate(violations):
            rank.setdefault(i, (math.inf, violation, i))
        return sorted(rank, key=lambda i: rank[i])

    def front(self, results: Sequence[Metrics]) -> list[int]:
        """The positions of the results that keep the requirements and that no other such result beats in every goal."""
        settled = self.settled(results)
        feasible = [i for i, metrics in enumerate(results) if settled.violation(metrics) == 0]
        first = next(iter(fronts([self.losses(results[i]) for i in feasible])), [])
        return [feasible[i] for i in first]

    def to_json(self) -> dict[str, Any]:
        """The objective as plain JSON values."""
        return {
            "maximize": [goal.metric for goal in self.goals if goal.maximize],
            "minimize": [goal.metric for goal in self.goals if not goal.maximize],
            "require": {metric: bound.to_json() for metric, bound in self.require.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Objective:
        """The objective that `to_json` wrote."""
        return cls(
            data["maximize"], data["minimize"], {metric: Bound(**bound) for metric, bound in data["require"].items()}
        )


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether `one` is nowhere worse and somewhere better (smaller is better)."""
    return all(a <= b for a, b in zip(one, other)) and any(a < b for a, b in zip(one, other))


def fronts(losses: Sequence[Sequence[float]]) -> list[list[int]]:
    """The positions of `losses` in non-dominated fronts, best front first."""
    left = list(range(len(losses)))
    found: list[list[int]] = []
    while left:
        front = [i for i in left if not any(dominates(losses[j], losses[i]) for j in left)]
        found.append(front)
        left = [i for i in left if i not in set(front)]
    return found


def crowding(front: Sequence[Sequence[float]]) -> list[float]:
    """How much room each member of a front has around it; the ends have all the room there is."""
    room = [0.0] * len(front)
    for goal in range(len(front[0]) if front else 0):
        by_loss = sorted(range(len(front)), key=lambda i: (front[i][goal], i))
        span = front[by_loss[-1]][goal] - front[by_loss[0]][goal]
        room[by_loss[0]] = room[by_loss[-1]] = math.inf
        for before, here, after in zip(by_loss, by_loss[1:], by_loss[2:]):
            if span > 0:
                room[here] += (front[after][goal] - front[before][goal]) / span
    return room


@dataclass(frozen=True)
class Budget:
    """When the study stops, and what each rung of a trial may spend.

    At level `it` a rung grants `min(min_epochs * it, max_epochs)` epochs on `min(min_data * it, 1)` of the data. `kind`
    says what grows with the level: `multi` both, `epochs` the epochs, `data` the data (each rung adds `min_epochs`),
    `time` the seconds. The levels of the rungs grow by `eta` (`geometric`) or by one (`linear`), and the top rung is
    always the full budget; in `multi` the epochs set the pace. `fresh` retrains at every rung instead of continuing
    from the checkpoint.
    """

    trials: int = 27
    minutes: float | None = None
    joules: float | None = None
    target: float | None = None  # the first goal's metric reached this value
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
        for name in ("trials", "min_epochs", "max_epochs"):
            if getattr(self, name) < 1:
                raise BudgetError(f"{name} must be 1 or more, but got {getattr(self, name)}")
        for name in ("minutes", "joules", "min_time_s", "max_time_s"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise BudgetError(f"{name} must be above 0, but got {limit}")
        if self.kind not in get_args(Kind):
            raise BudgetError(f"the kind of budget {self.kind!r} is not known{suggestion(self.kind, get_args(Kind))}")
        if self.growth not in get_args(Growth):
            raise BudgetError(f"the growth {self.growth!r} is not known{suggestion(self.growth, get_args(Growth))}")
        if self.min_epochs > self.max_epochs:
            raise BudgetError(f"min_epochs must not exceed max_epochs, but got {self.min_epochs} and {self.max_epochs}")
        if self.min_time_s > self.max_time_s:
            raise BudgetError(f"min_time_s must not exceed max_time_s, but got {self.min_time_s} and {self.max_time_s}")
        if not 0 < self.min_data <= 1:
            raise BudgetError(f"min_data is a share of the data, above 0 and at most 1, but got {self.min_data}")
        if self.eta < 2:
            raise BudgetError(f"eta must be 2 or more, but got {self.eta}")

    @property
    def top_level(self) -> int:
        """The first level at which a rung gets everything."""
        by_epochs = self.max_epochs / self.min_epochs
        by_data = 1 / self.min_data
        by_time = self.max_time_s / self.min_time_s
        # A trial that continues needs epochs to learn from more data, so the epochs set the pace of `multi`.
        by_both = max(by_epochs, by_data) if self.fresh else by_epochs
        wanted = {"multi": by_both, "epochs": by_epochs, "data": by_data, "time": by_time}[self.kind]
        return max(1, math.ceil(wanted - 1e-9))

    def levels(self, most: int | None = None) -> tuple[int, ...]:
        """The level of each rung, lowest first, `most` rungs at the most; the last one is always the top level."""
        top = self.top_level
        if self.growth == "linear":
            levels = tuple(range(1, top + 1))
            return levels if most is None or most >= top else (*levels[: most - 1], top)
        steps = math.floor(math.log(top) / math.log(self.eta) + 1e-9)
        levels = tuple(dict.fromkeys(max(1, round(top / self.eta**step)) for step in range(steps, -1, -1)))
        return levels if most is None else levels[-most:]

    def grant(self, level: int, visit: int = 1) -> Grant:
        """What the `visit`-th rung of a trial (counted from 1), at this level, may spend."""
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
    """What a metric is worked out from; itself, when it is not an expression (a function may report "val loss")."""
    try:
        return names(RATIOS.get(metric, metric))
    except ObjectiveError:
        return (metric,)


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True)
class BudgetUse:
    """What a study has used up so far, to hold against its budget."""

    trials: int = 0
    time_s: float = 0.0
    joules: float | None = 0.0
    best: Metrics = field(default_factory=dict)

    def reason_to_stop(self, budget: Budget, objective: Objective) -> str | None:
        """Which limit is reached, in words; None when the study may go on."""
        if budget.minutes is not None and self.time_s >= budget.minutes * 60:
            return f"the time limit of {budget.minutes:g} minutes is reached"
        if budget.joules is not None and self.joules is not None and self.joules >= budget.joules:
            return f"the energy limit of {budget.joules:g} J is reached"
        goal = objective.goals[0]
        if budget.target is not None and goal.metric in self.best and objective.violation(self.best) == 0:
            reached = self.best[goal.metric]
            if goal.loss(reached) <= goal.loss(budget.target):
                return f"the target {goal.metric} {budget.target:g} is reached ({reached:.4g})"
        return None
