"""Workloads for tests: tiny networks that train in milliseconds."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Choice, Float, Int, Space
from onefold.vocabulary.workload import Data, Workload


class Spirals(Workload):
    """Classifies the points of two interleaved spirals."""

    space = Space(
        model=dict(width=Int(4, 32, log=True), layers=Int(1, 2)),
        training=dict(
            batch_size=Choice(16, 32),
            optimizer=Choice("adam", "sgd"),
            lr=Float(1e-3, 1e-1, log=True),
            momentum=Float(0.0, 0.95, when={"optimizer": "sgd"}),
        ),
    )

    def build(self, config: Config) -> nn.Module:
        sizes = [2, *[config.width] * config.layers]
        hidden = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.Tanh())]
        return nn.Sequential(*hidden, nn.Dropout(0.1), nn.Linear(sizes[-1], 2))

    def data(self) -> Data:
        return Data(train=spirals(300, 0), validation=spirals(100, 1), test=spirals(100, 2))


def spirals(samples: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return points of two spirals and the label of each point."""
    rng = np.random.default_rng(seed)
    label = np.arange(samples) % 2
    turn = rng.uniform(0.5, 3.0, samples)
    angle = turn * 2.0 + np.pi * label
    points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1)
    return (points + rng.normal(0, 0.1, points.shape)).astype(np.float32), label.astype(np.int64)


class Lines(Workload):
    """A linear regression, with the default loss and metric for real targets."""

    space = Space(training=dict(lr=Float(1e-3, 1e-1, log=True)))
    objective = Objective(minimize="rmse")

    def build(self, config: Config) -> nn.Module:  # noqa: ARG002 - one architecture
        return nn.Linear(3, 1)

    def data(self) -> Data:
        rng = np.random.default_rng(0)
        inputs = rng.normal(size=(200, 3)).astype(np.float32)
        return Data(train=(inputs, (inputs @ np.array([1, -2, 3], dtype=np.float32) + 1).astype(np.float32)))


class Troubled(Spirals):
    """Fails as its parameter `trouble` says."""

    space = Space(
        training=dict(trouble=Choice("none", "raise", "nan", "memory", "hang", "death"), lr=Float(1e-2, 1e-1, log=True))
    )

    def build(self, config: Config) -> nn.Module:
        return super().build(Config(config, width=8, layers=1))

    def step(self, model: Any, batch: Any, optimizer: Any, config: Config) -> Any:
        loss = super().step(model, batch, optimizer, config)
        if config.trouble == "raise":
            raise RuntimeError("the gradient is on strike")
        if config.trouble == "nan":
            return loss * float("nan")
        if config.trouble == "memory":
            torch.zeros(2**36)
        if config.trouble == "hang":
            time.sleep(3600)
        if config.trouble == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        return loss
