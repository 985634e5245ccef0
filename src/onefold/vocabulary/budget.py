"""Budgets: what a study and each of its trials may spend.

Budget(trials=30, minutes=10, max_epochs=9)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal, get_args

from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.errors import BudgetError, unknown
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.quantities import number
from onefold.vocabulary.records import Grant, Metrics

Kind = Literal["multi", "epochs", "data", "time"]
Growth = Literal["geometric", "linear"]


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
