"""Serving records: derived values, and JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.vocabulary.records import Energy, from_json, to_json
from onefold.vocabulary.serving import (
    SERVING_METRICS,
    Disturbance,
    LatencySource,
    OptimizeFor,
    Served,
    ServingPoint,
    Surface,
    best,
)

seconds = st.floats(1e-7, 1e3)
points = st.builds(
    ServingPoint,
    st.integers(1, 128),
    st.integers(1, 64),
    st.sampled_from(("none", "basic", "extended", "all")),
    st.sampled_from(("sequential", "parallel")),
    waiting=st.sampled_from(("sleeping", "spinning")),
)
energies = st.builds(Energy, st.floats(0, 1e6), st.just("modelled")) | st.just(Energy(None, "unavailable"))
serveds = st.builds(
    Served, points, seconds, seconds, seconds, seconds, seconds, st.integers(0, 5000), energies,
    st.none() | st.integers(1, 2**40), st.sampled_from(LatencySource),
)  # fmt: skip
surfaces = st.builds(
    Surface, st.text(max_size=8), st.text(max_size=8), st.lists(serveds, min_size=1, max_size=8).map(tuple),
    st.integers(1, 2**40), st.integers(0, 2**40), seconds, st.booleans(), st.lists(st.text(max_size=8)).map(tuple),
)  # fmt: skip


@given(surfaces)
def test_surface_round_trips_through_json(surface: Surface) -> None:
    assert from_json(Surface, json.loads(json.dumps(to_json(surface)))) == surface


@given(serveds)
def test_rates_and_energy_are_per_sample(served: Served) -> None:
    size = served.point.batch_size
    assert served.throughput_per_s * served.latency_s == pytest.approx(size)
    if served.energy.joules is None:
        assert served.energy_per_sample_j is None
    else:
        assert served.energy_per_sample_j == pytest.approx(served.energy.joules / size)


@given(serveds)
def test_cost_is_what_the_goal_minimizes(served: Served) -> None:
    assert served.cost(OptimizeFor.LATENCY) == served.latency_s
    assert served.cost(OptimizeFor.THROUGHPUT) == pytest.approx(1 / served.throughput_per_s)
    joules = served.energy_per_sample_j
    assert served.cost(OptimizeFor.ENERGY) == (joules if joules is not None else served.cost(OptimizeFor.THROUGHPUT))


@given(st.lists(serveds, min_size=1, max_size=10))
def test_best_is_the_cheapest_eligible_point(served: list[Served]) -> None:
    served = [replace(entry, source=LatencySource.EMULATED) for entry in served]
    singles = [entry for entry in served if entry.point.batch_size == 1]
    assert best(served, OptimizeFor.LATENCY).latency_s == min(item.latency_s for item in singles or served)
    assert best(served, OptimizeFor.THROUGHPUT).throughput_per_s == max(entry.throughput_per_s for entry in served)
    known = [entry.energy_per_sample_j for entry in served if entry.energy_per_sample_j is not None]
    if known:
        assert best(served, OptimizeFor.ENERGY).energy_per_sample_j == min(known)
    assert best(iter(served), OptimizeFor.ENERGY) in served


@given(surfaces)
def test_metric_names(surface: Surface) -> None:
    plain, named = surface.metrics(), surface.metrics("pi")
    assert set(plain) <= set(SERVING_METRICS)
    assert named == {f"{name}@pi": value for name, value in plain.items()}
    latency = surface.best(OptimizeFor.LATENCY)
    assert plain["latency_s"] == latency.latency_s
    assert plain["latency_p99_s"] == latency.p99_s
    assert plain["throughput_per_s"] == surface.best(OptimizeFor.THROUGHPUT).throughput_per_s
    assert plain["size_bytes"] == surface.size_bytes
    assert ("energy_per_sample_j" in plain) == any(served.energy.joules is not None for served in surface.served)
    assert plain.get("serving_memory_bytes") == latency.memory_bytes


def test_complete_surface_has_every_metric() -> None:
    entry = Served(
        ServingPoint(), 0.01, 0.02, 0.03, 0.009, 0.011, 9, Energy(0.1, "modelled"), 10**8, LatencySource.EMULATED
    )
    assert tuple(Surface("s", "pi", (entry,), 1).metrics()) == (
        "latency_s", "latency_p99_s", "throughput_per_s", "size_bytes", "energy_per_sample_j", "serving_memory_bytes",
    )  # fmt: skip
    assert set(Surface("s", "pi", (entry,), 1).metrics()) == set(SERVING_METRICS)
    assert "energy_per_sample_j" not in Surface("s", "pi", (replace(entry, energy=Energy(None, "x")),), 1).metrics()


def test_point_as_text() -> None:
    assert str(ServingPoint()) == "batch 1, 1 thread, graph level all, sequential, fp32"
    assert str(ServingPoint(threads=2, waiting="spinning")).startswith("batch 1, 2 spinning threads, ")
    assert str(ServingPoint(8, 4, "basic", "parallel")) == "batch 8, 4 threads, graph level basic, parallel, fp32"


@pytest.mark.parametrize("goal", OptimizeFor)
@pytest.mark.parametrize(("high_s", "threads"), [(0.09, 4), (0.11, 2)])
def test_predicted_points_are_best_only_if_no_point_that_ran_is_within_their_interval(
    goal: OptimizeFor, high_s: float, threads: int
) -> None:
    energy = Energy(1.0, "modelled")
    ran = Served(ServingPoint(1, 2), 0.1, 0.1, 0.1, 0.1, 0.1, 30, energy, None, LatencySource.EMULATED)
    guess = replace(
        ran, point=ServingPoint(1, 4), latency_s=0.06, low_s=0.05, high_s=high_s, energy=Energy(0.6, "modelled"),
        source=LatencySource.PREDICTED,
    )  # fmt: skip
    assert best([ran, guess], goal).point.threads == threads
    assert best([guess], goal) is guess


def test_doubts_of_a_surface_are_those_of_the_points_that_count() -> None:
    energy = Energy(None, "unavailable")
    fast = Served(ServingPoint(), 1.0, 1.0, 1.0, 0.99, 1.01, 9, energy, None, LatencySource.MEASURED)
    slow = replace(fast, point=ServingPoint(threads=2), latency_s=3.0, disturbance=Disturbance(0.5))
    surface = Surface("s", "pi", (fast, slow), 1, measured_on="2026-01-01T00:00:00+00:00")
    assert surface.reasons_for_doubt == ()
    disturbed = replace(fast, disturbance=Disturbance(0.351, "under-voltage"), low_s=0.5)
    assert replace(surface, served=(disturbed, slow)).reasons_for_doubt == (
        "throttled: under-voltage",
        "other programs took 35 % of the CPU time",
        "the median is uncertain by 26 %",
    )
    assert replace(disturbed, runs=0).reasons_for_doubt == ()  # predicted
    old = replace(surface, measured_on="", notes=("dynamic dimensions", "contention: other programs took 60 %"))
    assert old.reasons_for_doubt == ("contention: other programs took 60 %",)
