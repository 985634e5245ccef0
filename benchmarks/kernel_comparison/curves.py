"""The latency of a model after each round of every run, timed again in turns."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_comparison.networks import Workspace
from kernel_comparison.tuning import Checkpoint
from onefold.kernels.candidate_runner import CandidateRunner

TURNS = 9
CLEARLY_SLOWER = 20  # times the fastest: such a library is timed once
DEPLOYED = "deployed"  # the run with the library of the deployment folder alone
Curve = Sequence[Mapping[str, Any]]
Curves = dict[str, list[dict[str, Any]]]  # by run


def time_checkpoints(
    workspace: Workspace, network: str, deployed: Path, runs: Mapping[str, Sequence[Checkpoint]]
) -> Curves:
    """Return the checkpoints of every run with the lowest latency of their libraries, timed in random turns.

    Libraries are timed through the call that serves them.

    Args:
        workspace: The networks and folders.
        network: Name of the network.
        deployed: The library that Onefold deploys.
        runs: Checkpoints by name of the run.
    """
    libraries = {(DEPLOYED, 0): deployed} | {
        (run, number): Path(checkpoint.library)
        for run, checkpoints in runs.items()
        for number, checkpoint in enumerate(checkpoints)
    }
    latencies: dict[tuple[str, int], list[float]] = {label: [] for label in libraries}
    with CandidateRunner(workspace.target()) as runner:
        compiler = workspace.compiler(network, runner)
        for turn in range(TURNS):
            fastest_s = min((values[0] for values in latencies.values() if values), default=float("inf"))
            for label in random.Random(turn).sample(list(libraries), len(libraries)):
                values = latencies[label]
                if not values or values[0] < CLEARLY_SLOWER * fastest_s:
                    values.append(compiler.time_library(libraries[label]).latency_s)
    curves: Curves = {DEPLOYED: [{"latency_s": min(latencies[DEPLOYED, 0])}]}
    for run, checkpoints in runs.items():
        curves[run] = [
            {"candidates": checkpoint.candidates, "time_s": checkpoint.time_s, "energy_j": checkpoint.energy_j,
             "latency_s": min(latencies[run, number]), "tuner_latency_s": checkpoint.latency_s}
            for number, checkpoint in enumerate(checkpoints)
        ]  # fmt: skip
    return curves


def first_at(curve: Curve, latency_s: float) -> Mapping[str, Any] | None:
    """Return the first point at which the model is as fast; None if there is none."""
    return next((point for point in curve if point["latency_s"] <= latency_s), None)


def lowest_s(curve: Curve) -> float:
    """Return the lowest latency of a curve."""
    return float(min(point["latency_s"] for point in curve))
