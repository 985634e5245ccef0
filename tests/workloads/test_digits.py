"""The workload of `make demo`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onefold import Config, Rejected
from onefold.workloads.digits import Digits


def test_training_reaches_90_percent(train: Callable[..., dict[str, float]]) -> None:
    workload = Digits()
    metrics = train(workload, workload.space.default(), epochs=6)
    assert metrics["accuracy"] > 0.9
    assert metrics["loss"] < 0.5


def test_training_is_deterministic(train: Callable[..., dict[str, float]]) -> None:
    workload = Digits()
    assert train(workload, workload.space.default(), 1) == train(workload, workload.space.default(), 1)


def test_kernel_larger_than_the_feature_map_is_rejected() -> None:
    workload = Digits()
    default = workload.space.default()
    workload.check(Config(default, depth=3, kernel=3))
    workload.check(Config(default, depth=2, kernel=5))
    with pytest.raises(Rejected, match="kernel 5 is too large for the 2x2 feature map at depth 3"):
        workload.check(Config(default, depth=3, kernel=5))


def test_momentum_is_conditional_on_sgd() -> None:
    space = Digits.space
    assert "momentum" not in space.default()
    assert space.config({**space.default(), "optimizer": "sgd", "momentum": 0.9}).momentum == 0.9
