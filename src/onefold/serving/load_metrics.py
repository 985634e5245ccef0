"""Metrics of the load that a deployment is set up for: response times and rates by scenario, and the samples to serve.

`response_s`, `response_p99_s`, `sustained_per_s` and `needed_per_s` are of the first scenario of a study. With several
scenarios each has its own too, such as `server_100_response_s` and `multi_stream_8_20_response_s`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onefold.serving.scenario_settings import choose_settings, sustained_per_s
from onefold.serving.scenarios import MultiStream, Scenario, Server, is_open_loop, parse_scenario
from onefold.vocabulary.ratios import SERVED_SAMPLES
from onefold.vocabulary.records import Metrics
from onefold.vocabulary.serving import LOAD_METRICS, RATE_METRICS, Surface, on_devices


def needed_per_s(scenario: Scenario) -> float:
    """Return the arrivals per second that a scenario needs, in its own unit: samples, or queries of several."""
    match scenario:
        case MultiStream(queries_per_s=rate_per_s) | Server(rate_per_s=rate_per_s):
            return rate_per_s
        case _:
            return 0.0


def load_metric_names(scenarios: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that these scenarios have on one device."""
    names = []
    for prefix, scenario in _prefixed(scenarios):
        names += [prefix + name for name in LOAD_METRICS if is_open_loop(scenario) or name not in RATE_METRICS]
    return tuple(names)


@dataclass(frozen=True)
class LoadMetrics:
    """Computes the metrics of the load that an objective names, for each architecture once.

    Args:
        scenarios: The scenarios of the study.
        goal: Whether their mean or p99 response time is minimized.
        served_samples: The samples that ratios count.
        wanted: The metrics to compute, with devices; a simulation takes about 0.3 s.
    """

    scenarios: Sequence[str]
    goal: str
    served_samples: float | None
    wanted: Collection[str]
    _known: dict[tuple[str, str, float], Metrics] = field(default_factory=dict)

    def metrics(self, devices: Sequence[str], trial: int, surfaces: Mapping[tuple[int, str], Surface]) -> Metrics:
        """Return those metrics of a trial that are wanted and known."""
        wanted = set(self.wanted)
        known = on_devices(devices, trial, surfaces, lambda surface, device: self._of(surface, device, wanted))
        if SERVED_SAMPLES in wanted and self.served_samples is not None:
            known[SERVED_SAMPLES] = self.served_samples
        return {name: value for name, value in known.items() if name in wanted}

    def _of(self, surface: Surface, device: str, wanted: set[str]) -> Metrics:
        at = f"@{device}" if device else ""
        return {
            f"{prefix}{name}{at}": value
            for prefix, scenario in _prefixed(self.scenarios)
            if any(f"{prefix}{name}{at}" in wanted for name in LOAD_METRICS)
            for name, value in self._simulated(surface, scenario).items()
        }

    def _simulated(self, surface: Surface, scenario: Scenario) -> Metrics:
        key = str(scenario), surface.device, hash(surface.served)
        if key not in self._known:
            self._known[key] = scenario_metrics(surface, scenario, self.goal)
        return self._known[key]


def scenario_metrics(surface: Surface, scenario: Scenario, goal: str = "mean") -> Metrics:
    """Return the simulated metrics of a scenario at the settings chosen for it.

    Response times are infinite if no serving point sustains the scenario.
    """
    settings = choose_settings(scenario, surface.served, goal)
    response = settings.predicted
    metrics = {
        "response_s": response.mean_s if response.stable else math.inf,
        "response_p99_s": response.p99_s if response.stable else math.inf,
    }
    if is_open_loop(scenario):
        metrics["sustained_per_s"] = sustained_per_s(scenario, surface.served)
        metrics["needed_per_s"] = needed_per_s(scenario)
    return metrics


def _prefixed(scenarios: Sequence[str]) -> Iterable[tuple[str, Scenario]]:
    """Yield the scenarios with the prefixes of their metrics: none for the first, and one for each of several."""
    parsed = [parse_scenario(text) for text in scenarios]
    if parsed:
        yield "", parsed[0]
    if len(parsed) > 1:
        for scenario in parsed:
            yield re.sub(r"\W", "_", str(scenario)) + "_", scenario
