"""Which serving points to measure: generators that propose a point and are sent what it cost.

proposals = few(space, Purpose.THROUGHPUT)
point = next(proposals)
while True:
    point = proposals.send(session.serve(model, point, effort))     # ends with StopIteration
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from onefold.search import Search
from onefold.serving.space import ServingSpace
from onefold.vocabulary.errors import InputError, suggestion
from onefold.vocabulary.objective import Budget, Objective
from onefold.vocabulary.serving import OptimizeFor, Served, ServingPoint
from onefold.vocabulary.space import Choice, Space

Proposals = Generator[ServingPoint, Served, None]
SHARE = 0.15  # of the space is measured at the most, other than by those that take all of it
FINALISTS, CLOSE = 3, 1.10  # how many points are compared again, and how near the best they are
LOOKS = 3  # at each of them, at the most
WORTH_IT = 0.02  # a gain that is smaller is taken for noise
# How far below the best of the three places a valley a/n + b + dn can reach: 17/8 when its bottom is at batch 4.
DEEPEST = 2.2


def few(
    space: ServingSpace, purpose: OptimizeFor, *, branches: bool = False, thorough: bool = True, most: int | None = None
) -> Proposals:
    """Few measurements, chosen well: what is known about serving decides where to look.

    Cost over batch size has one valley, and where it lies depends on the threads; so each number of threads is looked
    at in three places, and the better ones down to the bottom of their valley. Graph levels matter little and alike
    everywhere: they are compared at the best point only, and parallel execution only for graphs that have branches.
    The points that noise could have put in the wrong order are measured again, while there are no more than `most`
    measurements. Without `thorough` the three places must do: they tell candidates apart, and the one handed
    over is looked at again.
    """
    most = int(SHARE * len(space)) if most is None else most
    known: dict[ServingPoint, float] = {}
    looks = Counter[ServingPoint]()

    def measure(point: ServingPoint, *, again: bool = False) -> Generator[ServingPoint, Served, float]:
        if point not in known or again:
            cost = (yield point).cost(purpose)
            known[point] = min(cost, known.get(point, cost))
            looks[point] += 1
        return known[point]

    start = ServingPoint(1, space.threads[0], space.graph_levels[-1], space.executions[0], space.precisions[0])
    for threads in space.threads:
        at = replace(start, threads=threads)
        sizes = space.batch_sizes if purpose is not OptimizeFor.LATENCY else space.batch_sizes[:1]
        for place in sorted({0, len(sizes) // 2, len(sizes) - 1}):
            yield from measure(replace(at, batch_size=sizes[place]))
    deep = thorough and purpose is not OptimizeFor.LATENCY
    if deep:
        yield from _descend(space.batch_sizes, known, measure)
    best = min(known, key=known.__getitem__)
    for level in reversed(space.graph_levels[:-1]) if thorough else ():
        point = replace(best, graph_level=level)
        # Levels build on each other: when a lower one does not gain, those below it will not either.
        if (yield from measure(point)) > known[best] * (1 - WORTH_IT):
            break
        best = point
    for execution in space.executions[1:] if branches and best.threads > 1 else ():
        yield from measure(replace(best, execution=execution))
    while thorough and (unsure := _unsure(space.batch_sizes, known, looks)):
        for point in unsure[: max(0, most - looks.total())]:
            yield from measure(point, again=True)
        if looks.total() >= most:
            return
        # What turns out better than it looked may not be the bottom of its valley.
        best = min(known, key=known.__getitem__)
        for point in _beside(best, space.batch_sizes)[: most - looks.total()] if deep else ():
            yield from measure(point)


def _unsure(sizes: Sequence[int], known: dict[ServingPoint, float], looks: Counter[ServingPoint]) -> list[ServingPoint]:
    """What noise could have put in the wrong order: the best point, those close to it, and those beside it.

    Those beside it are looked at twice, the close ones once more. Nothing where there is one point only.
    """
    ordered = sorted(known, key=known.__getitem__)
    best = ordered[0]
    close = [point for point in ordered[1:FINALISTS] if known[point] <= known[best] * CLOSE]
    beside = [point for point in _beside(best, sizes) if point in known and looks[point] == 1]
    rivals = [point for point in dict.fromkeys([*close, *beside]) if looks[point] < LOOKS]
    return [*([best] if looks[best] < LOOKS else []), *rivals] if rivals else []


def _beside(point: ServingPoint, sizes: Sequence[int]) -> list[ServingPoint]:
    """The next smaller and the next larger batch."""
    place = sizes.index(point.batch_size)
    return [replace(point, batch_size=sizes[at]) for at in (place - 1, place + 1) if 0 <= at < len(sizes)]


def _descend(
    sizes: Sequence[int],
    known: dict[ServingPoint, float],
    measure: Callable[[ServingPoint], Generator[ServingPoint, Served, float]],
) -> Proposals:
    """Goes down to the bottom of the valley around the best point so far, for every number of threads worth it."""
    lowest = min(known.values())
    for threads in sorted({point.threads for point in known}):
        mine = {point: cost for point, cost in known.items() if point.threads == threads}
        best = min(mine, key=lambda point: mine[point])
        if mine[best] > lowest * DEEPEST:  # three places have shown that its valley is not deep enough
            continue
        while True:
            costs = {best: mine[best]}
            for point in _beside(best, sizes):
                costs[point] = yield from measure(point)
            mine |= costs
            lower = min(costs, key=lambda point: costs[point])
            if lower == best:
                break
            best = lower


def grid(space: ServingSpace, purpose: OptimizeFor, **_: object) -> Proposals:  # noqa: ARG001
    """Every point once."""
    for point in space.points():  # noqa: UP028 - what is sent back must be taken, which a list cannot
        yield point


def halving(space: ServingSpace, purpose: OptimizeFor, **_: object) -> Proposals:
    """Every point a first time, the better half again, and so on: the best are known best."""
    costs: dict[ServingPoint, list[float]] = {point: [] for point in space.points()}
    left = list(costs)
    while len(left) > 1:
        for point in left:
            costs[point].append((yield point).cost(purpose))
        left = sorted(left, key=lambda point: statistics.median(costs[point]))[: (len(left) + 1) // 2]


def drawn(algorithm: str) -> Callable[..., Proposals]:
    """A share of the points, proposed by an algorithm of the search."""

    def proposals(space: ServingSpace, purpose: OptimizeFor, **_: object) -> Proposals:
        search = Search(
            Space(
                batch_size=Choice(*space.batch_sizes),
                threads=Choice(*space.threads),
                graph_level=Choice(*space.graph_levels),
                execution=Choice(*space.executions),
                precision=Choice(*space.precisions),
            ),
            objective=Objective(minimize="cost"),
            budget=Budget(trials=max(3, round(SHARE * len(space)))),
            algorithm=algorithm,
            rungs="none",
        )
        while (decision := search.ask()) is not None:
            served = yield ServingPoint(**decision.config)  # type: ignore[arg-type]
            search.tell(decision.number, {"cost": served.cost(purpose)})

    return proposals


ALGORITHMS: dict[str, Callable[..., Proposals]] = {
    "few": few,
    "grid": grid,
    "halving": halving,
    "random": drawn("random"),
    "tpe": drawn("tpe"),
}


def algorithm(name: str) -> Callable[..., Proposals]:
    """The algorithm of that name."""
    if name not in ALGORITHMS:
        raise InputError(f"the serving search {name!r} is not known{suggestion(name, ALGORITHMS)}")
    return ALGORITHMS[name]
