"""Compares the graph optimization levels: what each costs to compile and what it gains."""

from __future__ import annotations

import time
from pathlib import Path

from onefold.kernels.graph import optimize_graph
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.schedule_space import extract_operators
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.kernels import GRAPH_LEVELS, GraphLevelResult


def compare_graph_levels(model: ModelCompiler, folder: Path, costs: PhaseCosts) -> tuple[GraphLevelResult, ...]:
    """Compile and time the untuned model at each level; a level that fails is left out."""
    results = []
    target = model.runner.target
    for level in GRAPH_LEVELS:
        level_costs = PhaseCosts()
        started = time.perf_counter()
        try:
            with level_costs.phase("whole"):
                graph = optimize_graph(model.imported, target, level)
                file = model.compile({}, folder / f"{model.name}-level-{level}{target.library_suffix}", graph)
            compile_s = time.perf_counter() - started
            timed = model.time_library(file, costs)
        except ModelError:
            continue
        operators = len(extract_operators(graph, target))
        joules = level_costs.total.energy.joules
        results.append(GraphLevelResult(level, timed.latency_s, compile_s, operators, joules))
    return tuple(results)
