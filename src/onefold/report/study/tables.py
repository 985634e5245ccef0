"""The tables of a study report."""

from __future__ import annotations

from collections.abc import Iterable

from onefold.report import phrases
from onefold.report.study.summary import Summary
from onefold.report.table import Column, ColumnKind, Row, Table
from onefold.vocabulary import quantities
from onefold.vocabulary.records import Trial
from onefold.vocabulary.space import Float, Parameter

COSTS = ("train_time_s", "energy_j", "memory_bytes")  # metrics that have cost columns


def trials_table(summary: Summary, trials: Iterable[Trial]) -> Table:
    """Return the table of these trials: goals, parameters, other metrics and cost."""
    goals = [metric for metric in summary.objective.metrics if metric in summary.metrics]
    others = [metric for metric in summary.metrics if metric not in (*goals, *COSTS)]
    settings = _varied(summary)
    columns = [Column("trial", ColumnKind.TRIAL)]
    columns += [Column(metric, ColumnKind.GOAL) for metric in goals]
    if summary.objective.require:
        columns.append(Column("requirements", ColumnKind.GOAL, numeric=False))
    columns += [Column(name, ColumnKind.SETTING, numeric=_numeric(summary, name)) for name in settings]
    columns += [Column(metric, ColumnKind.METRIC) for metric in others]
    columns += [Column(title, ColumnKind.COST) for title in ("level", "epochs", "time", "energy", "memory")]
    columns.append(Column("state", ColumnKind.COST, numeric=False))

    def cells(trial: Trial) -> Iterable[str]:
        yield str(trial.number)
        yield from (_metric(summary, trial, metric) for metric in goals)
        if summary.objective.require:
            yield "met" if summary.is_feasible(trial) else "violated"
        yield from (_setting(trial, name, summary.parameters[name]) for name in settings)
        yield from (_metric(summary, trial, metric) for metric in others)
        cost = trial.cost
        yield from (str(trial.level), str(summary.epochs_of(trial)))
        yield from (quantities.duration(cost.time_s), phrases.energy(cost.energy))
        yield quantities.size(cost.memory_bytes)
        yield trial.state.value

    rows = tuple(Row.of(*cells(summary.presented(trial)), trial=trial.number) for trial in trials)
    return Table("trials", "Trials", tuple(columns), rows)


def rungs_table(summary: Summary) -> Table:
    """Return the table of rungs, level by level."""
    titles = ("level", "budget", "trials", "done", "failed", "promoted", f"best {summary.goal_metric}")
    columns = tuple(Column(title, ColumnKind.TRIAL, numeric=title != "budget") for title in titles)
    rows = []
    for level in summary.levels:
        best = quantities.MISSING if level.best is None else summary.format(summary.goal_metric, level.best)
        numbers = (level.trials, level.done, level.failed, level.promoted)
        rows.append(Row.of(str(level.grant.level), phrases.grant(level.grant), *map(str, numbers), best))
    return Table("rungs", "Rungs", columns, tuple(rows))


def configuration(summary: Summary, trial: Trial) -> str:
    """Format the configuration of a trial on one line, without constant parameters."""
    return quantities.settings({name: trial.config[name] for name in _varied(summary) if name in trial.config})


def _varied(summary: Summary) -> list[str]:
    used = {name for trial in summary.trials for name in trial.config}
    return [name for name, parameter in summary.parameters.items() if parameter.size > 1 and name in used]


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
