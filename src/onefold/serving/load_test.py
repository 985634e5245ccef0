"""A load test of chosen settings: real arrivals, a real batching queue and the real inference session behind it.

A generator thread issues queries when the arrival process says so, whether or not the server keeps up (open loop); the
calling thread serves them. Response times count from the scheduled arrival, so that a late generator or a full queue
never makes the server look better (no coordinated omission).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from onefold.serving.queue_simulation import Response, split, summary
from onefold.serving.scenario_settings import ScenarioSettings
from onefold.serving.scenarios import MultiStream, Offline, Scenario, Server, SingleStream
from onefold.vocabulary.errors import InputError

Query = TypeVar("Query")
OVERLOAD_FACTOR = 2.0  # an overloaded test stops after this multiple of its duration; queued queries are dropped
Serve = Callable[[int], None]


class BatchingQueue(Generic[Query]):
    """A queue that hands out batches in order of arrival. Thread-safe between one producer and one consumer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[tuple[float, Query]] = deque()
        self._closed = False

    def add(self, queries: Iterable[Query]) -> None:
        """Enqueue queries that arrive now."""
        now_s = time.perf_counter()
        with self._changed:
            self._queue.extend((now_s, query) for query in queries)
            self._changed.notify()

    def close(self) -> None:
        """Mark the arrival process as ended."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self, batch_size: int, wait_s: float) -> list[Query]:
        """Wait for the next batch and return it; an empty list once the queue is closed and drained.

        A batch is ready when `batch_size` queries are queued or the oldest has waited `wait_s`.
        """
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            while self._queue and len(self._queue) < batch_size:
                left_s = self._queue[0][0] + wait_s - time.perf_counter()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            return [self._queue.popleft()[1] for _ in range(min(batch_size, len(self._queue)))]


def load_test(serve: Serve, scenario: Scenario, settings: ScenarioSettings, seconds: float, seed: int = 0) -> Response:
    """Serve a scenario with these settings for about `seconds` and return the response times.

    `serve(n)` runs one batch of n samples and returns when it is done; its exceptions propagate. Single-stream and
    offline are closed loops (offline runs at least once), the others open loops. A server that does not keep up is
    stopped after a while: then `stable` is False and queued queries are not counted.
    """
    if not 0 < seconds < float("inf"):
        raise InputError(f"seconds must be above 0 and finite, got {seconds}")
    size = settings.point.batch_size
    match scenario:
        case SingleStream():
            return _closed_loop(serve, (1,), seconds)
        case Offline(samples=samples):
            return _closed_loop(serve, split(samples, size), seconds)
        case MultiStream(samples_per_query=samples, queries_per_s=rate):
            due_s = np.arange(max(1, int(seconds * rate))) / rate
            load = _Load(due_s.tolist(), split(samples, min(size, samples)), 1, 0.0)
        case Server(rate_per_s=rate):
            due_s = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, max(1, int(seconds * rate))))
            load = _Load(due_s.tolist(), (), size, settings.wait_s)
    return _open_loop(serve, load, seconds)


@dataclass(frozen=True, slots=True)
class _Load:
    """An arrival process and the batching policy."""

    due_s: list[float]
    batches: tuple[int, ...]  # that each query is split into; empty: each query is one sample of a dynamic batch
    batch_size: int
    wait_s: float


def _closed_loop(serve: Serve, batches: tuple[int, ...], seconds: float) -> Response:
    """Issue each query when the previous one is answered."""
    responses: list[float] = []
    start_s = now_s = time.perf_counter()
    while not responses or now_s - start_s < seconds:
        issued_s = now_s
        for size in batches:
            serve(size)
        now_s = time.perf_counter()
        responses.append(now_s - issued_s)
    span_s = now_s - start_s
    return summary(np.array(responses), len(responses) * sum(batches), span_s, sum(responses), stable=True)


def _open_loop(serve: Serve, load: _Load, seconds: float) -> Response:
    """Issue queries at their scheduled times and serve them first come, first served."""
    queue: BatchingQueue[float] = BatchingQueue()
    stopped = threading.Event()
    start_s = time.perf_counter()
    due_s = [start_s + due for due in load.due_s]
    generator = threading.Thread(target=_issue, args=(queue, due_s, stopped), daemon=True)
    generator.start()
    responses: list[float] = []
    busy_s, now_s = 0.0, due_s[0]
    try:
        while now_s - due_s[0] < OVERLOAD_FACTOR * seconds and (batch := queue.take(load.batch_size, load.wait_s)):
            batch_start_s = time.perf_counter()
            for size in load.batches or (len(batch),):
                serve(size)
            now_s = time.perf_counter()
            busy_s += now_s - batch_start_s
            responses += [now_s - query_due_s for query_due_s in batch]
    finally:
        stopped.set()
        generator.join()
    span_s = now_s - due_s[0]
    stable = len(responses) == len(due_s) and not falls_behind(responses, busy_s / span_s)
    samples = len(responses) * (sum(load.batches) or 1)
    return summary(np.array(responses), samples, span_s, busy_s, stable=stable)


def falls_behind(responses: list[float], utilization: float) -> bool:
    """Return whether the server was always busy and late queries took twice as long as early ones.

    High utilization alone is no overload: with dynamic batching a server may always be busy and still keep up.
    """
    half = len(responses) // 2
    return half > 0 and utilization > 0.9 and sum(responses[-half:]) > 2 * sum(responses[:half])


def _issue(queue: BatchingQueue[float], due_s: list[float], stopped: threading.Event) -> None:
    for query_due_s in due_s:
        left_s = query_due_s - time.perf_counter()
        if left_s > 0:
            stopped.wait(left_s)
        if stopped.is_set():
            break
        queue.add([query_due_s])
    queue.close()
