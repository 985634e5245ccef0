"""Levels of graph optimisation side by side: what each costs to compile, and what it brings."""

from __future__ import annotations

import time
from pathlib import Path

from onefold.kernels.compiled_model import WholeModel
from onefold.kernels.graph import LEVELS, optimised
from onefold.kernels.ledger import Ledger
from onefold.kernels.spaces import operators_of
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.kernels import Level


def compare_levels(whole: WholeModel, folder: Path, ledger: Ledger) -> tuple[Level, ...]:
    """Each level, with operators as they come; one that the model does not survive is left out."""
    found, suffix = [], "so" if whole.bench.target.is_here else "tar"
    for number in LEVELS:
        cost = Ledger()
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
        found.append(Level(number, timed.latency_s, seconds, count, cost.spent.energy.joules))
    return tuple(found)
