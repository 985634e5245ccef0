"""Onefold's tuning runs: cold start, without the cold filter, with history, several models together."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import onefold
from kernel_comparison.networks import Workspace
from onefold.kernels.cold_filter import ColdFilter
from onefold.kernels.model_compiler import ModelCompiler, TimedLibrary
from onefold.kernels.phase_costs import PhaseCosts
from onefold.store import open_store
from onefold.vocabulary.kernels import CompileBudget, CompileOptions, CompileResult, Operator, ScheduleCandidate

COLD_START, NO_FILTER, HISTORY, TOGETHER = "cold start", "no filter", "history", "together"
BATCH = 8  # candidates for an operator in a round
FILTER_SEEDS = range(5)  # each splits off other candidates


@dataclass(frozen=True)
class Checkpoint:
    """The state of a tuner after a round: what was spent, and the library with the best kernels so far."""

    candidates: int
    time_s: float
    energy_j: float | None
    library: str
    latency_s: float | None = None  # as the tuner timed it


def run_name(condition: str, network: str) -> str:
    """Return the name of a run, under which its files are kept."""
    return f"{condition}/{network}"


def tune(
    workspace: Workspace, condition: str, network: str, candidates: int, *, history: Sequence[str] = (),
    cold_filter: bool = True, threads: int = 1,
) -> CompileResult:  # fmt: skip
    """Compile a network in a new home until the candidates are used up.

    Args:
        workspace: The networks and folders.
        condition: Name of the condition.
        network: Name of the network.
        candidates: Number of candidates to measure.
        history: Names of earlier runs whose candidates are known.
        cold_filter: Whether the cold filter is used.
        threads: Threads of the compiled model.
    """
    run = run_name(condition, network)
    home = workspace.start(run)
    _copy_candidates([workspace.home(earlier) for earlier in history], home)
    with keep_libraries(workspace.libraries(run)):
        return onefold.compile(
            workspace.model(network), budget=CompileBudget(candidates=candidates, gain_drop=None),
            options=CompileOptions(candidates_per_round=BATCH, threads=threads, cold_filter=cold_filter),
            home=home, save=workspace.deployment(run),
        )  # fmt: skip


def tune_together(workspace: Workspace, candidates: int, goals_s: Sequence[float]) -> tuple[CompileResult, ...]:
    """Compile all networks under one budget, until all reach their goals."""
    home = workspace.start(TOGETHER)
    with keep_libraries(workspace.libraries(TOGETHER)):
        results = onefold.compile_many(
            [workspace.model(network) for network in workspace.networks], goals=goals_s,
            budget=CompileBudget(candidates=candidates, gain_drop=None),
            options=CompileOptions(candidates_per_round=BATCH, threads=1), home=home,
        )  # fmt: skip
    return tuple(results)


def checkpoints(result: CompileResult, libraries: Path) -> list[Checkpoint]:
    """Return the state after each round of a compilation whose libraries were kept in a folder."""
    files = sorted((libraries / result.model).iterdir())
    return [
        Checkpoint(ended.tried, ended.ended_s, ended.spent.energy.joules, str(file), ended.latency_s)
        for file, ended in zip(files, result.rounds, strict=True)
    ]


@contextmanager
def keep_libraries(folder: Path) -> Iterator[None]:
    """Copy the library of every round of a compilation to `folder`/MODEL, also those that it deletes."""
    time_library, measure, rounds = ModelCompiler.time_library, ModelCompiler.measure, Counter[str]()

    def copy_and_time(self: ModelCompiler, file: Path, costs: PhaseCosts | None = None) -> TimedLibrary:
        shutil.copyfile(file, folder / file.name)
        return time_library(self, file, costs)

    def measure_and_copy(self: ModelCompiler, *arguments: Any) -> TimedLibrary:
        timed = measure(self, *arguments)
        library = folder / self.name / f"{rounds[self.name]:03}.so"
        library.parent.mkdir(exist_ok=True)
        shutil.copyfile(folder / timed.file.name, library)
        rounds[self.name] += 1
        return timed

    with mock.patch.multiple(ModelCompiler, time_library=copy_and_time, measure=measure_and_copy):
        yield


def filter_precision(workspace: Workspace, runs: Sequence[str]) -> dict[str, Any]:
    """Return the precision of the cold filter on held-out candidates of these runs."""
    candidates: dict[Operator, list[ScheduleCandidate]] = {}
    for run in runs:
        store = open_store(workspace.home(run) / "store.db")
        operators = store.operators()
        for candidate in store.candidates():
            candidates.setdefault(operators[candidate.operator], []).append(candidate)
        store.close()
    fits = []
    for seed in FILTER_SEEDS:
        cold_filter = ColdFilter(seed)
        cold_filter.learn(candidates)
        if cold_filter.fit is not None:
            fits.append(cold_filter.fit)
    dropped = sum(fit.drop_share for fit in fits)
    cold = sum((fit.precision or 0.0) * fit.drop_share for fit in fits)
    errors = sorted(fit.error for fit in fits) or [1.0]
    return {
        "candidates": sum(map(len, candidates.values())), "splits": len(fits),
        "precision": cold / dropped if dropped else 0.0, "dropped": dropped / max(1, len(fits)),
        "error": errors[len(errors) // 2],
    }  # fmt: skip


def _copy_candidates(homes: Sequence[Path], target: Path) -> None:
    """Copy the operators and candidates of other homes into a new one."""
    if not homes:
        return
    store = open_store(target / "store.db")
    for home in homes:
        earlier = open_store(home / "store.db")
        for operator in earlier.operators().values():
            store.save_operator(operator)
        store.save_candidates(earlier.candidates())
        earlier.close()
    store.close()
