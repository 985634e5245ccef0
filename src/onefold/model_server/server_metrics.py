"""The metrics of a server in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from onefold.serving.scenario_settings import ScenarioSettings

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SAMPLES = (1, 2, 4, 8, 16, 32, 64, 128)


class ServerMetrics:
    """Counts requests, samples and batches, beside what the deployment promises."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, choice: ScenarioSettings) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("onefold_requests", "Requests by status of the reply", ["status"], registry=registry)
        self._response = Histogram(
            "onefold_response_seconds", "From the whole request to its outputs", buckets=SECONDS, registry=registry
        )
        self._batch = Histogram(
            "onefold_batch_seconds", "Time of the model per batch", buckets=SECONDS, registry=registry
        )
        self._samples = Histogram("onefold_batch_samples", "Samples per batch", buckets=SAMPLES, registry=registry)
        promised = Gauge(
            "onefold_promised_response_seconds",
            "Simulated response time of the scenario",
            ["scenario", "statistic"],
            registry=registry,
        )
        promised.labels(choice.scenario, "mean").set(choice.predicted.mean_s)
        promised.labels(choice.scenario, "p99").set(choice.predicted.p99_s)

    def watch_queue(self, waiting: Callable[[], int]) -> None:
        """Report how many samples wait whenever the metrics are read."""
        Gauge("onefold_waiting_samples", "Samples in the queue", registry=self._registry).set_function(waiting)

    def count_reply(self, status: int, seconds: float | None = None) -> None:
        """Count a reply; `seconds` is the response time of a prediction."""
        self._requests.labels(str(status)).inc()
        if seconds is not None:
            self._response.observe(seconds)

    def count_batch(self, samples: int, seconds: float) -> None:
        """Count a batch."""
        self._batch.observe(seconds)
        self._samples.observe(samples)

    def text(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        return bytes(generate_latest(self._registry))
