"""Which candidates are proposed next, for one operator.

breeding       children of the best that were measured, picked by MetaSchedule's cost model; the default
evolutionary   MetaSchedule's own: generations of mutated candidates, picked by its cost model
random         drawn from the space
grid           the space walked through evenly, by what tile sizes do most
genetic        the best that were measured, mutated, crossed or with one decision redrawn, without a model
annealing      random steps over the cost model that go uphill less and less often
clustering     many random ones by the cost model, of which the middles of clusters are measured
"""

from __future__ import annotations

from collections.abc import Callable

from onefold.kernels.cost_model import CostModel
from onefold.kernels.schedule_space import ScheduleSpace
from onefold.kernels.strategies.annealing import SimulatedAnnealing
from onefold.kernels.strategies.clustering import ClusterSampling
from onefold.kernels.strategies.evolutionary import MetaScheduleEvolution
from onefold.kernels.strategies.genetic import GeneticSearch
from onefold.kernels.strategies.grid import GridSearch
from onefold.kernels.strategies.model_guided_evolution import ModelGuidedEvolution
from onefold.kernels.strategies.random_search import RandomSearch
from onefold.kernels.strategies.strategy import CandidateStrategy
from onefold.vocabulary.errors import InputError, suggestion

__all__ = ["STRATEGIES", "CandidateStrategy", "needs_model", "strategy"]

STRATEGIES = ("breeding", "evolutionary", "random", "grid", "genetic", "annealing", "clustering")
MODELLED: dict[str, Callable[[ScheduleSpace, CostModel, set[str]], CandidateStrategy]] = {
    "breeding": ModelGuidedEvolution,
    "evolutionary": MetaScheduleEvolution,
    "annealing": SimulatedAnnealing,
    "clustering": ClusterSampling,
}
PLAIN: dict[str, Callable[[ScheduleSpace, set[str]], CandidateStrategy]] = {
    "random": RandomSearch, "grid": GridSearch, "genetic": GeneticSearch
}  # fmt: skip


def needs_model(name: str) -> bool:
    """Whether it asks a cost model."""
    return name in MODELLED


def check(name: str) -> None:
    """Raises InputError for one that is not known."""
    if name not in STRATEGIES:
        raise InputError(f"the search strategy {name!r} is not known{suggestion(name, STRATEGIES)}")


def strategy(name: str, space: ScheduleSpace, model: CostModel | None, seen: set[str]) -> CandidateStrategy:
    """The strategy of that name for an operator; `seen` holds the keys that are never proposed again."""
    check(name)
    if name in PLAIN:
        return PLAIN[name](space, seen)
    if model is None:
        raise InputError(f"the search strategy {name!r} needs a cost model")
    return MODELLED[name](space, model, seen)
