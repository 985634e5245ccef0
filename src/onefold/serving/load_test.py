"""A chosen way of serving, tried out: real arrivals at real times, the real session behind them.

A thread lets queries arrive when the scenario says so, whether the server keeps up or not (an open loop). The calling
thread serves them as the choice says. A response counts from the moment at which the query was due, so a late
generator or a full line never makes the server look better.
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
from onefold.serving.scenarios import MultiStream, Offline, Scenario, ScenarioSettings, Server, SingleStream
from onefold.vocabulary.errors import InputError

Query = TypeVar("Query")
PATIENCE = 2.0  # an overloaded server is given so many times the asked seconds, then what waits is given up
Serve = Callable[[int], None]


class BatchingQueue(Generic[Query]):
    """Who waits to be served, in order of arrival. Safe between the thread that adds and the one that takes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[float, Query]] = deque()
        self._closed = False

    def add(self, queries: Iterable[Query]) -> None:
        """Queries that arrive now, together."""
        now_s = time.perf_counter()
        with self._changed:
            self._waiting.extend((now_s, query) for query in queries)
            self._changed.notify()

    def close(self) -> None:
        """Nobody comes any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self, batch_size: int, wait_s: float) -> list[Query]:
        """The next batch: as soon as `batch_size` wait or the oldest has waited `wait_s`; empty after the last."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            while self._waiting and len(self._waiting) < batch_size:
                left_s = self._waiting[0][0] + wait_s - time.perf_counter()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            return [self._waiting.popleft()[1] for _ in range(min(batch_size, len(self._waiting)))]


def load_test(serve: Serve, scenario: Scenario, choice: ScenarioSettings, seconds: float, seed: int = 0) -> Response:
    """Serves a scenario for so long as `choice` says; `serve(n)` runs one batch of n samples and returns when done.

    Single stream and offline ask again as soon as they are answered (offline at least once, however long that takes).
    The others run open loop. A server that does not keep up is stopped after a while: `stable` is False then and what
    was still waiting is not counted. What `serve` raises comes out of here.
    """
    if not 0 < seconds < float("inf"):
        raise InputError(f"a real run takes more than 0 s and ends; got {seconds} s")
    size = choice.point.batch_size
    match scenario:
        case SingleStream():
            return _closed_loop(serve, (1,), seconds)
        case Offline(samples=samples):
            return _closed_loop(serve, split(samples, size), seconds)
        case Server(samples_per_query=samples, queries_per_s=rate):
            due_s = np.arange(max(1, int(seconds * rate))) / rate
            load = _Load(due_s.tolist(), split(samples, min(size, samples)), 1, 0.0)
        case MultiStream(rate_per_s=rate):
            due_s = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, max(1, int(seconds * rate))))
            load = _Load(due_s.tolist(), (), size, choice.wait_s)
    return _open_loop(serve, load, seconds)


@dataclass(frozen=True, slots=True)
class _Load:
    due_s: list[float]
    batches: tuple[int, ...]  # what each query becomes; without any it is one sample of a common batch
    batch_size: int
    wait_s: float


def _closed_loop(serve: Serve, batches: tuple[int, ...], seconds: float) -> Response:
    """One query after the other, each of these batches."""
    responses: list[float] = []
    began_s = now_s = time.perf_counter()
    while not responses or now_s - began_s < seconds:
        asked_s = now_s
        for size in batches:
            serve(size)
        now_s = time.perf_counter()
        responses.append(now_s - asked_s)
    span_s = now_s - began_s
    return summary(np.array(responses), len(responses) * sum(batches), span_s, sum(responses), stable=True)


def _open_loop(serve: Serve, load: _Load, seconds: float) -> Response:
    """Queries at their times, served in the order in which they come."""
    line: BatchingQueue[float] = BatchingQueue()
    given_up = threading.Event()
    began_s = time.perf_counter()
    due_s = [began_s + due for due in load.due_s]
    generator = threading.Thread(target=_arrive, args=(line, due_s, given_up), daemon=True)
    generator.start()
    responses: list[float] = []
    busy_s, now_s = 0.0, due_s[0]
    try:
        while now_s - due_s[0] < PATIENCE * seconds and (taken := line.take(load.batch_size, load.wait_s)):
            left_s = time.perf_counter()
            for size in load.batches or (len(taken),):
                serve(size)
            now_s = time.perf_counter()
            busy_s += now_s - left_s
            responses += [now_s - asked_s for asked_s in taken]
    finally:
        given_up.set()
        generator.join()
    span_s = now_s - due_s[0]
    stable = len(responses) == len(due_s) and not falls_behind(responses, busy_s / span_s)
    samples = len(responses) * (sum(load.batches) or 1)
    return summary(np.array(responses), samples, span_s, busy_s, stable=stable)


def falls_behind(responses: list[float], utilisation: float) -> bool:
    """Whether the server never rested and late queries took far longer than early ones (three times, in an overload).

    Being busy is no sign by itself: a server that gathers what came while it worked may never rest and yet keep up.
    """
    half = len(responses) // 2
    return half > 0 and utilisation > 0.9 and sum(responses[-half:]) > 2 * sum(responses[:half])


def _arrive(line: BatchingQueue[float], due_s: list[float], given_up: threading.Event) -> None:
    for moment_s in due_s:
        left_s = moment_s - time.perf_counter()
        if left_s > 0:
            given_up.wait(left_s)
        if given_up.is_set():
            break
        line.add([moment_s])
    line.close()
