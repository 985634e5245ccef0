"""Which candidates are proposed next, for one operator.

evolutionary   MetaSchedule's own: generations of mutated candidates, picked by its cost model
random         drawn from the space
grid           the space walked through evenly, by what tile sizes do most
genetic        mutated and crossed among the best that were measured, without a model
annealing      random steps over the cost model that go uphill less and less often
clustering     many random ones by the cost model, of which the middles of clusters are measured
"""

from __future__ import annotations

from onefold.errors import InputError, suggestion
from onefold.kernels.cost_model import CostModel
from onefold.kernels.spaces import OperatorSpace
from onefold.kernels.strategies.annealing import Annealing
from onefold.kernels.strategies.clustering import Clustering
from onefold.kernels.strategies.evolutionary import Evolutionary
from onefold.kernels.strategies.genetic import Genetic
from onefold.kernels.strategies.grid import Grid
from onefold.kernels.strategies.sampling import RandomSearch
from onefold.kernels.strategies.strategy import Strategy

__all__ = ["STRATEGIES", "Strategy", "needs_model", "strategy"]

STRATEGIES = ("evolutionary", "random", "grid", "genetic", "annealing", "clustering")


def needs_model(name: str) -> bool:
    """Whether it asks a cost model."""
    return name in ("evolutionary", "annealing", "clustering")


def check(name: str) -> None:
    """Raises InputError for one that is not known."""
    if name not in STRATEGIES:
        raise InputError(f"the search strategy {name!r} is not known{suggestion(name, STRATEGIES)}")


def strategy(name: str, space: OperatorSpace, model: CostModel | None, seen: set[str]) -> Strategy:
    """The strategy of that name for an operator; `seen` holds the keys that are never proposed again."""
    check(name)
    if model is not None:
        if name == "evolutionary":
            return Evolutionary(space, model, seen)
        if name == "annealing":
            return Annealing(space, model, seen)
        if name == "clustering":
            return Clustering(space, model, seen)
    plain: dict[str, type[RandomSearch] | type[Grid] | type[Genetic]] = {
        "random": RandomSearch, "grid": Grid, "genetic": Genetic
    }  # fmt: skip
    if name not in plain:
        raise InputError(f"the search strategy {name!r} needs a cost model")
    return plain[name](space, seen)
