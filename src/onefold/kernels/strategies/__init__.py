"""Search strategies: which candidates of an operator are measured next.

model-guided   offspring of the fastest measured schedules, ranked by MetaSchedule's cost model; the default
random         random samples, which need no cost model

`onefold.baselines.kernel_strategies` registers others to compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onefold.kernels.cost_model import CostModel
from onefold.kernels.schedule_space import ScheduleSpace
from onefold.kernels.strategies.model_guided_evolution import ModelGuidedEvolution
from onefold.kernels.strategies.random_search import RandomSearch
from onefold.kernels.strategies.strategy import CandidateStrategy
from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.kernels import DEFAULT_STRATEGY

__all__ = [
    "CandidateStrategy", "check_strategy", "create_strategy", "needs_cost_model", "register_strategy",
    "strategy_names",
]  # fmt: skip

RANDOM = "random"
ModelStrategy = Callable[[ScheduleSpace, CostModel, set[str]], CandidateStrategy]
PlainStrategy = Callable[[ScheduleSpace, set[str]], CandidateStrategy]


@dataclass(frozen=True)
class _WithModel:
    create: ModelStrategy


@dataclass(frozen=True)
class _WithoutModel:
    create: PlainStrategy


_STRATEGIES: dict[str, _WithModel | _WithoutModel] = {
    DEFAULT_STRATEGY: _WithModel(ModelGuidedEvolution),
    RANDOM: _WithoutModel(RandomSearch),
}


def register_strategy(
    name: str, *, with_model: ModelStrategy | None = None, without_model: PlainStrategy | None = None
) -> None:
    """Register a strategy under a name, with one of the two constructors."""
    if with_model is not None:
        _STRATEGIES[name] = _WithModel(with_model)
    if without_model is not None:
        _STRATEGIES[name] = _WithoutModel(without_model)


def strategy_names() -> tuple[str, ...]:
    """Return the names of all registered strategies, the default first."""
    return tuple(_STRATEGIES)


def check_strategy(name: str) -> None:
    """Raise InputError for an unknown strategy."""
    if name not in _STRATEGIES:
        raise InputError(unknown("search strategy", name, _STRATEGIES))


def needs_cost_model(name: str) -> bool:
    """Return whether a strategy uses a cost model."""
    return isinstance(_STRATEGIES.get(name), _WithModel)


def create_strategy(name: str, space: ScheduleSpace, model: CostModel | None, seen: set[str]) -> CandidateStrategy:
    """Return the strategy of this name for an operator; it never proposes a key in `seen`.

    Raises InputError if the name is unknown or the cost model is missing.
    """
    check_strategy(name)
    strategy = _STRATEGIES[name]
    if isinstance(strategy, _WithoutModel):
        return strategy.create(space, seen)
    if model is None:
        raise InputError(f"the search strategy {name!r} needs a cost model")
    return strategy.create(space, model, seen)
