"""Plan strategies: which plan a micro-window runs.

`onefold` is the strategy of this package. Others register under a name with `register_strategy`; those that Onefold is
compared with are in `onefold.baselines.retraining`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from onefold.retraining.alpha_search import AlphaSearch
from onefold.retraining.feasible_plans import feasible_plans
from onefold.retraining.gain_search import GainSearch
from onefold.retraining.planning_context import PlanningContext
from onefold.retraining.rules import Rules
from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.retraining import DEFAULT_ALPHA, PlanEstimate, RetrainingPlan

EXPLORATION_SHARE = 0.3  # of the time for training, at most, in which untried plans come first
FIRST_WINDOWS = 2  # of the most promising plan before others are compared with it; the first one is its warm-up
MAX_FAILED_TRIALS = 3  # plans with a loss instead of a gain, after which no others are tried
CHALLENGE = 1.15  # merit that replaces the most promising plan, relative to its merit
INITIAL_ALPHA = 0.5  # if alpha is searched for


class PlanStrategy(Protocol):
    """Choose the plan of each micro-window."""

    name: str
    is_adaptive: bool  # re-estimates BatchNorm statistics, decays the learning rate, evaluates after each micro-window

    def plans(self, context: PlanningContext) -> tuple[PlanEstimate, ...]:
        """Return the plans to choose from, which fit the memory limit; empty if none fits."""

    def next_plan(self, elapsed_share: float) -> RetrainingPlan:
        """Return the plan of the next micro-window, given the share of the time for training that has elapsed."""

    def tell(self, plan: RetrainingPlan, gain_per_s: float, seconds_per_sample: float) -> float:
        """Record the result of a micro-window and return the merit of its plan."""

    def switch_plan(self) -> None:
        """Make the best other plan the current one."""

    def best_other_merit(self, plan: RetrainingPlan) -> float:
        """Return the highest merit among the other plans that were tried; 0 if there are none."""

    def estimates(self) -> tuple[PlanEstimate, ...]:
        """Return the plans with their latest gains."""

    def on_out_of_memory(self) -> bool:
        """Adapt to a failed allocation. Return False to have the memory model corrected instead."""


class GainStrategy:
    """Try up to ten feasible plans, then continue with the one of the highest merit (`GainSearch`)."""

    name, is_adaptive = "onefold", True

    def __init__(self, rules: Rules, alpha: float | None = DEFAULT_ALPHA, seed: int = 0) -> None:  # noqa: ARG002
        """Rank plans by `alpha`, the weight of gain; None searches for it by Bayesian optimization."""
        self.rules = rules
        self.alpha_search = AlphaSearch() if alpha is None else None
        self.search = GainSearch(INITIAL_ALPHA if alpha is None else alpha)
        self._current: RetrainingPlan | None = None  # once plans have been tried

    def plans(self, context: PlanningContext) -> tuple[PlanEstimate, ...]:
        plans = feasible_plans(context, self.rules)
        if plans:  # else the retraining ends, and reports those before
            self.search.offer(plans)
        return plans

    def next_plan(self, elapsed_share: float) -> RetrainingPlan:
        offered = [estimate.plan for estimate in self.search.estimates]
        first = offered[0]
        if elapsed_share < EXPLORATION_SHARE:
            if self.search.micro_windows(first) < FIRST_WINDOWS:
                return first
            if promising := self._promising():
                return promising[0]
        if self._current is None:
            best = self.search.best()
            is_tried = self.search.micro_windows(first) > 0
            is_better = not is_tried or self.search.merit(best) > CHALLENGE * self.search.merit(first)
            self._current = best if is_better else first
        elif self._current not in offered:
            self._current = self.search.best(like=self._current)
        return self._current

    def _promising(self) -> list[RetrainingPlan]:
        """Return the untried plans, but those with a higher learning rate than one that was too high already."""
        failed = [plan for plan in self.search.tried() if not self.search.has_gained(plan)]
        if len(failed) >= MAX_FAILED_TRIALS:
            return []
        return [
            plan
            for plan in self.search.untried()
            if not any(other.optimizer == plan.optimizer and other.lr < plan.lr for other in failed)
        ]

    def tell(self, plan: RetrainingPlan, gain_per_s: float, seconds_per_sample: float) -> float:
        merit = self.search.tell(plan, gain_per_s, seconds_per_sample)
        if self.alpha_search is not None:
            self.search.alpha = self.alpha_search.tell(gain_per_s)
        return merit

    def switch_plan(self) -> None:
        other = self.search.best_other(self._current)
        if self._current is not None and other is not None:
            self._current = other[0]

    def best_other_merit(self, plan: RetrainingPlan) -> float:
        other = self.search.best_other(plan)
        return other[1] if other is not None else 0.0

    def estimates(self) -> tuple[PlanEstimate, ...]:
        return self.search.estimates

    def on_out_of_memory(self) -> bool:
        return False


StrategyFactory = Callable[[Rules, float | None, int], PlanStrategy]  # rules, alpha, seed
_FACTORIES: dict[str, StrategyFactory] = {GainStrategy.name: GainStrategy}


def register_strategy(name: str, factory: StrategyFactory) -> None:
    """Make a strategy available under a name; a second registration replaces the first."""
    _FACTORIES[name] = factory


def strategy_names() -> tuple[str, ...]:
    """Return the names of all registered strategies, in the order of registration."""
    return tuple(_FACTORIES)


def plan_strategy(name: str, rules: Rules, alpha: float | None = DEFAULT_ALPHA, seed: int = 0) -> PlanStrategy:
    """Create the strategy of that name.

    Raises:
        InputError: No strategy is registered under the name.
    """
    if name not in _FACTORIES:
        raise InputError(unknown("strategy", name, _FACTORIES))
    return _FACTORIES[name](rules, alpha, seed)
