"""The tables of a study report."""

from __future__ import annotations

from collections.abc import Iterable

from onefold.report import phrases
from onefold.report.study.summary import TRAINING_COSTS, Summary
from onefold.report.table import Column, ColumnKind, Row, Table
from onefold.vocabulary import quantities
from onefold.vocabulary.forks import dense_config, fork_of
from onefold.vocabulary.records import Trial
from onefold.vocabulary.space import Float, Parameter
from onefold.vocabulary.variants import Recipe

VARIANT = "variant"  # the column of a study with in-loop compression: "int8 of trial 3"


def trials_table(summary: Summary, trials: Iterable[Trial]) -> Table:
    """Return the table of these trials: goals, parameters, other metrics and cost."""
    goals = [metric for metric in summary.objective.metrics if metric in summary.metrics]
    others = [metric for metric in summary.metrics if metric not in (*goals, *TRAINING_COSTS)]
    settings = _varied(summary)
    columns = [Column("trial", ColumnKind.TRIAL)]
    columns += [Column(metric, ColumnKind.GOAL) for metric in goals]
    if summary.objective.require:
        columns.append(Column("requirements", ColumnKind.GOAL, numeric=False))
    has_forks = any(fork_of(trial.config) is not None for trial in summary.trials)
    if has_forks:
        columns.append(Column(VARIANT, ColumnKind.SETTING, numeric=False))
    columns += [Column(name, ColumnKind.SETTING, numeric=_numeric(summary, name)) for name in settings]
    columns += [Column(metric, ColumnKind.METRIC) for metric in others]
    columns += [Column(title, ColumnKind.COST) for title in ("level", "epochs", "time", "energy", "memory")]
    columns.append(Column("state", ColumnKind.COST, numeric=False))

    def cells(trial: Trial) -> Iterable[str]:
        yield str(trial.number)
        yield from (_metric(summary, trial, metric) for metric in goals)
        if summary.objective.require:
            yield "met" if summary.is_feasible(trial) else "violated"
        if has_forks:
            yield str(fork_of(trial.config) or Recipe())
        yield from (_setting(trial, name, summary.parameters[name]) for name in settings)
        yield from (_metric(summary, trial, metric) for metric in others)
        cost = trial.cost
        yield from (str(trial.level), str(summary.epochs_of(trial)))
        yield from (quantities.duration(cost.time_s), phrases.energy(cost.energy))
        yield quantities.size(cost.memory_bytes)
        yield trial.state.value

    rows = tuple(Row.of(*cells(summary.compared_as(trial)), trial=trial.number) for trial in trials)
    return Table("trials", "Trials", tuple(columns), rows)


def rungs_table(summary: Summary) -> Table:
    """Return the table of rungs, level by level, and below them the forks of each level."""
    titles = ("level", "budget", "trials", "done", "failed", "promoted", f"best {summary.goal_metric}")
    columns = tuple(Column(title, ColumnKind.TRIAL, numeric=title != "budget") for title in titles)
    rows = []
    for level in (*summary.levels, *summary.forks):
        best = quantities.MISSING if level.best is None else summary.format(summary.goal_metric, level.best)
        numbers = (level.trials, level.done, level.failed, level.promoted)
        name, budget = str(level.grant.level), phrases.grant(level.grant)
        if level in summary.forks:
            name = f"{name}, forks"
            if level.most_epochs > level.grant.epochs:
                budget = f"{level.grant.epochs} to {quantities.count(level.most_epochs, 'epoch')}"
        rows.append(Row.of(name, budget, *map(str, numbers), best))
    return Table("rungs", "Rungs", columns, tuple(rows))


def configuration(summary: Summary, trial: Trial) -> str:
    """Format the configuration of a trial on one line, without constant parameters; a fork is named by its recipe."""
    dense, fork = dense_config(trial.config), fork_of(trial.config)
    varied = quantities.settings({name: dense[name] for name in _varied(summary) if name in dense})
    return varied if fork is None else ", ".join(part for part in (varied, str(fork)) if part)


def _varied(summary: Summary) -> list[str]:
    used = {name for trial in summary.trials for name in dense_config(trial.config)}
    return [name for name, parameter in summary.parameters.items() if name in used and parameter.size > 1]


def _setting(trial: Trial, name: str, parameter: Parameter) -> str:
    if name not in trial.config:
        return quantities.MISSING
    value = trial.config[name]
    if isinstance(parameter, Float) and isinstance(value, float) and not parameter.log:
        return quantities.metric(name, value, quantities.decimals([parameter.low, parameter.high]))
    return quantities.setting(value)


def _metric(summary: Summary, trial: Trial, metric: str) -> str:
    return summary.format(metric, trial.metrics[metric]) if metric in trial.metrics else quantities.MISSING


def _numeric(summary: Summary, name: str) -> bool:
    return all(not isinstance(trial.config.get(name), (str, bool)) for trial in summary.trials)
