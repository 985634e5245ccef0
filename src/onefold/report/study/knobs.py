"""The part of a report that says what turning knobs came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onefold.report import phrases
from onefold.report.plots.marks import Plot
from onefold.report.plots.timeline import timeline
from onefold.report.study.summary import Summary
from onefold.report.table import Column, ColumnKind, Row, Table
from onefold.vocabulary import quantities
from onefold.vocabulary.knobs import Phase, Steered, changed, gained
from onefold.vocabulary.records import to_json

SHOWN = 12  # trials
NOTES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Turned:
    """What is shown of knobs."""

    table: Table
    plot: Plot | None
    notes: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]  # knobs that could not be turned, and why


def turned_knobs(summary: Summary) -> Turned | None:
    """What is shown of knobs; None where none were turned."""
    by_trial = _by_trial(summary)
    if not by_trial:
        return None
    best = summary.best.number if summary.best is not None and summary.best.number in by_trial else None
    shown = best if best is not None else next(iter(by_trial))
    has_windows = any(each.windows for each in by_trial[shown])
    notes = [f"trial {each.trial}, epoch {each.epoch}: {note}" for each in summary.steered for note in each.notes]
    missing = {name: why for each in summary.steered for name, why in each.missing.items()}
    return Turned(
        knobs_table(summary),
        timeline(shown, by_trial[shown]) if has_windows else None,
        tuple(notes[:NOTES_SHOWN]),
        tuple(sorted(missing.items())),
    )


def knobs_table(summary: Summary) -> Table:
    """A row for each trial whose knobs were looked at: what it was left with, how that was found, what it gained."""
    columns = (
        Column("trial", ColumnKind.TRIAL),
        Column("how", ColumnKind.TRIAL, numeric=False),
        Column("knobs", ColumnKind.SETTING, numeric=False),
        Column("a step before", ColumnKind.COST),
        Column("after", ColumnKind.COST),
        Column("gain", ColumnKind.GOAL),
        Column("windows tried", ColumnKind.COST),
    )
    rows = []
    for trial, steered in _by_trial(summary).items():
        found = gained(steered)
        if found is None:
            continue
        before, after = found
        tried = sum(window.phase is Phase.PROBED for each in steered for window in each.windows)
        how = "recalled" if after.phase is Phase.RECALLED else "probed"
        cells = (
            str(trial),
            how,
            quantities.settings(changed(before, after)) or "as they were",
            phrases.step(before),
            phrases.step(after),
            f"{before.step_s / after.step_s:.2f}×",
            str(tried),
        )
        rows.append(Row.of(*cells, trial=trial))
    return Table("knobs", "Knobs", columns, tuple(rows[:SHOWN]))


def knobs_json(summary: Summary) -> list[dict[str, Any]]:
    """Every window of every trial."""
    return [to_json(each) for each in summary.steered]


def _by_trial(summary: Summary) -> dict[int, list[Steered]]:
    found: dict[int, list[Steered]] = {}
    for each in summary.steered:
        found.setdefault(each.trial, []).append(each)
    return found
