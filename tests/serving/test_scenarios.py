"""Scenarios as text, and the settings chosen for them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.serving.queue_simulation import LatencyCurve
from onefold.serving.scenario_settings import ScenarioSettings, choose_settings, predict, sustainable_rate
from onefold.serving.scenarios import (
    MultiStream,
    Offline,
    Scenario,
    Server,
    SingleStream,
    parse_scenario,
    rename_swapped,
)
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Energy, from_json, to_json
from onefold.vocabulary.serving import LatencySource, Served, ServingPoint

SIZES = (1, 2, 4, 8, 16, 32)
rates = st.floats(0.01, 1e5)
scenarios = st.one_of(
    st.just(SingleStream()),
    st.builds(MultiStream, st.integers(1, 64), rates),
    st.builds(Server, rates),
    st.builds(Offline, st.integers(1, 10_000)),
)


def served(batch_size: int, latency_s: float, threads: int = 1, spread: float = 1.0) -> Served:
    point = ServingPoint(batch_size=batch_size, threads=threads)
    p90_s, p99_s = spread * latency_s, spread**2 * latency_s
    energy = Energy(None, "unavailable")
    return Served(point, latency_s, p90_s, p99_s, latency_s, latency_s, 100, energy, None, LatencySource.MEASURED)


def line(fixed_s: float, sample_s: float, threads: int = 1, spread: float = 1.0) -> list[Served]:
    """Points of a network with a fixed cost per batch and a cost per sample."""
    return [served(size, fixed_s + size * sample_s, threads, spread) for size in SIZES]


@given(scenarios)
def test_scenario_round_trips(asked: Scenario) -> None:
    assert parse_scenario(str(asked)) == asked


def test_scenario_grammar() -> None:
    assert parse_scenario("single-stream") == SingleStream()
    assert parse_scenario("multi-stream:8@20") == MultiStream(samples_per_query=8, queries_per_s=20)
    assert parse_scenario("server:0.5") == Server(rate_per_s=0.5)
    assert parse_scenario("offline") == Offline()
    assert parse_scenario("offline:50") == Offline(50)
    assert str(parse_scenario(" multi-stream:8@20 ")) == "multi-stream:8@20"


@pytest.mark.parametrize(
    "text", ["", "servr:100", "server", "multi-stream:8", "multi-stream:8.5@2", "server:-1", "offline:x"]
)
def test_invalid_scenario_names_the_grammar(text: str) -> None:
    with pytest.raises(InputError, match="multi-stream:N@Q"):
        parse_scenario(text)


def test_close_name_is_suggested() -> None:
    with pytest.raises(InputError, match="did you mean 'server'"):
        parse_scenario("servr:100")


@pytest.mark.parametrize(
    ("swapped", "meant"), [("server:8@20", "multi-stream:8@20"), ("multi-stream:100", "server:100")]
)
def test_scenario_with_the_load_of_another_suggests_that_one(swapped: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{meant}'"):
        parse_scenario(swapped)
    assert rename_swapped(swapped) == meant


@given(scenarios)
def test_present_names_are_not_renamed(asked: Scenario) -> None:
    assert rename_swapped(f"no serving point sustains {asked}; lower") == f"no serving point sustains {asked}; lower"


@pytest.mark.parametrize("text", ["multi-stream:0@20", "multi-stream:8@0", "server:0", "offline:0"])
def test_zero_load_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="must be above 0"):
        parse_scenario(text)


@settings(max_examples=12, deadline=None)
@given(
    scenarios,
    st.floats(1e-4, 1e-2),
    st.floats(1e-5, 1e-2),
    st.floats(1.0, 1.5),
    st.sampled_from(["mean", "p99"]),
    st.integers(0, 99),
)
def test_choice_is_never_worse_than_no_batching(
    asked: Scenario, fixed_s: float, sample_s: float, spread: float, goal: str, seed: int
) -> None:
    points = line(fixed_s, sample_s, 1, spread) + line(1.2 * fixed_s, 0.7 * sample_s, 2, spread)
    choice = choose_settings(asked, points, goal, seed)
    result, single = choice.predicted, choice.batch_one
    assert result.stable >= single.stable
    if result.stable and single.stable and isinstance(asked, MultiStream | Server):
        assert (result.p99_s if goal == "p99" else result.mean_s) <= (single.p99_s if goal == "p99" else single.mean_s)
    if isinstance(asked, Offline):
        assert result.throughput_per_s >= single.throughput_per_s
    assert from_json(ScenarioSettings, json.loads(json.dumps(to_json(choice)))) == choice


def test_choice_is_deterministic() -> None:
    points = line(0.001, 0.0002, spread=1.2)
    first, again, other = (choose_settings(Server(500), points, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.predicted != other.predicted


def test_single_stream_has_the_lowest_latency() -> None:
    points = [*line(0.001, 0.001), *line(0.0005, 0.001, threads=2)]
    choice = choose_settings(SingleStream(), points)
    assert choice.point == ServingPoint(batch_size=1, threads=2)
    assert choice.predicted.p50_s == pytest.approx(0.0015)
    steady, shaky = served(1, 0.002), served(1, 0.0019, threads=2, spread=2.0)
    assert choose_settings(SingleStream(), [steady, shaky], "mean").point.threads == 2
    assert choose_settings(SingleStream(), [steady, shaky], "p99").point.threads == 1


def test_offline_has_the_highest_throughput() -> None:
    points = [served(1, 0.001), served(8, 0.004), served(32, 0.040)]
    choice = choose_settings(Offline(64), points)
    assert choice.point.batch_size == 8
    assert choice.predicted.throughput_per_s == pytest.approx(2_000)
    assert choice.batch_one.throughput_per_s == pytest.approx(1_000)


def test_offline_names_the_throughput_of_its_table() -> None:
    points = [served(1, 0.001, spread=1.5), served(8, 0.004, spread=2.0), served(8, 0.0041, threads=2)]
    choice = choose_settings(Offline(64), points)
    assert choice.point == ServingPoint(batch_size=8, threads=1), "the highest throughput by the median latency"
    assert choice.throughput_per_s == pytest.approx(2_000)
    assert choice.why == "highest throughput: 2,000/s at batch size 8, 1,000/s at batch size 1"


def test_query_with_fixed_batch_cost_is_not_split() -> None:
    choice = choose_settings(MultiStream(6, 10), line(0.010, 0.001))
    assert choice.point.batch_size == 6  # between the measured 4 and 8
    assert choice.predicted.mean_s == pytest.approx(0.016)
    assert choice.batch_one.mean_s == pytest.approx(6 * 0.011)


def test_query_with_slow_large_batches_is_split() -> None:
    points = [served(1, 0.002), served(2, 0.003), served(4, 0.004), served(8, 0.020)]
    assert choose_settings(MultiStream(8, 10), points).point.batch_size == 4


def test_useless_batching_is_avoided() -> None:
    choice = choose_settings(Server(50), [served(size, 0.001 * size) for size in SIZES])
    assert choice.point.batch_size == 1
    assert choice.wait_s == 0
    assert "batching does not help" in choice.why


def test_poisson_arrivals_are_batched() -> None:
    choice = choose_settings(Server(900), line(0.0009, 0.0001))
    assert choice.point.batch_size > 1
    assert choice.predicted.mean_s < choice.batch_one.mean_s
    assert "at batch size 1" in choice.why


def test_wait_is_chosen_if_it_helps() -> None:
    # Two samples in one batch cost as much as one, and the second comes soon: going at once blocks it.
    choice = choose_settings(Server(1_000), [served(1, 0.010), served(64, 0.0101)], "p99")
    at_once = predict(Server(1_000), LatencyCurve.of([served(1, 0.010), served(64, 0.0101)]), 64)
    assert choice.predicted.p99_s <= at_once.p99_s


def test_overload_names_the_sustainable_rate() -> None:
    points = line(0.001, 0.001)
    choice = choose_settings(Server(5_000), points)
    assert not choice.predicted.stable
    assert choice.point.batch_size == 32
    limit = sustainable_rate(Server(5_000), LatencyCurve.of(points), 32)
    assert f"stable below {limit:,.4g}/s (samples)" in choice.why
    assert choose_settings(Server(0.99 * limit), points).predicted.stable
    queries = choose_settings(MultiStream(8, 1_000), points)
    assert "overloaded" in queries.why
    assert "stable below 111.1/s (queries)" in queries.why  # 1 / (1 ms + 8 x 1 ms)


def test_unknown_goal_and_missing_batch_size_1_are_refused() -> None:
    with pytest.raises(InputError, match="unknown scenario_goal 'median'; did you mean 'mean'"):
        choose_settings(Offline(), line(0.001, 0.001), "median")
    with pytest.raises(InputError, match="batch size 1"):
        choose_settings(Offline(), [served(2, 0.001)])
    with pytest.raises(InputError, match="batch size 1"):
        choose_settings(Offline(), [])


@pytest.mark.parametrize("scenario", [SingleStream(), Offline(64), Server(20)])
@pytest.mark.parametrize(("high_s", "threads"), [(0.009, 4), (0.012, 2)])
def test_a_predicted_point_is_chosen_only_if_no_measured_one_is_in_its_interval(
    scenario: Scenario, high_s: float, threads: int
) -> None:
    ran = served(1, 0.010, threads=2)
    guess = replace(
        served(1, 0.006, threads=4), low_s=0.005, high_s=high_s, runs=0, source=LatencySource.PREDICTED
    )  # fmt: skip
    assert choose_settings(scenario, [ran, guess]).point.threads == threads
