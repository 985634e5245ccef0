"""What tests of kernels share: this machine as a target, warm processes, and the operators of one tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_graphs import answers_of

from onefold.device.host import describe
from onefold.kernels.bench import Bench
from onefold.kernels.graph import USUAL_LEVEL
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.schedule_space import ScheduleSpace
from onefold.kernels.targets import Target, target_of
from onefold.serving.export import samples_beside
from onefold.vocabulary.kernels import Operator


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The networks here are so small that more threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def here() -> Target:
    """One core of this machine."""
    return target_of(describe(), 1, is_host=True)


@pytest.fixture(scope="session")
def bench(here: Target) -> Iterator[Bench]:
    """Processes that stay warm over all tests."""
    with Bench(here, builders=1) as bench:
        yield bench


@pytest.fixture(scope="session")
def sample(tiny: Path) -> np.ndarray[Any, Any]:
    """One input of the tiny model."""
    with np.load(samples_beside(tiny)) as kept:
        return np.asarray(kept["input0"][:1])


@pytest.fixture(scope="session")
def whole(tiny: Path, sample: np.ndarray[Any, Any], bench: Bench) -> ModelCompiler:
    """The tiny model as loops; not to be measured, since that changes it."""
    return ModelCompiler("tiny", tiny, [sample], answers_of(tiny, [sample]), bench, USUAL_LEVEL)


@pytest.fixture(scope="session")
def operators(whole: ModelCompiler) -> dict[str, tuple[Operator, Any]]:
    """Of the tiny model, by kind."""
    return {operator.kind: (operator, module) for operator, module in whole.operators}


@pytest.fixture(params=["conv2d", "mean", "matmul", "transpose"])
def space(request: pytest.FixtureRequest, operators: dict[str, tuple[Operator, Any]], here: Target) -> ScheduleSpace:
    """The ways to implement each of them."""
    return ScheduleSpace(*operators[request.param], here)
