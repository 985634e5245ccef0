"""Which trials of an analysis are compared: the best of each arm, of those that were fully trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onefold.impact_analysis.arms import Arm
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Trial


def best_trials(arm: Arm, trials: Mapping[int, Trial], objective: Objective, count: int) -> tuple[int, ...]:
    """Return the trials that an arm promoted, ranked by their final metrics."""
    last = max((rung.rung for trial in trials.values() for rung in trial.finished_rungs), default=0)
    promoted = rank([trials[number] for number in arm.members if number in trials], 0, objective)[:count]
    return tuple(trial.number for trial in rank(promoted, last, objective))


def fully_trained(trials: Mapping[int, Trial]) -> set[int]:
    """Return the trials that finished the last rung."""
    last = max((rung.rung for trial in trials.values() for rung in trial.finished_rungs), default=0)
    return {number for number, trial in trials.items() if any(rung.rung == last for rung in trial.finished_rungs)}


def rank(trials: Sequence[Trial], rung: int, objective: Objective) -> list[Trial]:
    """Return the trials that finished a rung, best first by its metrics."""
    metrics = {
        trial.number: finished.metrics for trial in trials for finished in trial.finished_rungs if finished.rung == rung
    }
    finishers = [trial for trial in trials if trial.number in metrics]
    return [finishers[index] for index in objective.order([metrics[trial.number] for trial in finishers])]
