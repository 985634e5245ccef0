"""Ways in which a model is asked, and the serving point that answers each of them best.

| text                | meaning |
| ------------------- | ------- |
| `single-stream`     | one sample after the other; the next one comes when the last one is answered |
| `server:8@20`       | queries of 8 samples, 20 a second at a fixed rate: how to split them? |
| `multi-stream:100`  | single samples, 100 a second at random: how many to gather, and how long to wait for them? |
| `offline`           | all samples are there at once: as many a second as possible; `offline:5000` says how many |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from onefold.serving.point_prediction import interpolate_batch_size
from onefold.serving.queue_simulation import (
    IdlePenalty,
    LatencyCurve,
    Response,
    query_s,
    simulate_poisson,
    simulate_server,
)
from onefold.vocabulary.errors import InputError, suggestion
from onefold.vocabulary.serving import Served, ServingPoint

GRAMMAR = (
    "single-stream, server:N@Q (N samples a query, Q queries a second), multi-stream:R (R samples a second) "
    "or offline (offline:N for N samples)"
)
GOALS = ("mean", "p99")
USUAL = ("single-stream", "offline")  # where nobody says how samples come
SOME_SAMPLES = 1000
SCREENED, SIMULATED = 3_000, 20_000  # queries: to find the few good policies, and to tell these apart
FINALISTS = 6
ALIKE, ALIKE_UNDER_LOAD = 0.01, 0.05  # policies closer than this are one to noisy measurements: the simpler one wins
WAITS = (0.25, 0.5, 1.0, 2.0)  # of what it takes to gather a batch or to serve it, whichever is less


@dataclass(frozen=True, slots=True)
class SingleStream:
    """One sample after the other."""

    def __str__(self) -> str:
        return "single-stream"


@dataclass(frozen=True, slots=True)
class Server:
    """Queries of several samples at a fixed rate."""

    samples_per_query: int
    queries_per_s: float

    def __post_init__(self) -> None:
        _positive(samples_per_query=self.samples_per_query, queries_per_s=self.queries_per_s)

    def __str__(self) -> str:
        return f"server:{self.samples_per_query}@{_number(self.queries_per_s)}"


@dataclass(frozen=True, slots=True)
class MultiStream:
    """Single samples at random times (Poisson arrivals)."""

    rate_per_s: float

    def __post_init__(self) -> None:
        _positive(rate_per_s=self.rate_per_s)

    def __str__(self) -> str:
        return f"multi-stream:{_number(self.rate_per_s)}"


@dataclass(frozen=True, slots=True)
class Offline:
    """All samples at once."""

    samples: int = SOME_SAMPLES

    def __post_init__(self) -> None:
        _positive(samples=self.samples)

    def __str__(self) -> str:
        return "offline" if self.samples == SOME_SAMPLES else f"offline:{self.samples}"


Scenario = SingleStream | Server | MultiStream | Offline


@dataclass(frozen=True, slots=True)
class ScenarioSettings:
    """How to serve in a scenario, and what to expect. `predicted` and `batch_one` are simulated, not measured."""

    scenario: str
    point: ServingPoint  # its batch size is the most samples that go into one batch
    wait_s: float  # how long the oldest sample may wait for others to fill the batch
    predicted: Response
    batch_one: Response  # the same scenario, served one by one at the best point for that
    why: str
    expected: Served | None = None  # of one batch at this point, one after the other
    throughput_per_s: float | None = None  # samples of such batches, and the energy of each
    energy_per_sample_j: float | None = None
    confirmed: Response | None = None  # the scenario, served for real


@dataclass(frozen=True, slots=True)
class _Policy:
    point: ServingPoint
    wait_s: float
    curve: LatencyCurve


_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_FORMS: dict[str, tuple[str, Callable[..., Scenario]]] = {
    "single-stream": ("", SingleStream),
    "server": (rf":(\d+)@{_NUMBER}", lambda samples, rate: Server(int(samples), float(rate))),
    "multi-stream": (rf":{_NUMBER}", lambda rate: MultiStream(float(rate))),
    "offline": (r"(?::(\d+))?", lambda samples: Offline(int(samples)) if samples else Offline()),
}


def is_load(scenario: Scenario) -> bool:
    """Whether samples come when they like; elsewhere the next one waits for an answer, or all are there."""
    return isinstance(scenario, (Server, MultiStream))


def scenario(text: str) -> Scenario:
    """The scenario that a text such as `server:8@20` means; `str` of it gives the text back."""
    name = text.strip().partition(":")[0]
    if name not in _FORMS:
        raise InputError(f"a scenario is {GRAMMAR}; got {text!r}{suggestion(name, _FORMS)}")
    form, make = _FORMS[name]
    match = re.fullmatch(name + form, text.strip())
    if match is None:
        raise InputError(f"a scenario is {GRAMMAR}; got {text!r}")
    return make(*match.groups())


def choose(scenario: Scenario, served: Sequence[Served], goal: str = "mean", seed: int = 0) -> ScenarioSettings:
    """The best measured way to serve a scenario, by its mean or its p99 response; offline by throughput.

    Threads, graph level, execution and precision go together as they were measured. Serving one by one is always
    among the candidates, so the choice is never predicted to be worse than that. A pure function of its arguments.
    """
    if goal not in GOALS:
        raise InputError(f"the goal of a scenario is {' or '.join(GOALS)}; got {goal!r}{suggestion(goal, GOALS)}")
    curves = _curves(served)
    if not any(curve.batch_sizes[0] == 1 for curve in curves.values()):
        raise InputError("a choice compares with single samples: measure at least one point with batch size 1")

    def rank(policy: _Policy, response: Response) -> tuple[bool, float]:
        """Those that keep up first, by what the goal asks; then the ones that nearly do."""
        if response.stable:
            return False, _cost(scenario, response, goal)
        return True, 1 / largest_rate(scenario, policy.curve, policy.point.batch_size)

    screened = [(policy, rank(policy, found)) for policy, found in _screen(scenario, curves, rank, seed)]
    screened.sort(key=lambda pair: pair[1])
    singles = [policy for policy, _ in screened if policy.point.batch_size == 1]
    finalists = dict.fromkeys([*(policy for policy, _ in screened[:FINALISTS]), *singles[:1]])
    known = {policy: _play(scenario, policy, SIMULATED, seed) for policy in finalists}
    ranks = {policy: rank(policy, response) for policy, response in known.items()}
    lateness, least = min(ranks.values())
    alike = ALIKE_UNDER_LOAD if is_load(scenario) and not lateness else ALIKE
    near = [policy for policy, (late, cost) in ranks.items() if late == lateness and cost <= least * (1 + alike)]
    best = min(near, key=lambda policy: (policy.point.batch_size, policy.wait_s, ranks[policy]))
    single = min((policy for policy in known if policy.point.batch_size == 1), key=lambda policy: ranks[policy])
    why = _why(scenario, best, known[best], known[single], goal)
    found = ScenarioSettings(str(scenario), best.point, best.wait_s, known[best], known[single], why)
    expected = interpolate_batch_size(served, best.point)
    if expected is None:
        return found
    energy_j, rate = expected.energy_per_sample_j, expected.throughput_per_s
    return replace(found, expected=expected, throughput_per_s=rate, energy_per_sample_j=energy_j)


def predict(
    scenario: Scenario,
    curve: LatencyCurve,
    batch_size: int,
    wait_s: float = 0.0,
    queries: int = SIMULATED,
    seed: int = 0,
) -> Response:
    """What serving in batches of up to `batch_size` would be like. Single stream ignores the policy."""
    match scenario:
        case SingleStream():
            slow90, slow99 = curve.spread(1)
            median_s, mean_s = curve.time_s(1), curve.mean_s(1)
            return Response(mean_s, median_s, median_s * slow90, median_s * slow99, 1 / mean_s, 1.0, True, queries)
        case Server(samples_per_query=samples, queries_per_s=rate):
            return simulate_server(curve, samples, 1 / rate, batch_size, queries, seed)
        case MultiStream(rate_per_s=rate):
            return simulate_poisson(curve, rate, batch_size, wait_s, queries, seed)
        case Offline(samples=samples):
            time_s = query_s(curve, samples, batch_size)
            return Response(time_s, time_s, time_s, time_s, samples / time_s, 1.0, True, 1)


def largest_rate(scenario: Scenario, curve: LatencyCurve, batch_size: int) -> float:
    """The rate, in the scenario's own unit, below which a server keeps up; infinite where the asker waits."""
    match scenario:
        case Server(samples_per_query=samples):
            return 1 / query_s(curve, samples, min(batch_size, samples))
        case MultiStream():
            return curve.capacity_per_s(batch_size)
        case _:
            return math.inf


def _curves(served: Sequence[Served]) -> dict[ServingPoint, LatencyCurve]:
    """A curve for each group of points that differ in nothing but the batch size."""
    groups: dict[ServingPoint, list[Served]] = {}
    for one in served:
        groups.setdefault(replace(one.point, batch_size=1), []).append(one)
    rests = IdlePenalty.of(served)  # for all alike, or those without would look better
    return {point: LatencyCurve.of(members, rests) for point, members in groups.items()}


def _sizes(scenario: Scenario, curve: LatencyCurve) -> list[int]:
    """The batch sizes to look at: the measured ones that the scenario can fill, and a whole query in one."""
    match scenario:
        case SingleStream():
            return [size for size in curve.batch_sizes if size == 1]
        case Server(samples_per_query=most) | Offline(samples=most):
            sizes = {size for size in curve.batch_sizes if size <= most}
            return sorted(sizes | ({most} if most <= curve.largest else set()))
        case MultiStream():
            return list(curve.batch_sizes)


def _screen(
    scenario: Scenario,
    curves: dict[ServingPoint, LatencyCurve],
    rank: Callable[[_Policy, Response], tuple[bool, float]],
    seed: int,
) -> Iterator[tuple[_Policy, Response]]:
    """Every policy with a short simulation; longer waits only while they help."""
    for group, curve in curves.items():
        for size in _sizes(scenario, curve):
            policy = _Policy(replace(group, batch_size=size), 0.0, curve)
            response = _play(scenario, policy, SCREENED, seed)
            yield policy, response
            if not isinstance(scenario, MultiStream) or size == 1:
                continue
            unit_s = min((size - 1) / scenario.rate_per_s, curve.time_s(size))
            for share in WAITS:
                longer = replace(policy, wait_s=share * unit_s)
                found = _play(scenario, longer, SCREENED, seed)
                if rank(longer, found) >= rank(policy, response):
                    break
                policy, response = longer, found
                yield policy, response


def _play(scenario: Scenario, policy: _Policy, queries: int, seed: int) -> Response:
    return predict(scenario, policy.curve, policy.point.batch_size, policy.wait_s, queries, seed)


def _cost(scenario: Scenario, response: Response, goal: str) -> float:
    if isinstance(scenario, Offline):
        return 1 / response.throughput_per_s
    if goal == "p99":
        return response.p99_s
    return response.p50_s if isinstance(scenario, SingleStream) else response.mean_s


def _why(scenario: Scenario, best: _Policy, found: Response, single: Response, goal: str) -> str:
    """The choice in one sentence, with the figures that made it."""
    size = best.point.batch_size
    cost = _ms(_cost(scenario, found, goal))
    if not found.stable:
        unit = "queries" if isinstance(scenario, Server) else "samples"
        return (
            f"overloaded: {scenario} asks for more than any point can serve; the best, {best.point}, keeps up below "
            f"{largest_rate(scenario, best.curve, size):.4g} {unit} a second; ask for less, or use a faster device"
        )
    if isinstance(scenario, SingleStream):
        return f"the shortest {'p99' if goal == 'p99' else 'median'} of single samples: {cost}"
    if isinstance(scenario, Offline):
        return (
            f"the most samples a second: {found.throughput_per_s:.4g} in batches of {size}, "
            f"{single.throughput_per_s:.4g} one by one"
        )
    if size == 1:
        return f"batches do not pay: one by one the {goal} response is {cost}"
    how = f"batches of up to {size}" + (f", waiting up to {_ms(best.wait_s)} to fill" if best.wait_s else "")
    against = _ms(_cost(scenario, single, goal)) if single.stable else "ever longer, since that does not keep up"
    return f"{how}: the {goal} response is {cost}; one by one it is {against}"


def _ms(time_s: float) -> str:
    return f"{time_s * 1e3:.3g} ms"


def _number(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def _positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} of a scenario is more than 0 and finite; got {value}")
