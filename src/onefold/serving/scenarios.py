"""Serving scenarios: how requests arrive. The names are those of MLPerf LoadGen.

| text                | meaning |
| ------------------- | ------- |
| `single-stream`     | one sample at a time; the next arrives when the last is answered |
| `multi-stream:8@20` | queries of 8 samples at a fixed rate of 20 per second: how to split them? |
| `server:100`        | single samples, Poisson arrivals at 100 per second: which batch size and maximum wait? |
| `offline`           | all samples at once, for maximum throughput; `offline:5000` says how many |

LoadGen has sent the queries of MultiStream back to back since MLPerf Inference 2.0; before, at a fixed rate as here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from onefold.vocabulary.errors import InputError, suggestion

GRAMMAR = (
    "single-stream, multi-stream:N@Q (queries of N samples, Q per second), server:R (R samples per second) "
    "or offline (offline:N for N samples)"
)
DEFAULT_SCENARIOS = ("single-stream", "offline")
DEFAULT_OFFLINE_SAMPLES = 1000


@dataclass(frozen=True, slots=True)
class SingleStream:
    """One sample at a time, in a closed loop."""

    def __str__(self) -> str:
        return "single-stream"


@dataclass(frozen=True, slots=True)
class MultiStream:
    """Queries of several samples at a fixed rate."""

    samples_per_query: int
    queries_per_s: float

    def __post_init__(self) -> None:
        _check_positive(samples_per_query=self.samples_per_query, queries_per_s=self.queries_per_s)

    def __str__(self) -> str:
        return f"multi-stream:{self.samples_per_query}@{_number(self.queries_per_s)}"


@dataclass(frozen=True, slots=True)
class Server:
    """Single samples with Poisson arrivals."""

    rate_per_s: float

    def __post_init__(self) -> None:
        _check_positive(rate_per_s=self.rate_per_s)

    def __str__(self) -> str:
        return f"server:{_number(self.rate_per_s)}"


@dataclass(frozen=True, slots=True)
class Offline:
    """All samples at once."""

    samples: int = DEFAULT_OFFLINE_SAMPLES

    def __post_init__(self) -> None:
        _check_positive(samples=self.samples)

    def __str__(self) -> str:
        return "offline" if self.samples == DEFAULT_OFFLINE_SAMPLES else f"offline:{self.samples}"


Scenario = SingleStream | MultiStream | Server | Offline

_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_FORMS: dict[str, tuple[str, Callable[..., Scenario]]] = {
    "single-stream": ("", SingleStream),
    "multi-stream": (rf":(\d+)@{_NUMBER}", lambda samples, rate: MultiStream(int(samples), float(rate))),
    "server": (rf":{_NUMBER}", lambda rate: Server(float(rate))),
    "offline": (r"(?::(\d+))?", lambda samples: Offline(int(samples)) if samples else Offline()),
}

_SWAPPED = re.compile(r"\b(?:(?P<query>server):(?=\d+@)|multi-stream:(?=[\d.]+(?:e[+-]?\d+)?(?![\d.e@])))")


def parse_scenario(text: str) -> Scenario:
    """Return the scenario of a text such as `server:100`; `str` is the inverse. Raises InputError for other texts."""
    name, _, load = text.strip().partition(":")
    if name not in _FORMS:
        raise InputError(f"a scenario must be {GRAMMAR}; got {text!r}{suggestion(name, _FORMS)}")
    form, make = _FORMS[name]
    match = re.fullmatch(name + form, text.strip())
    if match is None:
        raise InputError(f"a scenario must be {GRAMMAR}; got {text!r}{_other_scenario(load)}")
    return make(*match.groups())


def rename_swapped(text: str) -> str:
    """Return a text with `server:8@20` as `multi-stream:8@20` and `multi-stream:100` as `server:100`.

    Versions before 0.2.0 had the two names swapped. Texts with the present names stay as they are.
    """
    return _SWAPPED.sub(lambda match: "multi-stream:" if match["query"] else "server:", text)


def _other_scenario(load: str) -> str:
    """Return a question after the open-loop scenario that takes this load; empty if none does."""
    fits = [name for name in ("multi-stream", "server") if load and re.fullmatch(_FORMS[name][0], f":{load}")]
    return f"; did you mean '{fits[0]}:{load}'?" if fits else ""


def is_open_loop(scenario: Scenario) -> bool:
    """Return whether requests arrive independently of the answers, so that they queue."""
    return isinstance(scenario, (MultiStream, Server))


def _number(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def _check_positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} of a scenario must be above 0 and finite, got {value}")
