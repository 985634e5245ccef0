"""The workload of the demo."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onefold import Config, Rejected
from onefold.workloads.digits import Digits


def test_it_learns_to_read(train: Callable[..., dict[str, float]]) -> None:
    workload = Digits()
    scored = train(workload, workload.space.default(), epochs=6)
    assert scored["accuracy"] > 0.9
    assert scored["loss"] < 0.5


def test_training_is_the_same_each_time(train: Callable[..., dict[str, float]]) -> None:
    workload = Digits()
    assert train(workload, workload.space.default(), 1) == train(workload, workload.space.default(), 1)


def test_a_kernel_must_fit_into_what_is_left_of_the_picture() -> None:
    workload = Digits()
    default = workload.space.default()
    workload.check(Config(default, depth=3, kernel=3))
    workload.check(Config(default, depth=2, kernel=5))
    with pytest.raises(Rejected, match="at depth 3 the rim of a kernel of 5 never meets a pixel"):
        workload.check(Config(default, depth=3, kernel=5))


def test_momentum_belongs_to_sgd() -> None:
    space = Digits.space
    assert "momentum" not in space.default()
    assert space.config({**space.default(), "optimizer": "sgd", "momentum": 0.9}).momentum == 0.9
