"""Choose the serving point and batching policy for a scenario, by simulation over measured latencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onefold.serving.point_prediction import interpolate_batch_size
from onefold.serving.queue_simulation import (
    IdlePenalty,
    LatencyCurve,
    Response,
    query_service_s,
    simulate_multi_stream,
    simulate_server,
    split,
)
from onefold.serving.scenarios import MultiStream, Offline, Scenario, Server, SingleStream, is_open_loop
from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.quantities import duration, rate
from onefold.vocabulary.serving import Served, ServingPoint

SCENARIO_GOALS = ("mean", "p99")
SCREENING_QUERIES, FINAL_QUERIES = 3_000, 20_000  # simulated for every policy, and for the finalists
FINALISTS = 6
TIE, TIE_OPEN_LOOP = 0.01, 0.05  # policies within this margin are tied, given the noise: the simplest one wins
WAIT_FACTORS = (0.25, 0.5, 1.0, 2.0)  # of the time to gather a batch or to serve it, whichever is less


@dataclass(frozen=True, slots=True)
class ScenarioSettings:
    """The settings chosen for a scenario, and what to expect. `predicted` and `batch_one` are simulated."""

    scenario: str
    point: ServingPoint  # its batch size is the maximum batch size
    wait_s: float  # the longest time that a sample waits for a batch to fill
    predicted: Response
    batch_one: Response  # the same scenario without batching, at the best point for that
    why: str
    expected: Served | None = None  # back-to-back batches at this point
    throughput_per_s: float | None = None  # of back-to-back batches, in samples
    energy_per_sample_j: float | None = None
    confirmed: Response | None = None  # by a load test


@dataclass(frozen=True, slots=True)
class _Policy:
    point: ServingPoint
    wait_s: float
    curve: LatencyCurve


Rank = tuple[bool, float]  # whether it is overloaded, and its cost


def choose_settings(
    scenario: Scenario, served: Sequence[Served], goal: str = "mean", seed: int = 0
) -> ScenarioSettings:
    """Return the best settings for a scenario by mean or p99 response time; offline by the throughput of batches.

    Threads, graph level, execution and precision are taken together as they were measured. Batch size 1 is always a
    candidate, so the choice is never predicted to be worse than no batching. A point that never ran is chosen only if
    it is the best even at the upper end of its interval. Deterministic for given arguments. Raises InputError for an
    unknown goal or if no point with batch size 1 was measured.
    """
    if goal not in SCENARIO_GOALS:
        raise InputError(unknown("scenario_goal", goal, SCENARIO_GOALS))
    ran = [point for point in served if not point.is_predicted]
    if not ran or len(ran) == len(served):
        return _choose_settings(scenario, served, goal, seed)
    cautious = _choose_settings(scenario, [_at_upper_end(point) for point in served], goal, seed).point
    group = replace(cautious, batch_size=1)
    certain = [point for point in served if point.is_predicted and replace(point.point, batch_size=1) == group]
    return _choose_settings(scenario, [*ran, *certain], goal, seed)


def _at_upper_end(served: Served) -> Served:
    """Return a predicted point with the latencies at the upper end of its interval; other points as they are."""
    if not served.is_predicted:
        return served
    factor = served.high_s / served.latency_s
    return replace(
        served, latency_s=served.high_s, p90_s=served.p90_s * factor, p99_s=served.p99_s * factor
    )  # fmt: skip


def _choose_settings(scenario: Scenario, served: Sequence[Served], goal: str, seed: int) -> ScenarioSettings:
    curves = _curves(served)
    if not any(curve.batch_sizes[0] == 1 for curve in curves.values()):
        raise InputError("no point with batch size 1 was measured; measure at least one")

    def rank(policy: _Policy, response: Response) -> Rank:
        """Rank stable policies by the goal, then overloaded ones by the rate that they sustain."""
        if response.stable:
            return False, _cost(scenario, policy, response, goal)
        return True, 1 / sustainable_rate(scenario, policy.curve, policy.point.batch_size)

    screened = [(policy, rank(policy, response)) for policy, response in _screen(scenario, curves, rank, seed)]
    screened.sort(key=lambda pair: pair[1])
    singles = [policy for policy, _ in screened if policy.point.batch_size == 1]
    finalists = dict.fromkeys([*(policy for policy, _ in screened[:FINALISTS]), *singles[:1]])
    responses = {policy: _simulate(scenario, policy, FINAL_QUERIES, seed) for policy in finalists}
    ranks = {policy: rank(policy, response) for policy, response in responses.items()}
    overloaded, lowest = min(ranks.values())
    tie = TIE_OPEN_LOOP if is_open_loop(scenario) and not overloaded else TIE
    tied = [policy for policy, (late, cost) in ranks.items() if late == overloaded and cost <= lowest * (1 + tie)]
    best = min(tied, key=lambda policy: (policy.point.batch_size, policy.wait_s, ranks[policy]))
    single = min((policy for policy in responses if policy.point.batch_size == 1), key=lambda policy: ranks[policy])
    why = _explain(scenario, best, single, responses, goal)
    settings = ScenarioSettings(str(scenario), best.point, best.wait_s, responses[best], responses[single], why)
    expected = interpolate_batch_size(served, best.point)
    if expected is None:
        return settings
    return replace(
        settings,
        expected=expected,
        throughput_per_s=expected.throughput_per_s,
        energy_per_sample_j=expected.energy_per_sample_j,
    )


def predict(
    scenario: Scenario,
    curve: LatencyCurve,
    batch_size: int,
    wait_s: float = 0.0,
    queries: int = FINAL_QUERIES,
    seed: int = 0,
) -> Response:
    """Simulate a scenario with batches of up to `batch_size`. Single-stream ignores the batching policy."""
    match scenario:
        case SingleStream():
            p90_ratio, p99_ratio = curve.spread(1)
            median_s, mean_s = curve.time_s(1), curve.mean_s(1)
            p90_s, p99_s = median_s * p90_ratio, median_s * p99_ratio
            return Response(mean_s, median_s, p90_s, p99_s, 1 / mean_s, 1.0, True, queries)
        case MultiStream(samples_per_query=samples, queries_per_s=queries_per_s):
            return simulate_multi_stream(curve, samples, 1 / queries_per_s, batch_size, queries, seed)
        case Server(rate_per_s=rate_per_s):
            return simulate_server(curve, rate_per_s, batch_size, wait_s, queries, seed)
        case Offline(samples=samples):
            time_s = query_service_s(curve, samples, batch_size)
            return Response(time_s, time_s, time_s, time_s, samples / time_s, 1.0, True, 1)


def sustainable_rate(scenario: Scenario, curve: LatencyCurve, batch_size: int) -> float:
    """Return the rate, in the scenario's unit, below which the server is stable; infinite for closed loops."""
    match scenario:
        case MultiStream(samples_per_query=samples):
            return 1 / query_service_s(curve, samples, min(batch_size, samples))
        case Server():
            return curve.capacity_per_s(batch_size)
        case _:
            return math.inf


def sustained_per_s(scenario: Scenario, served: Sequence[Served]) -> float:
    """Return the highest rate, in the scenario's unit, that any serving point sustains."""
    return max(
        sustainable_rate(scenario, curve, size)
        for curve in _curves(served).values()
        for size in _batch_sizes(scenario, curve)
    )


def _curves(served: Sequence[Served]) -> dict[ServingPoint, LatencyCurve]:
    """Return a latency curve for each group of points that differ only in batch size."""
    groups: dict[ServingPoint, list[Served]] = {}
    for point in served:
        groups.setdefault(replace(point.point, batch_size=1), []).append(point)
    penalties = IdlePenalty.of(served)  # shared, or groups without measured penalties would look better
    return {point: LatencyCurve.of(members, penalties) for point, members in groups.items()}


def _batch_sizes(scenario: Scenario, curve: LatencyCurve) -> list[int]:
    """Return the batch sizes to consider: measured sizes that the scenario can fill, and a whole query."""
    match scenario:
        case SingleStream():
            return [size for size in curve.batch_sizes if size == 1]
        case MultiStream(samples_per_query=most) | Offline(samples=most):
            sizes = {size for size in curve.batch_sizes if size <= most}
            return sorted(sizes | ({most} if most <= curve.largest else set()))
        case Server():
            return list(curve.batch_sizes)


def _screen(
    scenario: Scenario,
    curves: dict[ServingPoint, LatencyCurve],
    rank: Callable[[_Policy, Response], Rank],
    seed: int,
) -> Iterator[tuple[_Policy, Response]]:
    """Simulate every policy briefly; longer waits only while they help."""
    for group, curve in curves.items():
        for size in _batch_sizes(scenario, curve):
            policy = _Policy(replace(group, batch_size=size), 0.0, curve)
            response = _simulate(scenario, policy, SCREENING_QUERIES, seed)
            yield policy, response
            if not isinstance(scenario, Server) or size == 1:
                continue
            unit_s = min((size - 1) / scenario.rate_per_s, curve.time_s(size))
            for factor in WAIT_FACTORS:
                longer = replace(policy, wait_s=factor * unit_s)
                longer_response = _simulate(scenario, longer, SCREENING_QUERIES, seed)
                if rank(longer, longer_response) >= rank(policy, response):
                    break
                policy, response = longer, longer_response
                yield policy, response


def _simulate(scenario: Scenario, policy: _Policy, queries: int, seed: int) -> Response:
    return predict(scenario, policy.curve, policy.point.batch_size, policy.wait_s, queries, seed)


def _cost(scenario: Scenario, policy: _Policy, response: Response, goal: str) -> float:
    if isinstance(scenario, Offline):  # by the latencies of tables and metrics
        return sum(policy.curve.time_s(size) for size in split(scenario.samples, policy.point.batch_size))
    if goal == "p99":
        return response.p99_s
    return response.p50_s if isinstance(scenario, SingleStream) else response.mean_s


def _explain(
    scenario: Scenario, best: _Policy, single: _Policy, responses: Mapping[_Policy, Response], goal: str
) -> str:
    """Explain the choice in one sentence with the figures behind it."""
    size, response = best.point.batch_size, responses[best]
    cost = duration(_cost(scenario, best, response, goal))
    if not response.stable:
        unit = "queries" if isinstance(scenario, MultiStream) else "samples"
        sustained = rate(sustainable_rate(scenario, best.curve, size))
        return (
            f"overloaded: no serving point sustains {scenario}; the best, {best.point}, is stable below {sustained} "
            f"({unit}); lower the rate or use a faster device"
        )
    if isinstance(scenario, SingleStream):
        return f"lowest {'p99' if goal == 'p99' else 'median'} latency at batch size 1: {cost}"
    if isinstance(scenario, Offline):
        return (
            f"highest throughput: {rate(size / best.curve.time_s(size))} at batch size {size}, "
            f"{rate(1 / single.curve.time_s(1))} at batch size 1"
        )
    if size == 1:
        return f"batching does not help: the {goal} response time is {cost} at batch size 1"
    wait = f" and a wait of up to {duration(best.wait_s)}" if best.wait_s else ""
    is_single_stable, single_cost_s = responses[single].stable, _cost(scenario, single, responses[single], goal)
    unbatched = duration(single_cost_s) if is_single_stable else "unbounded (overloaded)"
    return f"batches of up to {size}{wait}: the {goal} response time is {cost}, at batch size 1 it is {unbatched}"
