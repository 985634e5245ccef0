"""Phrases that the text, the page and the command line share: energies, grants and objectives in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from onefold.vocabulary import quantities
from onefold.vocabulary.knobs import StepWindow
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Energy, Grant, Trial
from onefold.vocabulary.requirement import Bound
from onefold.vocabulary.serving import OptimizeFor, Surface

SOURCES = {
    "rapl": "measured by the processor's energy counters (RAPL)",
    "nvml": "measured by the GPU (NVML)",
    "rapl+nvml": "measured by the processor's energy counters (RAPL) and by the GPU (NVML)",
    "modelled": "modelled: an estimate, not a measurement",
    "unavailable": "not available on this machine",
    "nothing": "nothing has been measured yet",
}


def energy(energy: Energy) -> str:
    """Format an energy; "≈" marks an estimate. Show `energy_source` near it."""
    if energy.joules is None or energy.source in ("", "nothing", "unavailable"):
        return quantities.MISSING
    return quantities.joules(energy.joules) if energy.measured else f"≈ {quantities.joules(energy.joules)}"


def energy_source(energy: Energy) -> str:
    """Return how an energy was obtained; an estimate is called one."""
    if energy.joules is None:
        return SOURCES["unavailable"]
    return SOURCES.get(energy.source, f"measured by {energy.source}")


def energy_with_source(known: Energy) -> str:
    """Format an energy with its source in one word: "≈ 1.2 kJ (modelled)"."""
    amount = energy(known)
    return amount if amount == quantities.MISSING else f"{amount} ({known.source})"


def remeasured(compared: Trial, best: Trial, metrics: Iterable[str], format: Callable[[str, float], str]) -> str:
    """Say that the model of the best trial was measured again, and its values that differ from the compared ones."""
    again = [name for name in metrics if best.metrics.get(name) != compared.metrics.get(name)]
    values = ", ".join(f"{name} {format(name, best.metrics[name])}" for name in again if name in best.metrics)
    return (
        f"These figures are as they were measured alike for all trials; the model of trial {best.number} was measured "
        "again, more precisely, to be handed over" + (f": {values}." if values else ".")
    )


def step(window: StepWindow) -> str:
    """Format what one step of a window of training took: its time and, if known, its energy."""
    time = quantities.duration(window.step_s)
    is_known = window.step_j is not None and window.source != "unavailable"
    return f"{time}, {energy(Energy(window.step_j, window.source))}" if is_known else time


def grant(grant: Grant) -> str:
    """Format the budget of a rung: "3 epochs, 33 % data"."""
    limit = quantities.duration(grant.time_s) if grant.time_s is not None else quantities.count(grant.epochs, "epoch")
    return limit if grant.data >= 1 else f"{limit}, {quantities.share(grant.data)} data"


def goals(objective: Objective) -> str:
    """Describe an objective: "lowest latency_s, with accuracy at least 0.9"."""
    wanted = ", ".join(map(str, objective.goals))
    kept = " and ".join(
        f"{name} {'at least' if bound.at_least else 'at most'} {_limit(name, bound)}"
        for name, bound in objective.require.items()
    )
    return f"{wanted}, with {kept}" if kept else wanted


def _limit(name: str, bound: Bound) -> str:
    limit = quantities.metric(name, bound.limit) if bound.limit is not None else ""
    if bound.from_best is None:
        return limit
    relative = f"the best {'less' if bound.at_least else 'and'} {abs(bound.from_best):g}"
    return f"{relative} ({limit})" if limit else relative


def serving(surface: Surface) -> str:
    """Describe the best latency and the best throughput of a model on a device."""
    alone, batched = surface.best(OptimizeFor.LATENCY), surface.best(OptimizeFor.THROUGHPUT)
    batches = f"in batches of {batched.point.batch_size} on {quantities.count(batched.point.threads, 'thread')}"
    return (
        f"{quantities.duration(alone.latency_s)} latency at batch size 1 ({alone.source_text}), "
        f"{quantities.number(batched.throughput_per_s)} samples/s {batches} ({batched.source_text})"
    )
