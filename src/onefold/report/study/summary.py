"""Everything that a study report shows, computed once for text, JSON and HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from onefold.report import phrases
from onefold.report.study.course import (
    LearningCurve,
    RungResult,
    RungSummary,
    curve_metric_of,
    finished_rungs,
    learning_curves,
    levels_of,
)
from onefold.serving.ranked_trials import Servings, surface_costs
from onefold.serving.recommendation import Recommendation, recommend
from onefold.store import StudyRecord
from onefold.vocabulary import quantities
from onefold.vocabulary.costs import COST_METRICS, with_cost_so_far
from onefold.vocabulary.forks import fork_of
from onefold.vocabulary.knobs import KnobRecord
from onefold.vocabulary.objective import Goal, Objective
from onefold.vocabulary.ranking import front, is_feasible, is_rated, leaderboard, settled
from onefold.vocabulary.records import (
    Config,
    Epoch,
    Failure,
    Measurement,
    Metrics,
    Refusal,
    Rung,
    StudyState,
    Trial,
    TrialState,
    Value,
)
from onefold.vocabulary.serving import SERVING_METRICS, is_load_metric, is_serving_metric, metrics_on, without_serving
from onefold.vocabulary.space import Choice, Float, Parameter, Space
from onefold.vocabulary.variants import COMPRESSION

TRAINING_COSTS = ("train_time_s", "energy_j", "memory_bytes")  # metrics that have columns of costs


@dataclass(frozen=True, slots=True)
class FailedTrial:
    """A failed rung of a trial, and why it failed."""

    rung: Rung
    failure: Failure
    config: Config


@dataclass(frozen=True)
class Summary:
    """A study with everything derived from it."""

    study: StudyRecord
    objective: Objective
    parameters: Mapping[str, Parameter]  # in the order of the space
    groups: Mapping[str, str]  # of the parameters
    trials: tuple[Trial, ...]
    epochs: tuple[Epoch, ...]  # those that were read
    last_epochs: Mapping[int, int]  # the number of the last epoch, by trial
    ranking: tuple[Trial, ...]  # trials with a result, best first
    front: tuple[Trial, ...]  # the Pareto front with several goals; else empty
    counts: Mapping[TrialState, int]  # by state that occurs, in the order of TrialState
    failures: tuple[FailedTrial, ...]
    refusals: tuple[Refusal, ...]
    levels: tuple[RungSummary, ...]  # of dense trials, lowest first
    forks: tuple[RungSummary, ...]  # by the level of their parents; empty without in-loop compression
    cost: Measurement  # of all rungs together
    progress: tuple[RungResult, ...]  # by time
    curve_metric: str  # the metric of the learning curves; "" without epochs
    curves: tuple[LearningCurve, ...]  # by trial
    metrics: tuple[str, ...]  # reported by finished rungs, those of the objective first
    decimals: Mapping[str, int | None]  # that align the values of a metric
    servings: Servings = field(default_factory=dict)  # serving cost by trial and device; empty if not measured
    devices: tuple[str, ...] = ()  # of the servings; metrics without a device belong to the first one
    labels: Mapping[str, str] = field(default_factory=dict)  # sources of metrics not measured on the device
    recommendation: Recommendation | None = None  # with servings or several goals
    knob_records: tuple[KnobRecord, ...] = ()  # by trial and epoch
    folder: str = ""  # of the study's files

    @property
    def best(self) -> Trial | None:
        """Return the first trial of the ranking, with the metrics of the model that was handed over if that is its own.

        Its serving costs were measured again, more precisely than those that all trials are compared by.
        """
        if not self.ranking:
            return None
        trial, result = self.ranking[0], self.study.result or {}
        metrics = result.get("metrics") or {}
        if result.get("trial") != trial.number or _of_training(metrics, result) != _of_training(trial.metrics, result):
            return trial
        return trial.with_metrics(metrics)

    @property
    def remeasured(self) -> str:
        """Return the sentence on the costs of the best trial that were measured again; empty if none were."""
        if self.best is None or self.best.metrics == self.ranking[0].metrics:
            return ""
        return phrases.remeasured(self.ranking[0], self.best, self.objective.metrics, self.format)

    def compared_as(self, trial: Trial) -> Trial:
        """Return a trial with the metrics that it is compared by; before any rung has finished, of its best epoch."""
        return self.ranked_trials.get(trial.number, trial)

    @property
    def front_by_goal(self) -> list[Trial]:
        """Return the trials of the Pareto front, best value of the first goal first."""
        goal = self.objective.goals[0]
        return sorted(self.front, key=lambda trial: (goal.loss(trial.metrics[goal.metric]), trial.number))

    @property
    def compared(self) -> tuple[Trial, ...]:
        """Return the trials of the level of the Pareto front that have not failed: those it is computed over.

        Some may violate a requirement. Without a front they are all trials of the ranking.
        """
        level = max((trial.level for trial in self.front), default=None)
        same_level = tuple(trial for trial in self.ranking if trial.failure is None and trial.level == level)
        return same_level or self.ranking

    @cached_property
    def ranked_trials(self) -> Mapping[int, Trial]:
        """Return the trials of the ranking by number."""
        return {trial.number: trial for trial in self.ranking}

    @property
    def workload(self) -> str:
        """Return the name of the workload."""
        return str(self.study.spec.get("workload") or self.study.name)

    @property
    def goal_metric(self) -> str:
        """Return the metric of the first goal, which the plots show."""
        return self.objective.goals[0].metric

    @property
    def test(self) -> Metrics:
        """Return the test metrics of the handed-over model, if it is the best trial's; otherwise nothing."""
        result = self.study.result
        metrics = result.get("test") if self.best is not None and result.get("trial") == self.best.number else None
        return {str(name): float(value) for name, value in (metrics or {}).items()}

    def epochs_of(self, trial: Trial) -> int:
        """Return the number of epochs that a trial was trained for."""
        return self.last_epochs.get(trial.number) or (
            trial.finished_rungs[-1].grant.epochs if trial.finished_rungs else 0
        )

    def is_feasible(self, trial: Trial) -> bool:
        """Return whether the result of a trial meets the requirements."""
        return is_feasible(trial.metrics, self.objective)

    def format(self, metric: str, value: float) -> str:
        """Format the value of a metric, the same in every form.

        "≈" marks an estimate: modelled energy, or a serving cost that was not measured on the device.
        """
        base = metric.partition("@")[0] if self.servings else metric
        if self.servings and is_load_metric(base):
            is_estimate = not base.endswith("needed_per_s")  # the rest is simulated
        elif self.servings and base in SERVING_METRICS:
            is_estimate = metric in self.labels
        else:
            is_estimate = metric.endswith("_j") and self.cost.energy.source == "modelled"
        if base.endswith("_per_s") and self.servings:  # per second, not seconds
            formatted = f"{quantities.number(value)}/s"
        else:
            formatted = quantities.metric(base, value, self.decimals.get(metric))
        return f"≈ {formatted}" if is_estimate else formatted


def summarize(
    study: StudyRecord,
    trials: Sequence[Trial],
    epochs: Sequence[Epoch],
    *,
    last_epochs: Mapping[int, int] | None = None,
    servings: Servings | None = None,
    devices: Sequence[str] = (),
    quality: Goal | None = None,
    epoch_objective: Objective | None = None,
    knob_records: Sequence[KnobRecord] = (),
    folder: str = "",
) -> Summary:
    """Return the summary of a study in any state, also before its first result.

    With `servings` or several goals it includes a recommendation. `devices` are their names in order of importance
    (default: in the order of the servings); `quality` is the workload's own goal (default: derived from the objective);
    `epoch_objective` ranks the epochs of trials that have not finished a rung. `last_epochs` has the number of the last
    epoch of each trial (default: among `epochs`, which are then all).
    """
    servings = servings or {}
    names = tuple(devices) or tuple(dict.fromkeys(device for _, device in servings))
    space = Space.from_json(study.spec.get("space") or {})
    trials = [replace(trial, state=_state(trial, study)) for trial in with_cost_so_far(trials, epochs)]
    objective = _objective(study.spec, trials)
    ranking = _ranking(trials, epochs, objective, epoch_objective, servings, names)
    standing = tuple({trial.number: trial for trial in (*trials, *ranking)}.values())  # a ranked one may be so far
    objective = settled(objective, standing)
    results = [rung for trial in standing for rung in trial.finished_rungs]
    curve_metric = curve_metric_of(objective, epochs)
    metrics = tuple(dict.fromkeys(name for name in objective.metrics if any(name in r.metrics for r in results)))
    metrics += tuple(sorted({name for rung in results for name in rung.metrics} - set(metrics)))
    states = Counter(trial.state for trial in trials)
    dense = [trial for trial in trials if fork_of(trial.config) is None]
    forks = [trial for trial in trials if fork_of(trial.config) is not None]
    return Summary(
        study=study,
        objective=objective,
        parameters={**space.parameters, **_unlisted(space, trials)},
        groups={name: space.group_of(name) for name in space},
        trials=tuple(trials),
        epochs=tuple(epochs),
        last_epochs=_last_epochs(epochs) if last_epochs is None else last_epochs,
        ranking=ranking,
        front=tuple(front(standing, objective)) if len(objective.goals) > 1 else (),
        counts={state: states[state] for state in TrialState if states[state]},
        failures=tuple(
            FailedTrial(rung, rung.failure, trial.config)
            for trial in trials
            for rung in trial.current_rungs
            if rung.failure
        ),
        refusals=tuple(refusal for trial in trials for refusal in trial.refusals),
        levels=levels_of(objective, dense, is_running=study.state is StudyState.RUNNING),
        forks=levels_of(objective, forks, is_running=study.state is StudyState.RUNNING),
        cost=sum((trial.cost for trial in trials), Measurement.nothing()),
        progress=finished_rungs(objective, trials),
        curve_metric=curve_metric,
        curves=learning_curves(curve_metric, epochs),
        metrics=metrics,
        decimals={
            name: quantities.decimals(rung.metrics[name] for rung in results if name in rung.metrics)
            for name in metrics
        },
        servings=servings,
        devices=names if servings else (),
        labels=_labels(servings, names),
        recommendation=(
            recommend(standing, objective, servings, names, quality or _quality(objective, standing))
            if servings or len(objective.goals) > 1
            else None
        ),
        knob_records=tuple(knob_records),
        folder=folder,
    )


def _ranking(
    trials: Sequence[Trial], epochs: Sequence[Epoch], objective: Objective, epoch_objective: Objective | None,
    servings: Servings, devices: Sequence[str],
) -> tuple[Trial, ...]:  # fmt: skip
    """Return the trials that have every metric of the objective, best first, as the study ranks them."""

    def is_servable(trial: Trial) -> bool:
        return trial.failure is None or not servings or all((trial.number, name) in servings for name in devices)

    def serving_metrics(number: int) -> Metrics:
        return metrics_on(devices, number, servings)

    ranking = leaderboard(
        trials, epochs, objective, epoch_objective, is_servable=is_servable, serving_metrics=serving_metrics
    )
    return tuple(trial for trial in ranking if is_rated(trial.metrics, objective))


def _quality(objective: Objective, trials: Iterable[Trial]) -> Goal:
    """Return the workload's likely goal: the first goal or requirement of the objective that is not a cost."""
    for goal in objective.goals:
        if goal.metric not in COST_METRICS and not is_serving_metric(goal.metric):
            return goal
    for metric, bound in objective.require.items():
        if metric not in COST_METRICS and not is_serving_metric(metric):
            return Goal(metric, bound.at_least)
    return _objective({}, trials).goals[0]


def _labels(servings: Servings, devices: Sequence[str]) -> dict[str, str]:
    """Return the sources of serving metrics that were not measured on the device."""
    sources: dict[str, set[str]] = {}
    for (_, device), surface in servings.items():
        for metric, label in surface_costs(surface)[1].items():
            sources.setdefault(f"{metric}@{device}", set()).add(label)
            if device == devices[0]:
                sources.setdefault(metric, set()).add(label)
    return {metric: ", ".join(sorted(labels)) for metric, labels in sources.items()}


def _objective(spec: Mapping[str, Any], trials: Iterable[Trial]) -> Objective:
    """Return the study's objective; without one, the usual objective for the reported metrics."""
    if spec.get("objective"):
        return Objective.from_json(spec["objective"])
    reported = {name for trial in trials for name in trial.metrics}
    if "loss" in reported and "accuracy" not in reported:
        return Objective(minimize="loss")
    return Objective(maximize="accuracy")


def _unlisted(space: Space, trials: Iterable[Trial]) -> dict[str, Parameter]:
    """Return parameters that configurations have but the space does not, spanning their values."""
    values: dict[str, list[Value]] = {}
    for trial in trials:
        for name in trial.config:
            if name not in space.parameters:
                values.setdefault(name, []).append(trial.config[name])
    return {name: _spanning(given) for name, given in values.items()}


def _spanning(values: Sequence[Value]) -> Parameter:
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) == len(values):
        return Float(min(numbers), max(numbers))
    return Choice(*dict.fromkeys(values))


def _state(trial: Trial, study: StudyRecord) -> TrialState:
    """Return the state of a trial; one that was training when its study stopped waits to be resumed."""
    is_paused = trial.state is TrialState.RUNNING and study.state is not StudyState.RUNNING
    return TrialState.WAITING if is_paused else trial.state


def _last_epochs(epochs: Iterable[Epoch]) -> dict[int, int]:
    last: dict[int, int] = {}
    for epoch in epochs:
        last[epoch.trial] = max(epoch.number, last.get(epoch.trial, 0))
    return last


def _of_training(metrics: Metrics, card: Mapping[str, Any]) -> Metrics:
    """Return the metrics by which the model of a card is recognized; those of a compressed file are about the file."""
    known = without_serving(metrics)
    return {name: known[name] for name in TRAINING_COSTS if name in known} if COMPRESSION in card else known
