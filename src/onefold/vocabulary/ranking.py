"""The ranking of trials: the one rule that study, report, command line and deployment share.

A trial stands for the result of its latest finished rung, which is its best epoch so far on the same share of the data.
Trials without a result are not ranked, nor are those whose result lacks a metric of the objective or is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from onefold.vocabulary.costs import with_cost_so_far
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Epoch, Metrics, RungState, Trial
from onefold.vocabulary.standings import standings


def leaderboard(
    trials: Sequence[Trial],
    epochs: Iterable[Epoch],
    objective: Objective,
    epoch_objective: Objective | None = None,
    *,
    is_servable: Callable[[Trial], bool] = lambda _: True,
    serving_metrics: Callable[[int], Metrics] = lambda _: {},
) -> list[Trial]:
    """Return the trials of a study, best first; the first one is the winner.

    If no trial has finished a rung, each stands for its best epoch so far by `epoch_objective`, with its cost and what
    `serving_metrics` returns for its number. Trials that are not servable on all devices are left out.
    """
    trials = [trial for trial in trials if is_servable(trial)]
    ranking = ranked(trials, objective)
    if ranking:
        return ranking
    epoch_objective = epoch_objective or objective
    by_trial: dict[int, list[Epoch]] = {}
    for epoch in epochs:
        by_trial.setdefault(epoch.trial, []).append(epoch)

    def so_far(trial: Trial) -> Trial:
        """Return the trial as if its unfinished rung had ended."""
        best = best_epoch(by_trial[trial.number], epoch_objective).metrics
        metrics = objective.completed({**best, **serving_metrics(trial.number)})
        return replace(trial, rungs=(replace(trial.rungs[-1], state=RungState.DONE, metrics=metrics),))

    begun = [trial for trial in trials if trial.number in by_trial]
    ended = [so_far(trial) for trial in with_cost_so_far(begun, chain.from_iterable(by_trial.values()))]
    return ranked(ended, objective) or ranked(ended, epoch_objective)


def ranked(trials: Iterable[Trial], objective: Objective) -> list[Trial]:
    """Return the trials that have a result, the one to hand over first.

    Trials that meet the requirements come before the others, sound ones before failed ones, and higher levels before
    lower ones, since results of little training and data do not compare with those of the full budget. With several
    goals, the trials of a level are ranked by front and, inside a front, by preference.
    """
    rated = [trial for trial in trials if is_rated(trial.metrics, objective)]
    objective = settled(objective, rated)
    classes: dict[tuple[bool, bool, int], list[Trial]] = {}
    for trial in rated:
        classes.setdefault(_class_of(trial, objective), []).append(trial)
    ordered = (
        (group[at] for at in objective.order_of_preference([trial.metrics for trial in group]))
        for _, group in sorted(classes.items())
    )
    return list(chain.from_iterable(ordered))


class LiveRanking:
    """The first of `ranked` over the trials of a running study, kept up to date instead of ranked again."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._standings = standings(objective)
        self._best: int | None = None
        self._is_current = True

    def update(self, trial: Trial) -> None:
        """Add a trial, or replace it after its latest rung."""
        metrics = trial.metrics
        self._is_current = False
        if is_rated(metrics, self._objective):
            self._standings.put(trial.number, metrics, is_failed=trial.failure is not None, level=trial.level)
        else:
            self._standings.remove(trial.number)

    def best(self) -> int | None:
        """Return the number of the best trial; None before any has a result."""
        if not self._is_current:
            self._best, self._is_current = self._standings.best(), True
        return self._best


def _class_of(trial: Trial, objective: Objective) -> tuple[bool, bool, int]:
    is_infeasible = objective.violation(trial.metrics) > 0
    return is_infeasible, trial.failure is not None, 0 if is_infeasible else -trial.level


def settled(objective: Objective, trials: Iterable[Trial]) -> Objective:
    """Return the objective with every bound relative to the best fixed by the best of these trials."""
    return objective.settled(trial.metrics for trial in trials if is_rated(trial.metrics, objective))


def best_epoch(epochs: Sequence[Epoch], objective: Objective) -> Epoch:
    """Return the epoch that stands for a rung: the best one, the earlier of equals; with several goals, the last one.

    Training is noisy, so the last epoch is seldom the best. The weights of this epoch are the ones handed over.
    """
    rated = [epoch for epoch in epochs if is_rated(epoch.metrics, objective)]
    if len(objective.goals) > 1 or not rated:
        return epochs[-1]
    return rated[objective.order([epoch.metrics for epoch in rated])[0]]


def front(trials: Iterable[Trial], objective: Objective) -> list[Trial]:
    """Return the Pareto front of the trials that meet the requirements, in the order given.

    Only trials of the highest level reached are compared: one that was stopped early is always cheap.
    """
    trials = list(trials)
    objective = settled(objective, trials)
    rated = [trial for trial in trials if is_feasible(trial.metrics, objective) and trial.failure is None]
    top = max((trial.level for trial in rated), default=0)
    rated = [trial for trial in rated if trial.level == top]
    return [rated[position] for position in sorted(objective.front([trial.metrics for trial in rated]))]


def is_rated(metrics: Metrics, objective: Objective) -> bool:
    """Return whether the metrics have a finite value for every metric of the objective."""
    return all(metric in metrics and math.isfinite(metrics[metric]) for metric in objective.metrics)


def is_feasible(metrics: Metrics, objective: Objective) -> bool:
    """Return whether the metrics are rated and meet the requirements."""
    return is_rated(metrics, objective) and objective.violation(metrics) == 0
