"""Which trial is the best: the one rule that the study, the report and the shell share.

A trial stands for what its latest finished rung reported, and that is its best epoch so far on the same share of the
data. Trials without one have no place, and neither have trials whose report lacks a metric of the objective or gives
no finite number for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Epoch, Metrics, Trial


def ranked(trials: Iterable[Trial], objective: Objective) -> list[Trial]:
    """The trials that have a result, best first.

    Those that keep the requirements come before the rest, sound ones before failed ones, and higher levels before
    lower ones: what little training and little data showed is no match for what the full budget showed.
    """
    rated = [trial for trial in trials if rates(trial.metrics, objective)]
    objective = settled(objective, rated)
    order = [rated[place] for place in objective.order([trial.metrics for trial in rated])]
    return sorted(order, key=lambda trial: _class_of(trial, objective))


def _class_of(trial: Trial, objective: Objective) -> tuple[bool, bool, int]:
    misses = objective.violation(trial.metrics) > 0
    return misses, trial.failure is not None, 0 if misses else -trial.level


def settled(objective: Objective, trials: Iterable[Trial]) -> Objective:
    """The objective with every bound that is counted from the best taken from the best of these trials."""
    return objective.settled(trial.metrics for trial in trials if rates(trial.metrics, objective))


def best_epoch(epochs: Sequence[Epoch], objective: Objective) -> Epoch:
    """The epoch that stands for a rung: the best one, the earlier of equals; with several goals, the last one.

    Training is noisy, and the last epoch is seldom the best. The weights of this epoch are the ones handed over.
    """
    rated = [epoch for epoch in epochs if rates(epoch.metrics, objective)]
    if len(objective.goals) > 1 or not rated:
        return epochs[-1]
    return rated[objective.order([epoch.metrics for epoch in rated])[0]]


def front(trials: Iterable[Trial], objective: Objective) -> list[Trial]:
    """The trials that keep the requirements and that no other such trial beats in every goal, in the order given.

    Only trials that got as far as any did are compared: one that was stopped early is always cheap.
    """
    trials = list(trials)
    objective = settled(objective, trials)
    rated = [trial for trial in trials if keeps(trial.metrics, objective) and trial.failure is None]
    top = max((trial.level for trial in rated), default=0)
    rated = [trial for trial in rated if trial.level == top]
    return [rated[place] for place in sorted(objective.front([trial.metrics for trial in rated]))]


def rates(metrics: Metrics, objective: Objective) -> bool:
    """Whether these metrics say everything that the objective asks for."""
    return all(metric in metrics and math.isfinite(metrics[metric]) for metric in objective.metrics)


def keeps(metrics: Metrics, objective: Objective) -> bool:
    """Whether these metrics say everything that the objective asks for and keep its requirements."""
    return rates(metrics, objective) and objective.violation(metrics) == 0
