"""The course of a study: its rungs by level, its results over time, and the learning curves of its trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from onefold.vocabulary.objective import Objective
from onefold.vocabulary.ranking import is_feasible, is_rated
from onefold.vocabulary.records import Epoch, Grant, Metrics, Rung, RungState, Trial


@dataclass(frozen=True, slots=True)
class RungSummary:
    """All rungs of one level: how many trials reached it, finished, failed and were promoted."""

    grant: Grant
    trials: int
    done: int
    failed: int
    running: int  # none if the study does not run
    promoted: int
    best: float | None  # value of the first goal among the feasible results
    most_epochs: int  # of forks, whose recipes differ in epochs; for all others those of the grant

    @property
    def unfinished(self) -> int:
        """Return the number of trials without a result yet."""
        return self.trials - self.done - self.failed


@dataclass(frozen=True, slots=True)
class RungResult:
    """A finished rung. `best` is the first goal's value of the best feasible trial at that time, if there is one."""

    time_s: float
    trial: int
    level: int
    value: float
    keeps: bool  # whether it meets the requirements
    best: float | None


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """A metric over the epochs of one trial, as (epoch, value). Epochs restart if a rung trains from scratch."""

    trial: int
    points: tuple[tuple[int, float], ...]


def levels_of(objective: Objective, trials: Iterable[Trial], *, is_running: bool) -> tuple[RungSummary, ...]:
    """Return the rungs of these trials by level, the lowest first.

    Forks have a level too, that of their parent, but other epochs: give them apart from dense trials.
    """
    visits: dict[int, list[tuple[Rung, bool]]] = {}
    for trial in trials:
        for index, rung in enumerate(trial.current_rungs):
            visits.setdefault(rung.grant.level, []).append((rung, index + 1 < len(trial.current_rungs)))
    return tuple(_level(objective, visits[level], is_running=is_running) for level in sorted(visits))


def _level(objective: Objective, visits: Sequence[tuple[Rung, bool]], *, is_running: bool) -> RungSummary:
    goal = objective.goals[0]
    kept = [
        rung.metrics[goal.metric]
        for rung, _ in visits
        if rung.state is RungState.DONE and is_feasible(rung.metrics, objective)
    ]
    return RungSummary(
        grant=min((rung.grant for rung, _ in visits), key=lambda grant: grant.epochs),
        trials=len(visits),
        done=sum(rung.state is RungState.DONE for rung, _ in visits),
        failed=sum(rung.state is RungState.FAILED for rung, _ in visits),
        running=sum(is_running and rung.state is RungState.DECIDED for rung, _ in visits),
        promoted=sum(is_promoted for _, is_promoted in visits),
        best=min(kept, key=goal.loss, default=None),
        most_epochs=max(rung.grant.epochs for rung, _ in visits),
    )


def finished_rungs(objective: Objective, trials: Iterable[Trial]) -> tuple[RungResult, ...]:
    """Return the finished rungs by time, each with the best value so far of the first goal."""
    goal, several = objective.goals[0], len(objective.goals) > 1
    ended = [(rung.ended_s, rung) for trial in trials for rung in trial.current_rungs if rung.ended_s is not None]
    standing: dict[int, tuple[bool, int, float]] = {}  # of feasible trials: failed, -level, loss
    queue: list[tuple[tuple[bool, int, float], int]] = []  # standings, best first; some are outdated
    moments = []
    for time_s, rung in sorted(ended, key=lambda pair: (pair[0], pair[1].decision)):
        if rung.state is RungState.FAILED and rung.trial in standing:
            standing[rung.trial] = (True, *standing[rung.trial][1:])
            heappush(queue, (standing[rung.trial], rung.trial))
        if rung.state is not RungState.DONE or not is_rated(rung.metrics, objective):
            continue
        value, counts = rung.metrics[goal.metric], is_feasible(rung.metrics, objective)
        standing.pop(rung.trial, None)
        if counts:
            standing[rung.trial] = (False, 0 if several else -rung.grant.level, goal.loss(value))
            heappush(queue, (standing[rung.trial], rung.trial))
        while queue and standing.get(queue[0][1]) != queue[0][0]:
            heappop(queue)
        best = goal.loss(queue[0][0][2]) if queue else None
        moments.append(RungResult(time_s, rung.trial, rung.grant.level, value, counts, best))
    return tuple(moments)


def curve_metric_of(objective: Objective, epochs: Sequence[Epoch]) -> str:
    """Return the metric of the first goal if epochs report it, else the closest one."""
    reported: set[str] = {name for epoch in epochs for name in epoch.metrics}
    wanted = (*objective.metrics, "accuracy", "loss", "train_loss", *sorted(reported))
    return next((name for name in wanted if name in reported), "")


def learning_curves(metric: str, epochs: Iterable[Epoch]) -> tuple[LearningCurve, ...]:
    """Return the curves of a metric by trial."""
    points: dict[int, list[tuple[int, float]]] = {}
    for epoch in sorted(epochs, key=lambda epoch: (epoch.trial, epoch.rung, epoch.number)):
        if _finite(epoch.metrics, metric):
            points.setdefault(epoch.trial, []).append((epoch.number, epoch.metrics[metric]))
    return tuple(LearningCurve(trial, tuple(points[trial])) for trial in sorted(points))


def _finite(metrics: Metrics, name: str) -> bool:
    return name in metrics and math.isfinite(metrics[name])
