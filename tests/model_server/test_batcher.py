"""Dynamic batching of requests, with a model that records its batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from onefold.model_server.batcher import Arrays, Batcher, BatchingPolicy, QueueFull, Stopped

WAIT_S = 30


class Model:
    """Doubles its input; refuses batches with a negative number. Every batch waits for `go`."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.go, self.began = threading.Event(), threading.Event()

    def __call__(self, arrays: Arrays) -> Arrays:
        self.began.set()
        assert self.go.wait(WAIT_S)
        if (arrays[0] < 0).any():
            raise ValueError("negative")
        self.sizes.append(len(arrays[0]))
        return [2 * arrays[0]]


@contextmanager
def batcher(policy: BatchingPolicy, model: Model) -> Iterator[Batcher]:
    opened = Batcher(model, policy, lambda samples, seconds: None)
    opened.start()
    try:
        yield opened
    finally:
        model.go.set()
        opened.stop()


def samples(*values: float) -> Arrays:
    return [np.array(values)]


def served(policy: BatchingPolicy, requests: list[Arrays]) -> list[int]:
    """Return the sizes of the batches of requests that wait while a first one of a single sample is served."""
    model = Model()
    with batcher(policy, model) as opened:
        first = opened.submit(samples(0))
        assert model.began.wait(WAIT_S)
        answers = [opened.submit(request) for request in requests]
        model.go.set()
        assert first.result(WAIT_S)[0].tolist() == [0]
        for request, answer in zip(requests, answers):
            assert answer.result(WAIT_S)[0].tolist() == (2 * request[0]).tolist()
    return model.sizes[1:]


def test_waiting_requests_are_joined_up_to_the_batch_size() -> None:
    assert served(BatchingPolicy(4), [samples(i) for i in range(6)]) == [4, 2]


def test_requests_stay_whole() -> None:
    assert served(BatchingPolicy(4), [samples(1, 2, 3), samples(4, 5), samples(6), samples(*range(9))]) == [3, 3, 9]


def test_queries_are_not_joined_if_the_scenario_keeps_them_apart() -> None:
    assert served(BatchingPolicy(4, joins=False), [samples(1, 2), samples(3)]) == [2, 1]


def test_arrays_of_different_shapes_are_not_joined() -> None:
    assert served(BatchingPolicy(4), [[np.zeros((1, 3))], [np.zeros((1, 3))], [np.zeros((1, 4))]]) == [2, 1]


def test_only_the_request_at_fault_fails() -> None:
    model = Model()
    with batcher(BatchingPolicy(8), model) as opened:
        first = opened.submit(samples(0))
        good, bad, other = (opened.submit(samples(value)) for value in (1, -1, 3))
        model.go.set()
        assert first.result(WAIT_S)
        assert good.result(WAIT_S)[0].tolist() == [2]
        assert other.result(WAIT_S)[0].tolist() == [6]
        with pytest.raises(ValueError, match="negative"):
            bad.result(WAIT_S)


def test_an_incomplete_batch_waits_no_longer_than_the_policy() -> None:
    model = Model()
    model.go.set()
    with batcher(BatchingPolicy(100, wait_s=0.01), model) as opened:
        assert opened.submit(samples(1)).result(WAIT_S)[0].tolist() == [2]


def test_full_queue_refuses_and_a_stop_serves_what_waits() -> None:
    model = Model()
    with batcher(BatchingPolicy(1, max_waiting=2), model) as opened:
        opened.submit(samples(0))
        assert model.began.wait(WAIT_S)
        answers = [opened.submit(samples(value)) for value in (1, 2)]
        assert opened.waiting == 2
        with pytest.raises(QueueFull):
            opened.submit(samples(3))
    assert [answer.result(0)[0].tolist() for answer in answers] == [[2], [4]]
    with pytest.raises(Stopped):
        opened.submit(samples(4))
