"""Serving scenarios: how requests arrive.

MLPerf Inference has the same four arrival processes, but calls `server` MultiStream and `multi-stream` Server.

| text                | meaning |
| ------------------- | ------- |
| `single-stream`     | one sample at a time; the next arrives when the last is answered |
| `server:8@20`       | queries of 8 samples at a fixed rate of 20 per second: how to split them? |
| `multi-stream:100`  | single samples, Poisson arrivals at 100 per second: which batch size and maximum wait? |
| `offline`           | all samples at once, for maximum throughput; `offline:5000` says how many |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from onefold.vocabulary.errors import InputError, suggestion

GRAMMAR = (
    "single-stream, server:N@Q (queries of N samples, Q per second), multi-stream:R (R samples per second) "
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
class Server:
    """Queries of several samples at a fixed rate."""

    samples_per_query: int
    queries_per_s: float

    def __post_init__(self) -> None:
        _check_positive(samples_per_query=self.samples_per_query, queries_per_s=self.queries_per_s)

    def __str__(self) -> str:
        return f"server:{self.samples_per_query}@{_number(self.queries_per_s)}"


@dataclass(frozen=True, slots=True)
class MultiStream:
    """Single samples with Poisson arrivals."""

    rate_per_s: float

    def __post_init__(self) -> None:
        _check_positive(rate_per_s=self.rate_per_s)

    def __str__(self) -> str:
        return f"multi-stream:{_number(self.rate_per_s)}"


@dataclass(frozen=True, slots=True)
class Offline:
    """All samples at once."""

    samples: int = DEFAULT_OFFLINE_SAMPLES

    def __post_init__(self) -> None:
        _check_positive(samples=self.samples)

    def __str__(self) -> str:
        return "offline" if self.samples == DEFAULT_OFFLINE_SAMPLES else f"offline:{self.samples}"


Scenario = SingleStream | Server | MultiStream | Offline

_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_FORMS: dict[str, tuple[str, Callable[..., Scenario]]] = {
    "single-stream": ("", SingleStream),
    "server": (rf":(\d+)@{_NUMBER}", lambda samples, rate: Server(int(samples), float(rate))),
    "multi-stream": (rf":{_NUMBER}", lambda rate: MultiStream(float(rate))),
    "offline": (r"(?::(\d+))?", lambda samples: Offline(int(samples)) if samples else Offline()),
}


def parse_scenario(text: str) -> Scenario:
    """Return the scenario of a text such as `server:8@20`; `str` is the inverse. Raises InputError for other texts."""
    name = text.strip().partition(":")[0]
    if name not in _FORMS:
        raise InputError(f"a scenario must be {GRAMMAR}; got {text!r}{suggestion(name, _FORMS)}")
    form, make = _FORMS[name]
    match = re.fullmatch(name + form, text.strip())
    if match is None:
        raise InputError(f"a scenario must be {GRAMMAR}; got {text!r}")
    return make(*match.groups())


def is_open_loop(scenario: Scenario) -> bool:
    """Return whether requests arrive independently of the answers, so that they queue."""
    return isinstance(scenario, (Server, MultiStream))


def _number(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def _check_positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} of a scenario must be above 0 and finite, got {value}")
