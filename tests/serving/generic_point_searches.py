"""Generic searches over serving points, to compare `few` with. Importing this module adds them.

halving     successive halving: every point once, the better half again, and so on
random      random search over a share of the space
tpe         a tree-structured Parzen estimator over the same share
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from onefold.search import Search
from onefold.serving.point_search import ALGORITHMS, MAX_SHARE, Proposals
from onefold.serving.space import ServingSpace
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.serving import OptimizeFor, ServingPoint
from onefold.vocabulary.space import Choice, Space


def halving(space: ServingSpace, optimize_for: OptimizeFor, **_: object) -> Proposals:
    """Propose every point, then the better half again, until one is left."""
    costs: dict[ServingPoint, list[float]] = {point: [] for point in space.points()}
    remaining = list(costs)
    while len(remaining) > 1:
        for point in remaining:
            costs[point].append((yield point).cost(optimize_for))
        ranked = sorted(remaining, key=lambda point: statistics.median(costs[point]))
        remaining = ranked[: (len(remaining) + 1) // 2]


def sampled(algorithm: str) -> Callable[..., Proposals]:
    """Return a search that proposes a share of the points by an algorithm of `onefold.search`."""

    def proposals(space: ServingSpace, optimize_for: OptimizeFor, **_: object) -> Proposals:
        search = Search(
            Space(
                batch_size=Choice(*space.batch_sizes),
                threads=Choice(*space.threads),
                graph_level=Choice(*space.graph_levels),
                execution=Choice(*space.executions),
                precision=Choice(*space.precisions),
            ),
            objective=Objective(minimize="cost"),
            budget=Budget(trials=max(3, round(MAX_SHARE * len(space)))),
            algorithm=algorithm,
            rungs="none",
        )
        while (decision := search.ask()) is not None:
            served = yield ServingPoint(**decision.config)  # type: ignore[arg-type]
            search.tell(decision.number, {"cost": served.cost(optimize_for)})

    return proposals


ALGORITHMS.update(halving=halving, random=sampled("random"), tpe=sampled("tpe"))
