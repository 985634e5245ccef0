"""Studies and trials as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from onefold.report.phrases import energy_with_source
from onefold.store import StudyRecord
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.quantities import NOTHING, duration, metric, settings
from onefold.vocabulary.ranking import ranked
from onefold.vocabulary.records import Measurement, StudyState, Trial


def best_trials(trials: Sequence[Trial], objective: Objective, most: int = 10) -> Table:
    """The best trials, one a row."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("trial", justify="right")
    for column in (*objective.metrics, "level", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("configuration", overflow="fold")
    for place, trial in enumerate(ranked(trials, objective)[:most]):
        metrics = [metric(name, trial.metrics[name]) for name in objective.metrics]
        row = [str(trial.number), *metrics, str(trial.level), duration(trial.cost.time_s), settings(trial.config)]
        table.add_row(*row, style="bold" if place == 0 else "")
    return table


def studies(records: Sequence[StudyRecord], running: set[str]) -> Table:
    """All studies, one a row."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("study", "state", "objective", "best", "time", "created"):
        table.add_column(column)
    for record in records:
        objective = Objective.from_json(record.spec["objective"])
        metrics = record.result.get("metrics", {})
        best = ", ".join(f"{name} {metric(name, metrics[name])}" for name in objective.metrics if name in metrics)
        created = record.created.replace("T", " ")[:16]
        table.add_row(
            record.name, state_of(record, running), str(objective), best or NOTHING, duration(record.elapsed_s), created
        )
    return table


def state_of(record: StudyRecord, running: set[str]) -> str:
    """The state in a word; a study that says it runs but has no process was killed."""
    if record.state is StudyState.RUNNING and record.name not in running:
        return "cut off (resume it)"
    return record.state.value


def cost(spent: Measurement) -> str:
    """Return the time and the energy of all training."""
    return f"{duration(spent.time_s)} of training, {energy_with_source(spent.energy)}"
