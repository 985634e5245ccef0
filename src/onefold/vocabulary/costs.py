"""The cost of trials, also of those that are still training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onefold.vocabulary.records import Epoch, Measurement, RungState, Trial


def total_cost(trials: Sequence[Trial], epochs: Iterable[Epoch]) -> Measurement:
    """Return the cost of all rungs; of a rung without a result, that of its epochs so far."""
    open_rungs = {
        (rung.trial, rung.rung) for trial in trials for rung in trial.rungs if rung.state is RungState.DECIDED
    }
    finished = sum((trial.cost for trial in trials), Measurement.nothing())
    return sum((epoch.measurement for epoch in epochs if (epoch.trial, epoch.rung) in open_rungs), finished)
