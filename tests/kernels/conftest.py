"""Fixtures of kernel tests: this machine as a target, warm workers, and the operators of one tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_graphs import outputs_of

from onefold.device.host import describe
from onefold.kernels.candidate_runner import CandidateRunner
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.schedule_space import ScheduleSpace
from onefold.kernels.targets import Target, target_of
from onefold.serving.export import samples_beside
from onefold.vocabulary.kernels import DEFAULT_GRAPH_LEVEL, Operator


@pytest.fixture(scope="session")
def here() -> Target:
    """One core of this machine."""
    return target_of(describe(), 1, is_host=True)


@pytest.fixture(scope="session")
def runner(here: Target) -> Iterator[CandidateRunner]:
    """Workers that stay warm over all tests."""
    with CandidateRunner(here, builders=1) as runner:
        yield runner


@pytest.fixture(scope="session")
def sample(tiny: Path) -> np.ndarray[Any, Any]:
    """One input of the tiny model."""
    with np.load(samples_beside(tiny)) as kept:
        return np.asarray(kept["input0"][:1])


@pytest.fixture(scope="session")
def compiler(tiny: Path, sample: np.ndarray[Any, Any], runner: CandidateRunner) -> ModelCompiler:
    """The tiny model, imported; copy it before measuring it."""
    return ModelCompiler("tiny", tiny, [sample], outputs_of(tiny, [sample]), runner, DEFAULT_GRAPH_LEVEL)


@pytest.fixture(scope="session")
def operators(compiler: ModelCompiler) -> dict[str, tuple[Operator, Any]]:
    """The operators of the tiny model by kind."""
    return {operator.kind: (operator, module) for operator, module in compiler.operators}


@pytest.fixture(params=["conv2d", "mean", "matmul", "transpose"])
def space(request: pytest.FixtureRequest, operators: dict[str, tuple[Operator, Any]], here: Target) -> ScheduleSpace:
    """The search space of each operator."""
    return ScheduleSpace(*operators[request.param], here)
