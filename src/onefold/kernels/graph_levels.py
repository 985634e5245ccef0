"""Compares the graph optimization levels: what each costs to compile and what it gains."""

from __future__ import annotations

import time
from pathlib import Path

from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.phase_costs import PhaseCosts
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.kernels import GRAPH_LEVELS, GraphLevelResult


def compare_graph_levels(model: ModelCompiler, folder: Path, costs: PhaseCosts) -> tuple[GraphLevelResult, ...]:
    """Compile and time the untuned model at each level; a level that fails is left out."""
    results = []
    for level in GRAPH_LEVELS:
        level_costs = PhaseCosts()
        started = time.perf_counter()
        try:
            compiler = model.at_level(level, level_costs)
            name = f"{model.name}-level-{level}{model.runner.target.library_suffix}"
            file = compiler.compile({}, folder / name, level_costs)
            compile_s = time.perf_counter() - started
            timed = compiler.time_library(file, costs)
        except ModelError:
            continue
        joules = level_costs.total.energy.joules
        results.append(GraphLevelResult(level, timed.latency_s, compile_s, len(compiler.operators), joules))
    return tuple(results)
