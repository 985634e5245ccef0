"""Searches over serving points: generators that propose a point and are sent its cost.

proposals = few(space, OptimizeFor.THROUGHPUT)
point = next(proposals)
while True:
    point = proposals.send(session.serve(model, point, effort))     # ends with StopIteration
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from onefold.serving.space import ServingSpace
from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.serving import OptimizeFor, Served, ServingPoint

Proposals = Generator[ServingPoint, Served, None]
Measure = Callable[[ServingPoint], Generator[ServingPoint, Served, float]]
MAX_SHARE = 0.15  # of the space that a search measures, unless it measures all of it
FINALISTS, FINALIST_MARGIN = 3, 1.10  # points that are measured again, and their largest cost relative to the best
MAX_REPEATS = 3  # of a finalist
MIN_GAIN = 0.02  # smaller gains are taken for noise
# A cost a/n + b + dn over batch size n can have a minimum up to 17/8 below the best of the three probed sizes.
MAX_DESCENT = 2.2


def few(
    space: ServingSpace,
    optimize_for: OptimizeFor,
    *,
    branches: bool = False,
    thorough: bool = True,
    max_points: int | None = None,
) -> Proposals:
    """Search with few measurements, using what is known about the shape of the cost.

    The cost over batch size is unimodal, with a minimum that depends on the number of threads: for each number of
    threads three batch sizes are probed, and from the promising ones the search descends to the minimum. Graph levels
    have a small effect that is alike everywhere, so they are compared at the best point only; parallel execution is
    tried only for graphs with branches. Points that noise could have misordered are measured again, up to `max_points`
    measurements in all (default: 15 % of the space). Without `thorough` only the three batch sizes are measured, which
    suffices to compare trials.
    """
    max_points = int(MAX_SHARE * len(space)) if max_points is None else max_points
    costs: dict[ServingPoint, float] = {}
    repeats = Counter[ServingPoint]()

    def measure(point: ServingPoint, *, again: bool = False) -> Generator[ServingPoint, Served, float]:
        if point not in costs or again:
            cost = (yield point).cost(optimize_for)
            costs[point] = min(cost, costs.get(point, cost))
            repeats[point] += 1
        return costs[point]

    start = ServingPoint(1, space.threads[0], space.graph_levels[-1], space.executions[0], space.precisions[0])
    for threads in space.threads:
        sizes = space.batch_sizes if optimize_for is not OptimizeFor.LATENCY else space.batch_sizes[:1]
        for index in sorted({0, len(sizes) // 2, len(sizes) - 1}):
            yield from measure(replace(start, threads=threads, batch_size=sizes[index]))
    descends = thorough and optimize_for is not OptimizeFor.LATENCY
    if descends:
        yield from _descend(space.batch_sizes, costs, measure)
    best = min(costs, key=costs.__getitem__)
    for level in reversed(space.graph_levels[:-1]) if thorough else ():
        point = replace(best, graph_level=level)
        # Levels build on each other: if a lower one does not gain, those below it do not either.
        if (yield from measure(point)) > costs[best] * (1 - MIN_GAIN):
            break
        best = point
    for execution in space.executions[1:] if branches and best.threads > 1 else ():
        yield from measure(replace(best, execution=execution))
    while thorough and (uncertain := _uncertain(space.batch_sizes, costs, repeats)):
        for point in uncertain[: max(0, max_points - repeats.total())]:
            yield from measure(point, again=True)
        if repeats.total() >= max_points:
            return
        # A point that improved may not be the minimum over batch size.
        best = min(costs, key=costs.__getitem__)
        for point in _neighbors(best, space.batch_sizes)[: max_points - repeats.total()] if descends else ():
            yield from measure(point)


def _uncertain(
    sizes: Sequence[int], costs: dict[ServingPoint, float], repeats: Counter[ServingPoint]
) -> list[ServingPoint]:
    """Return the points that noise could have misordered: the best, those close to it, and its neighbors.

    Neighbors are measured twice, close points up to MAX_REPEATS times. Returns nothing if there is no rival.
    """
    ranked = sorted(costs, key=costs.__getitem__)
    best = ranked[0]
    close = [point for point in ranked[1:FINALISTS] if costs[point] <= costs[best] * FINALIST_MARGIN]
    beside = [point for point in _neighbors(best, sizes) if point in costs and repeats[point] == 1]
    rivals = [point for point in dict.fromkeys([*close, *beside]) if repeats[point] < MAX_REPEATS]
    return [*([best] if repeats[best] < MAX_REPEATS else []), *rivals] if rivals else []


def _neighbors(point: ServingPoint, sizes: Sequence[int]) -> list[ServingPoint]:
    """Return the points with the next smaller and the next larger batch size."""
    index = sizes.index(point.batch_size)
    return [replace(point, batch_size=sizes[i]) for i in (index - 1, index + 1) if 0 <= i < len(sizes)]


def _descend(sizes: Sequence[int], costs: dict[ServingPoint, float], measure: Measure) -> Proposals:
    """Descend over batch size to a local minimum, for every number of threads that may hold the best point."""
    lowest = min(costs.values())
    for threads in sorted({point.threads for point in costs}):
        known = {point: cost for point, cost in costs.items() if point.threads == threads}
        best = min(known, key=lambda point: known[point])
        if known[best] > lowest * MAX_DESCENT:
            continue
        while True:
            candidates = {best: known[best]}
            for point in _neighbors(best, sizes):
                candidates[point] = yield from measure(point)
            known |= candidates
            lower = min(candidates, key=lambda point: candidates[point])
            if lower == best:
                break
            best = lower


def grid(space: ServingSpace, optimize_for: OptimizeFor, **_: object) -> Proposals:  # noqa: ARG001
    """Propose every point once."""
    for point in space.points():  # noqa: UP028 - `yield from` a list would not accept what is sent
        yield point


ALGORITHMS: dict[str, Callable[..., Proposals]] = {"few": few, "grid": grid}


def algorithm(name: str) -> Callable[..., Proposals]:
    """Return the search algorithm of this name. Raises InputError if there is none."""
    if name not in ALGORITHMS:
        raise InputError(unknown("serving search", name, ALGORITHMS))
    return ALGORITHMS[name]
