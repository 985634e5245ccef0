"""The cost of trials, also of those that are still training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from onefold.vocabulary.records import Epoch, Measurement, RungState, Trial

COST_METRICS = ("parameters", "train_time_s", "energy_j", "memory_bytes")  # reported of every trained network


def with_cost_so_far(trials: Iterable[Trial], epochs: Iterable[Epoch]) -> list[Trial]:
    """Return the trials with the cost of the epochs so far in each rung without a result."""
    spent: dict[tuple[int, int], Measurement] = {}
    for epoch in epochs:
        key = epoch.trial, epoch.rung
        spent[key] = spent.get(key, Measurement.nothing()) + epoch.measurement
    return [
        replace(
            trial,
            rungs=tuple(
                replace(rung, measurement=spent[rung.trial, rung.rung])
                if rung.state is RungState.DECIDED and (rung.trial, rung.rung) in spent
                else rung
                for rung in trial.rungs
            ),
        )
        for trial in trials
    ]


def total_cost(trials: Sequence[Trial], epochs: Iterable[Epoch]) -> Measurement:
    """Return the cost of all rungs; of a rung without a result, that of its epochs so far."""
    return sum((trial.cost for trial in with_cost_so_far(trials, epochs)), Measurement.nothing())
