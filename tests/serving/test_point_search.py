"""Searches over serving points, on synthetic cost surfaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from generic_point_searches import halving
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.serving.point_search import ALGORITHMS, MAX_REPEATS, algorithm, few, grid
from onefold.serving.space import GRAPH_LEVELS, ServingSpace
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import LatencySource, OptimizeFor, Served, ServingPoint

TWO_CORES = ServingSpace().on(2)
SMALL = ServingSpace((1, 4, 16), (1, 2), ("basic", "all"), ("sequential",))
parts = st.floats(-7, -2).map(lambda exponent: 10**exponent)


@dataclass(frozen=True)
class Cost:
    """Latency a + b n + d n² of a batch of n, unimodal per sample, with coefficients for each number of threads."""

    threads: dict[int, tuple[float, float, float]]
    levels: dict[str, float]  # what each graph level multiplies it with
    parallel: float = 1.0

    def latency_s(self, point: ServingPoint) -> float:
        a, b, d = self.threads[point.threads]
        size = point.batch_size
        factor = self.levels[point.graph_level] * (self.parallel if point.execution == "parallel" else 1.0)
        return (a + b * size + d * size**2) * factor

    def served(self, point: ServingPoint) -> Served:
        time_s = self.latency_s(point)
        energy = Energy(time_s * (2.0 + point.threads), "modelled")
        return Served(point, time_s, time_s, time_s, time_s, time_s, 9, energy, None, LatencySource.MEASURED)


@st.composite
def costs(draw: st.DrawFn, threads: tuple[int, ...] = (1, 2)) -> Cost:
    """Graph levels that improve for some steps down from `all`, then get worse."""
    gains = draw(st.lists(st.floats(0.6, 0.95), max_size=3))
    losses = draw(st.lists(st.floats(1.0, 2.0), min_size=3 - len(gains), max_size=3 - len(gains)))
    factors = [1.0]
    for step in (*gains, *losses):
        factors.append(factors[-1] * step)
    levels = dict(zip(reversed(GRAPH_LEVELS), factors))
    return Cost({n: draw(st.tuples(parts, parts, parts)) for n in threads}, levels, draw(st.floats(1.0, 3.0)))


def played(
    propose: Callable[..., object], space: ServingSpace, purpose: OptimizeFor, cost: Cost, **options: bool
) -> list[Served]:
    """Return the measured points in order."""
    proposals = propose(space, purpose, **options)
    result: list[Served] = []
    try:
        point = next(proposals)  # type: ignore[call-overload]
        while True:
            result.append(cost.served(point))
            assert len(result) < 1000
            point = proposals.send(result[-1])  # type: ignore[attr-defined]
    except StopIteration:
        return result


def least(space: ServingSpace, purpose: OptimizeFor, cost: Cost) -> float:
    return min(cost.served(point).cost(purpose) for point in space.points())


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("purpose", list(OptimizeFor))
def test_every_algorithm_terminates_within_the_space(name: str, purpose: OptimizeFor) -> None:
    cost = Cost({1: (1e-4, 1e-5, 0), 2: (2e-4, 5e-6, 0)}, dict.fromkeys(GRAPH_LEVELS, 1.0))
    for branches in (False, True):
        result = played(algorithm(name), SMALL, purpose, cost, branches=branches, thorough=True)
        assert result
        assert {candidate.point for candidate in result} <= set(SMALL.points())


@given(costs(), st.sampled_from(OptimizeFor), st.booleans(), st.booleans())
def test_few_repeats_finalists_only(cost: Cost, purpose: OptimizeFor, branches: bool, thorough: bool) -> None:
    points = [item.point for item in played(few, TWO_CORES, purpose, cost, branches=branches, thorough=thorough)]
    assert max(Counter(points).values()) <= (MAX_REPEATS if thorough else 1)
    assert set(points) <= set(TWO_CORES.points())


def test_few_recovers_from_a_noisy_measurement() -> None:
    """The minimum, measured a third too slow the first time."""
    cost = Cost({1: (1e-3, 1e-4, 3e-7), 2: (2e-3, 5e-5, 1e-6)}, dict.fromkeys(GRAPH_LEVELS, 1.0))
    bottom = min(TWO_CORES.points(), key=lambda point: cost.served(point).cost(OptimizeFor.THROUGHPUT))
    proposals = few(TWO_CORES, OptimizeFor.THROUGHPUT)
    seen: dict[ServingPoint, float] = {}
    try:
        point = next(proposals)
        while True:
            served = cost.served(point)
            if point == bottom and point not in seen:
                served = replace(served, latency_s=1.3 * served.latency_s)
            seen[point] = min(seen.get(point, served.latency_s), served.latency_s)
            point = proposals.send(served)
    except StopIteration:
        pass
    best = min(seen, key=lambda point: seen[point] / point.batch_size)
    assert replace(best, graph_level=bottom.graph_level) == bottom


@given(costs(), st.sampled_from(OptimizeFor), st.booleans())
def test_few_measures_at_most_15_percent(cost: Cost, purpose: OptimizeFor, branches: bool) -> None:
    assert len(played(few, TWO_CORES, purpose, cost, branches=branches)) <= 0.15 * len(TWO_CORES)


@settings(max_examples=80)
@given(costs(), st.sampled_from((OptimizeFor.THROUGHPUT, OptimizeFor.ENERGY)))
def test_few_finds_the_minimum(cost: Cost, purpose: OptimizeFor) -> None:
    result = played(few, TWO_CORES, purpose, cost)
    assert min(candidate.cost(purpose) for candidate in result) <= 1.03 * least(TWO_CORES, purpose, cost)


@given(costs((1, 2, 4, 8)))
def test_few_finds_the_minimum_with_more_threads(cost: Cost) -> None:
    space = ServingSpace().on(8)
    result = played(few, space, OptimizeFor.THROUGHPUT, cost)
    assert len(result) <= 0.15 * len(space)
    best = min(candidate.cost(OptimizeFor.THROUGHPUT) for candidate in result)
    assert best <= 1.03 * least(space, OptimizeFor.THROUGHPUT, cost)


@given(costs())
def test_few_measures_batch_size_1_for_latency(cost: Cost) -> None:
    result = played(few, TWO_CORES, OptimizeFor.LATENCY, cost)
    assert {candidate.point.batch_size for candidate in result} == {1}
    assert min(candidate.latency_s for candidate in result) <= 1.03 * min(
        cost.latency_s(point) for point in TWO_CORES.points() if point.batch_size == 1
    )


def test_few_tries_parallel_execution_for_branches() -> None:
    cost = Cost({1: (1e-3, 1e-3, 0), 2: (1e-3, 1e-4, 0)}, dict.fromkeys(GRAPH_LEVELS, 1.0), parallel=0.5)
    for branches in (False, True):
        result = played(few, TWO_CORES, OptimizeFor.THROUGHPUT, cost, branches=branches)
        assert ("parallel" in {candidate.point.execution for candidate in result}) is branches


def test_few_skips_graph_levels_unless_thorough() -> None:
    cost = Cost({1: (1e-3, 1e-3, 0), 2: (1e-3, 1e-4, 0)}, dict.fromkeys(GRAPH_LEVELS, 1.0))
    assert {item.point.graph_level for item in played(few, TWO_CORES, OptimizeFor.LATENCY, cost, thorough=False)} == {
        "all"
    }


@given(costs())
def test_grid_measures_every_point_once(cost: Cost) -> None:
    assert [item.point for item in played(grid, SMALL, OptimizeFor.LATENCY, cost)] == SMALL.points()


@given(costs(), st.sampled_from(OptimizeFor))
def test_halving_repeats_the_better_half(cost: Cost, purpose: OptimizeFor) -> None:
    result = played(halving, SMALL, purpose, cost)
    times = {point: sum(candidate.point == point for candidate in result) for point in SMALL.points()}
    assert sorted(times.values()) == [1] * 6 + [2] * 3 + [3] + [4] * 2
    best = min(SMALL.points(), key=lambda point: cost.served(point).cost(purpose))
    assert cost.served(best).cost(purpose) == pytest.approx(
        min(cost.served(point).cost(purpose) for point, count in times.items() if count == 4)
    )


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_sampling_searches_measure_their_share(name: str) -> None:
    cost = Cost({1: (1e-4, 1e-5, 0), 2: (2e-4, 5e-6, 0)}, dict.fromkeys(GRAPH_LEVELS, 1.0))
    result = played(algorithm(name), TWO_CORES, OptimizeFor.THROUGHPUT, cost)
    assert len(result) == round(0.15 * 128)


def test_unknown_algorithm_suggests_the_closest() -> None:
    with pytest.raises(InputError, match="unknown serving search 'gird'; did you mean 'grid'"):
        algorithm("gird")
