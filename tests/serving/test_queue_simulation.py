"""The queue simulation against queueing theory and invariants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.serving.queue_simulation import (
    IdlePenalty,
    LatencyCurve,
    query_service_s,
    simulate_multi_stream,
    simulate_server,
    split,
)
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import LatencySource, Served, ServingPoint


def curve(latencies: dict[int, float], p90: float = 1.0, p99: float = 1.0) -> LatencyCurve:
    medians = tuple(latencies.values())
    return LatencyCurve(
        tuple(latencies), medians, tuple(p90 * time_s for time_s in medians), tuple(p99 * time_s for time_s in medians)
    )


@st.composite
def curves(draw: st.DrawFn) -> LatencyCurve:
    """Any latency curve from batch size 1, with any spread."""
    sizes = [1, *sorted(draw(st.sets(st.integers(2, 40), max_size=5)))]
    latencies = {size: draw(st.floats(1e-4, 1e-1)) for size in sizes}
    p90 = draw(st.floats(1.0, 1.5))
    return curve(latencies, p90, p90 * draw(st.floats(1.0, 2.0)))


def served(batch_size: int, latency_s: float, source: LatencySource = LatencySource.MEASURED, runs: int = 10) -> Served:
    point = ServingPoint(batch_size=batch_size)
    energy = Energy(None, "unavailable")
    return Served(point, latency_s, latency_s, latency_s, latency_s, latency_s, runs, energy, None, source)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.7, 0.8])
def test_deterministic_service_agrees_with_pollaczek_khinchine(load: float) -> None:
    service_s = 0.002
    result = simulate_server(curve({1: service_s}), load / service_s, 1, 0.0, 200_000, seed=1)
    wait_s = load * service_s / (2 * (1 - load))  # M/D/1
    assert result.mean_s == pytest.approx(service_s + wait_s, rel=0.03)
    assert result.utilization == pytest.approx(load, rel=0.02)
    assert result.throughput_per_s == pytest.approx(load / service_s, rel=0.02)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.7])
def test_idle_penalty_agrees_with_welch(load: float) -> None:
    """M/G/1 with an exceptional first service in each busy period."""
    service_s, woken_s = 0.002, 0.0035
    rate = load / service_s
    slow = replace(curve({1: service_s}), idle_penalties=(IdlePenalty(1, *(3 * [woken_s - service_s])),))
    result = simulate_server(slow, rate, 1, 0.0, 200_000, seed=4)
    spell = 1 - load + rate * woken_s
    wait_s = rate * service_s**2 / (2 * (1 - load)) + rate * (woken_s**2 - service_s**2) / (2 * spell)
    idle = (1 - load) / spell
    assert result.mean_s == pytest.approx(wait_s + idle * woken_s + (1 - idle) * service_s, rel=0.03)


def test_idle_penalty_applies_once_per_query() -> None:
    slow = replace(
        curve({1: 0.001, 4: 0.004}),
        idle_penalties=(IdlePenalty(1, 0.001, 0.001, 0.001), IdlePenalty(4, 0.002, 0.002, 0.002)),
    )
    rare = simulate_multi_stream(slow, 8, 1.0, 4, 100, 0)
    assert rare.mean_s == pytest.approx(0.008 + 0.002)
    assert simulate_multi_stream(slow, 2, 1.0, 2, 100, 0).mean_s == pytest.approx(0.002 + 0.001 + 0.001 / 3)  # between
    busy = simulate_multi_stream(slow, 8, 0.0079, 4, 1_000, 0)  # never idle again
    assert busy.utilization == pytest.approx(1.0, abs=1e-3)


def test_idle_penalties_come_from_measured_points() -> None:
    plain, single, several = served(2, 0.002), served(1, 0.001), served(8, 0.004)
    single = replace(single, after_rest_s=(0.0015, 0.002, 0.004))
    several = replace(several, after_rest_s=(0.0039, 0.005, 0.005))
    assert IdlePenalty.of([plain]) == []
    few, many = IdlePenalty.of([plain, single, several])
    assert (few.batch_size, many.batch_size) == (1, 8)
    assert (few.median_s, few.p90_s, few.p99_s) == pytest.approx((0.0005, 0.001, 0.003))
    assert many.median_s == 0.0  # never less than nothing


def test_variable_service_agrees_with_pollaczek_khinchine() -> None:
    spread = curve({1: 0.002}, p90=1.4, p99=2.5)
    rate = 0.6 / spread.mean_s(1)
    result = simulate_server(spread, rate, 1, 0.0, 200_000, seed=2)
    still = curve({1: spread.mean_s(1)})
    steady = simulate_server(still, rate, 1, 0.0, 200_000, seed=2)
    # M/G/1: the wait grows by 1 plus the squared coefficient of variation of the service.
    draws = np.array([simulate_multi_stream(spread, 1, 1.0, 1, 1, seed).mean_s for seed in range(4_000)])
    variation = float(draws.var() / draws.mean() ** 2)
    grown = (result.mean_s - spread.mean_s(1)) / (steady.mean_s - spread.mean_s(1))
    assert grown == pytest.approx(1 + variation, rel=0.1)


@given(curves(), st.integers(1, 40))
def test_interpolated_latency_is_within_its_neighbors(known: LatencyCurve, size: int) -> None:
    if size > known.largest:
        with pytest.raises(InputError, match="within the measured"):
            known.time_s(size)
        return
    position = max(i for i, measured in enumerate(known.batch_sizes) if measured <= size)
    ends = known.latency_s[position : position + 2]
    assert min(ends) * (1 - 1e-9) <= known.time_s(size) <= max(ends) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(curves())
def test_service_times_have_the_measured_percentiles(known: LatencyCurve) -> None:
    for index, size in enumerate(known.batch_sizes):
        alone = simulate_multi_stream(known, size, 1e3, size, 4_000, seed=3)
        assert alone.p50_s == pytest.approx(known.latency_s[index], rel=0.05)
        assert alone.p90_s == pytest.approx(known.p90_s[index], rel=0.08)
        assert alone.p99_s == pytest.approx(known.p99_s[index], rel=0.2)


@settings(max_examples=40, deadline=None)
@given(curves(), st.integers(1, 40), st.floats(0, 0.05), st.floats(1, 2_000), st.integers(0, 1_000))
def test_response_time_is_at_least_the_service_time(
    known: LatencyCurve, size: int, wait_s: float, rate: float, seed: int
) -> None:
    size = min(size, known.largest)
    still = replace(known, p90_s=known.latency_s, p99_s=known.latency_s)
    fastest_s = min(still.time_s(n) for n in range(1, size + 1))
    result = simulate_server(still, rate, size, wait_s, 500, seed)
    assert result.mean_s >= fastest_s * (1 - 1e-9)
    assert result.p50_s <= result.p90_s <= result.p99_s
    assert 0 < result.utilization <= 1
    assert simulate_server(still, rate, size, wait_s, 500, seed) == result
    asked = simulate_multi_stream(still, 2 * size, 1 / rate, size, 100, seed)
    assert asked.p50_s >= 2 * still.time_s(size) * (1 - 1e-9)


@given(curves(), st.integers(1, 100), st.integers(0, 100))
def test_query_in_one_batch(known: LatencyCurve, queries: int, seed: int) -> None:
    still = replace(known, p90_s=known.latency_s, p99_s=known.latency_s)
    samples = known.largest
    result = simulate_multi_stream(still, samples, 2 * still.time_s(samples), samples, queries, seed)
    assert result.mean_s == pytest.approx(still.time_s(samples))
    assert result.stable
    assert result.utilization == pytest.approx(queries / (2 * queries - 1), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(curves(), st.floats(1.05, 5), st.integers(1, 40))
def test_overloaded_server_is_unstable(known: LatencyCurve, over: float, size: int) -> None:
    size = min(size, known.largest)
    samples = 2 * size + 1
    period_s = query_service_s(known, samples, size) / over
    short, long = (simulate_multi_stream(known, samples, period_s, size, queries, 0) for queries in (200, 2_000))
    assert not short.stable
    assert not long.stable
    assert long.mean_s > short.mean_s
    assert not simulate_server(known, over * known.capacity_per_s(size), size, 0.0, 10, 0).stable
    assert simulate_server(known, known.capacity_per_s(size) / over, size, 0.0, 10, 0).stable


def reference_responses(arrivals: list[float], known: LatencyCurve, size: int, wait_s: float) -> list[float]:
    """A reference implementation of the batching policy: at every event, check whether a batch may start."""
    moments = sorted({*arrivals, *(came_s + wait_s for came_s in arrivals)})
    left, waiting, responses, free_s = list(arrivals), [], [], 0.0
    while moments:
        now_s = moments.pop(0)
        while left and left[0] <= now_s:
            waiting.append(left.pop(0))
        if now_s >= free_s and waiting and (len(waiting) >= size or now_s >= waiting[0] + wait_s):
            batch, waiting = waiting[:size], waiting[size:]
            free_s = now_s + known.time_s(len(batch))
            responses += [free_s - came_s for came_s in batch]
            moments = sorted({*moments, free_s})
    return responses


@settings(max_examples=40, deadline=None)
@given(curves(), st.integers(1, 40), st.floats(0, 0.05), st.floats(1, 2_000), st.integers(0, 1_000))
def test_batches_start_by_the_batching_policy(
    known: LatencyCurve, size: int, wait_s: float, rate: float, seed: int
) -> None:
    size = min(size, known.largest)
    still = replace(known, p90_s=known.latency_s, p99_s=known.latency_s)
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, 60)).tolist()
    responses = reference_responses(arrivals, still, size, wait_s)
    result = simulate_server(still, rate, size, wait_s, 60, seed)
    assert result.queries == len(responses) == 60
    assert result.mean_s == pytest.approx(np.mean(responses))
    assert result.p99_s == pytest.approx(max(responses))


@given(st.integers(1, 500), st.integers(1, 100))
def test_split_keeps_all_samples(samples: int, batch_size: int) -> None:
    batches = split(samples, batch_size)
    assert sum(batches) == samples
    assert all(1 <= size <= batch_size for size in batches)


def test_wait_fills_batches_and_adds_latency() -> None:
    known = curve({1: 0.001, 8: 0.002})
    at_once, patient = (simulate_server(known, 200, 8, wait_s, 20_000, 0) for wait_s in (0.0, 0.05))
    assert patient.utilization < at_once.utilization
    assert patient.mean_s > at_once.mean_s


def test_full_batch_does_not_wait() -> None:
    known = curve({1: 0.001, 4: 0.001})
    result = simulate_server(known, 1_000, 4, 10.0, 4_000, 0)
    assert result.p99_s < 0.1


def test_curve_prefers_measured_points_and_more_runs() -> None:
    known = LatencyCurve.of(
        [served(1, 3.0, runs=99), served(1, 9.0, LatencySource.PREDICTED, 999), served(1, 5.0, runs=9), served(4, 7.0)]
    )
    assert known.latency_s == (3.0, 7.0)
    assert known.time_s(2) == pytest.approx(3 + 4 / 3)


@pytest.mark.parametrize(
    ("sizes", "latencies", "says"),
    [((), (), "needs a median"), ((2, 1), (1.0, 1.0), "increase from 1"), ((1, 2), (1.0, 0.0), "positive and finite")],
)
def test_invalid_curve_is_refused(sizes: tuple[int, ...], latencies: tuple[float, ...], says: str) -> None:
    with pytest.raises(InputError, match=says):
        LatencyCurve(sizes, latencies, latencies, latencies)


def test_invalid_numbers_are_refused() -> None:
    known = curve({1: 1.0})
    with pytest.raises(InputError, match="period_s must be above 0"):
        simulate_multi_stream(known, 1, 0.0, 1, 10, 0)
    with pytest.raises(InputError, match="rate_per_s must be above 0"):
        simulate_server(known, float("nan"), 1, 0.0, 10, 0)
    with pytest.raises(InputError, match="wait_s must be 0 or more"):
        simulate_server(known, 1.0, 1, -1.0, 10, 0)
