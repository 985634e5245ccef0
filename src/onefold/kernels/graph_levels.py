"""Levels of graph optimisation side by side: what each costs to compile, and what it brings."""

from __future__ import annotations

import time
from pathlib import Path

from onefold.kernels.graph import LEVELS, optimised
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.schedule_space import operators_of
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.kernels import GraphLevelResult


def compare_levels(whole: ModelCompiler, folder: Path, ledger: PhaseCosts) -> tuple[GraphLevelResult, ...]:
    """Each level, with operators as they come; one that the model does not survive is left out."""
    found, suffix = [], "so" if whole.bench.target.is_here else "tar"
    for number in LEVELS:
        cost = PhaseCosts()
        started = time.perf_counter()
        try:
            with cost.phase("whole"):
                loops = optimised(whole.graph, whole.bench.target, number)
                file = whole.compiled({}, folder / f"{whole.name}-level-{number}.{suffix}", loops)
            seconds = time.perf_counter() - started
            timed = whole.timed(file, ledger)
        except ModelError:
            continue
        count = len(operators_of(loops, whole.bench.target))
        found.append(GraphLevelResult(number, timed.latency_s, seconds, count, cost.spent.energy.joules))
    return tuple(found)
