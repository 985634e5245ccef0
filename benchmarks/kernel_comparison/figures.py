"""Rows of figures from the runs and their curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernel_comparison.curves import DEPLOYED, Curve, Curves, first_at, lowest_s
from kernel_comparison.tuning import COLD_START, HISTORY, TOGETHER
from onefold.vocabulary.kernels import CandidateHistory, CompileResult

TOLERANCE = 1.02  # latencies this close are the same
Row = dict[str, Any]


def metaschedule_run(batch: int) -> str:
    """Return the name of MetaSchedule's run with batches of this size."""
    return f"MetaSchedule {batch}"


def goal_s(curve: Curve) -> float:
    """Return the latency that a run reaches, with a tolerance."""
    return TOLERANCE * lowest_s(curve)


def matched(network: str, batch: int, curves: Curves) -> Row:
    """Charge both tools up to the first point at which the model is as fast as MetaSchedule makes it in the end."""
    onefold, metaschedule = curves[COLD_START], curves[metaschedule_run(batch)]
    goal = goal_s(metaschedule)
    match, peer = first_at(onefold, goal) or {}, first_at(metaschedule, goal)
    if peer is None:
        raise AssertionError("MetaSchedule reaches its own latency")
    return {
        "network": network, "batch": batch,
        "MetaSchedule candidates": metaschedule[-1]["candidates"], "MetaSchedule total s": metaschedule[-1]["time_s"],
        "MetaSchedule ms": lowest_s(metaschedule) * 1e3, "MetaSchedule candidates to match": peer["candidates"],
        "MetaSchedule s": peer["time_s"], "MetaSchedule J": peer["energy_j"],
        "Onefold candidates": onefold[-1]["candidates"], "Onefold total s": onefold[-1]["time_s"],
        "Onefold total J": onefold[-1]["energy_j"], "Onefold ms": lowest_s(curves[DEPLOYED]) * 1e3,
        "Onefold s": match.get("time_s"), "Onefold J": match.get("energy_j"),
    }  # fmt: skip


def recalled(network: str, curves: Curves) -> Row:
    """Return the time to the latency that the cold start reaches, without and with history."""
    goal = goal_s(curves[COLD_START])
    without, with_history = first_at(curves[COLD_START], goal) or {}, first_at(curves[HISTORY], goal) or {}
    return {
        "network": network, "goal ms": goal * 1e3, "cold start s": without.get("time_s"),
        "with history s": with_history.get("time_s"), "ms": lowest_s(curves[HISTORY]) * 1e3,
    }  # fmt: skip


def joint(curves: Mapping[str, Curves], goals_s: Mapping[str, float]) -> Row:
    """Return the energy until all models reach their goals, under one budget and separately."""
    separate = {name: first_at(curve[COLD_START], goals_s[name]) for name, curve in curves.items()}
    together = {name: first_at(curve[TOGETHER], goals_s[name]) for name, curve in curves.items()}
    return {
        "goals ms": {name: goal * 1e3 for name, goal in goals_s.items()},
        "ms": {name: lowest_s(curve[TOGETHER]) * 1e3 for name, curve in curves.items()},
        "separate J": sum(point["energy_j"] for point in separate.values() if point),
        "together J": {name: point and point["energy_j"] for name, point in together.items()},
    }  # fmt: skip


def cold_cost(network: str, filtered: CompileResult, unfiltered: CompileResult) -> Row:
    """Return the cost of cold candidates with and without the filter, by the LOESS fit of the search without it.

    By its own fit, about half of the candidates of any search are cold.
    """
    fits = {
        history.operator.key: [fit_s for fit_s in history.line if fit_s is not None] for history in unfiltered.histories
    }
    row: Row = {"network": network}
    for label, result in (("filtered", filtered), ("unfiltered", unfiltered)):
        cold = [
            candidate
            for history in result.histories
            for candidate, is_cold in zip(history.candidates, _is_cold(history, fits[history.operator.key]))
            if is_cold
        ]
        row[f"{label} cold s"] = sum(candidate.build_s + candidate.run_s for candidate in cold)
        row[f"{label} cold J"] = sum(candidate.joules or 0.0 for candidate in cold)
        row[f"{label} s"] = sum(
            candidate.build_s + candidate.run_s for history in result.histories for candidate in history.candidates
        )
        row[f"{label} dropped"] = sum(operator.filtered for operator in result.rounds[-1].operators)
    return row


def _is_cold(history: CandidateHistory, fit: Sequence[float]) -> list[bool]:
    """Return for each candidate whether its latency is above a fit at that point of the search."""
    return [
        bool(fit) and candidate.latency_s is not None and candidate.latency_s > fit[min(number, len(fit) - 1)]
        for number, candidate in enumerate(history.candidates)
    ]
