"""Dynamic batching: requests wait in a queue, and a thread serves them in batches.

A batch starts when enough samples wait or the oldest request has waited long enough. It holds requests as a whole; only
arrays that differ in nothing but their number of samples are joined.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = list[Array]
Run = Callable[[Arrays], Arrays]  # runs the model on one array per input; the batch is the first dimension


class QueueFull(Exception):
    """As many samples wait as may."""


class Stopped(Exception):
    """The server stops and takes no more requests."""


@dataclass(frozen=True)
class BatchingPolicy:
    """When a batch starts, and how much may wait.

    Without `joins`, requests are served one by one, as the queries of multi-stream are.
    """

    batch_size: int
    wait_s: float = 0.0
    joins: bool = True
    max_waiting: int = 10_000  # samples


@dataclass(eq=False)
class _Request:
    arrays: Arrays
    arrived_s: float
    answer: Future[Arrays] = field(default_factory=Future)

    @property
    def samples(self) -> int:
        return len(self.arrays[0])

    @property
    def kind(self) -> tuple[Any, ...]:
        return tuple((array.shape[1:], array.dtype) for array in self.arrays)


class Batcher:
    """Answers requests in a thread of its own, from `start` to `stop`.

    Args:
        run: Runs the model.
        policy: When a batch starts.
        on_batch: Called after each batch with its samples and seconds.
    """

    def __init__(self, run: Run, policy: BatchingPolicy, on_batch: Callable[[int, float], None]) -> None:
        self._run, self._policy, self._on_batch = run, policy, on_batch
        self._changed = threading.Condition()
        self._queue: deque[_Request] = deque()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._serve, name="onefold-batcher", daemon=True)

    @property
    def waiting(self) -> int:
        """Return the samples that wait."""
        with self._changed:
            return sum(request.samples for request in self._queue)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Serve what waits, and end the thread."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        self._thread.join()

    def submit(self, arrays: Arrays) -> Future[Arrays]:
        """Return the outputs to come for one array per input. Raises QueueFull or Stopped."""
        request = _Request(arrays, time.perf_counter())
        with self._changed:
            if self._is_stopped:
                raise Stopped
            waiting = sum(each.samples for each in self._queue)
            if waiting and waiting + request.samples > self._policy.max_waiting:
                raise QueueFull
            self._queue.append(request)
            self._changed.notify()
        return request.answer

    def _serve(self) -> None:
        while batch := self._take():
            self._answer(batch)

    def _take(self) -> list[_Request]:
        """Wait for the next batch; return an empty one at the end."""
        with self._changed:
            while not self._queue and not self._is_stopped:
                self._changed.wait()
            while self._queue and not self._is_stopped and not self._is_complete():
                left_s = self._queue[0].arrived_s + self._policy.wait_s - time.perf_counter()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            return [self._queue.popleft() for _ in range(self._batch_length())]

    def _is_complete(self) -> bool:
        """Return whether no request that arrives later would join the next batch."""
        samples = sum(request.samples for request in self._queue)
        return not self._policy.joins or samples >= self._policy.batch_size or self._batch_length() < len(self._queue)

    def _batch_length(self) -> int:
        """Return how many of the first requests make a batch: alike, and no more samples than it has."""
        length = samples = 0
        for request in self._queue:
            fits = request.kind == self._queue[0].kind and samples + request.samples <= self._policy.batch_size
            if length and not (self._policy.joins and fits):
                break
            length += 1
            samples += request.samples
        return length

    def _answer(self, batch: list[_Request]) -> None:
        wanted = [request for request in batch if request.answer.set_running_or_notify_cancel()]
        if not wanted:
            return
        start_s = time.perf_counter()
        try:
            outputs = self._run([np.concatenate(parts) if len(parts) > 1 else parts[0] for parts in _by_input(wanted)])
        except Exception as error:  # noqa: BLE001 - whatever the model raises is the answer
            if len(wanted) == 1:
                wanted[0].answer.set_exception(error)
            else:
                self._answer_each(wanted)
            return
        samples = sum(request.samples for request in wanted)
        self._on_batch(samples, time.perf_counter() - start_s)
        first = 0
        for request in wanted:
            last = first + request.samples
            request.answer.set_result([output[first:last] for output in outputs])
            first = last

    def _answer_each(self, requests: Sequence[_Request]) -> None:
        """Answer the requests of a batch that failed one by one, so that only those at fault fail."""
        for request in requests:
            start_s = time.perf_counter()
            try:
                outputs = self._run(request.arrays)
            except Exception as error:  # noqa: BLE001 - as above
                request.answer.set_exception(error)
            else:
                self._on_batch(request.samples, time.perf_counter() - start_s)
                request.answer.set_result(outputs)


def _by_input(requests: Sequence[_Request]) -> list[list[Array]]:
    return [list(parts) for parts in zip(*(request.arrays for request in requests))]
