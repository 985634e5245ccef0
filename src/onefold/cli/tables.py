"""Studies and trials as terminal tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from onefold.report.phrases import energy_with_source
from onefold.store import StudyRecord
from onefold.study.spec import Spec
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.quantities import MISSING, duration, metric, settings
from onefold.vocabulary.records import Measurement, Metrics, StudyState, Trial


def plain_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return a borderless table; the columns in `right` are right-aligned."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    return table


def best_trials(ranking: Sequence[Trial], objective: Objective, most: int = 10) -> Table:
    """Return the table of the first trials of a ranking."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("trial", justify="right")
    for column in (*objective.metrics, "level", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("configuration", overflow="fold")
    for rank, trial in enumerate(ranking[:most]):
        metrics = [metric(name, trial.metrics[name]) for name in objective.metrics]
        row = [str(trial.number), *metrics, str(trial.level), duration(trial.cost.time_s), settings(trial.config)]
        table.add_row(*row, style="bold" if rank == 0 else "")
    return table


def studies(records: Sequence[StudyRecord], running: set[str], best_metrics: Mapping[str, Metrics]) -> Table:
    """Return the table of all studies with their best metrics; `running` are the names of those that have a process."""
    table = plain_table("study", "state", "objective", "best", "time", "created")
    for record in records:
        if record.problem:
            table.add_row(record.name, "unreadable", MISSING, MISSING, MISSING, record.created.replace("T", " ")[:16])
            continue
        objective = Spec.from_json(record.spec).objective
        metrics = best_metrics[record.name]
        best = ", ".join(f"{name} {metric(name, metrics[name])}" for name in objective.metrics if name in metrics)
        created = record.created.replace("T", " ")[:16]
        state = state_label(record, running)
        table.add_row(record.name, state, str(objective), best or MISSING, duration(record.elapsed_s), created)
    return table


def state_label(record: StudyRecord, running: set[str]) -> str:
    """Return the state of a study; one that is stored as running but has no process was killed."""
    if record.state is StudyState.RUNNING and record.name not in running:
        return "killed (resume it)"
    return record.state.value


def cost(measurement: Measurement) -> str:
    """Format the time and the energy of all training."""
    return f"{duration(measurement.time_s)} of training, {energy_with_source(measurement.energy)}"
