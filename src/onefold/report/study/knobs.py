"""The section of a report about tuned knobs."""

from __future__ import annotations

from dataclasses import dataclass

from onefold.report import phrases
from onefold.report.plots.marks import Plot
from onefold.report.plots.timeline import timeline
from onefold.report.study.summary import Summary
from onefold.report.table import Column, ColumnKind, Row, Table
from onefold.vocabulary import quantities
from onefold.vocabulary.knobs import KnobRecord, Phase, changed_knobs, default_knobs, knob_gain, knobs_in_use

MAX_TRIALS = 12
MAX_NOTES = 20


@dataclass(frozen=True, slots=True)
class KnobSection:
    """What a report shows about tuned knobs."""

    table: Table
    plot: Plot | None
    notes: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]  # unavailable knobs, with the reason for each


def knob_section(summary: Summary) -> KnobSection | None:
    """Return the section about knobs; None if the study tuned none. The plot shows the best trial."""
    by_trial = _by_trial(summary)
    if not by_trial:
        return None
    best = summary.best.number if summary.best is not None and summary.best.number in by_trial else None
    shown = best if best is not None else next(iter(by_trial))
    has_windows = any(record.windows for record in by_trial[shown])
    notes = [
        f"trial {record.trial}, epoch {record.epoch}: {note}"
        for record in summary.knob_records
        for note in record.notes
    ]
    missing = {name: reason for record in summary.knob_records for name, reason in record.missing.items()}
    return KnobSection(
        knobs_table(summary),
        timeline(shown, by_trial[shown]) if has_windows else None,
        tuple(notes[:MAX_NOTES]),
        tuple(sorted(missing.items())),
    )


def knobs_table(summary: Summary) -> Table:
    """Return a row per trial with tuned knobs: its final knobs, how they were found, and the gain."""
    columns = (
        Column("trial", ColumnKind.TRIAL),
        Column("found by", ColumnKind.TRIAL, numeric=False),
        Column("knobs", ColumnKind.SETTING, numeric=False),
        Column("step before", ColumnKind.COST),
        Column("step after", ColumnKind.COST),
        Column("gain", ColumnKind.GOAL),
        Column("windows probed", ColumnKind.COST),
    )
    rows = []
    for trial, records in _by_trial(summary).items():
        phases = [window.phase for record in records for window in record.windows]
        if not phases:
            continue
        windows = knob_gain(records)
        gain = (
            (phrases.step(windows[0]), phrases.step(windows[1]), f"{windows[0].step_s / windows[1].step_s:.2f}×")
            if windows is not None
            else (quantities.MISSING,) * 3
        )
        in_use = knobs_in_use(records)
        cells = (
            str(trial),
            "recall" if Phase.RECALLED in phases else "probing" if Phase.PROBED in phases else quantities.MISSING,
            quantities.settings(changed_knobs(default_knobs(records), in_use)) or "defaults",
            *gain,
            str(phases.count(Phase.PROBED)),
        )
        rows.append(Row.of(*cells, trial=trial))
    return Table("knobs", "Knobs", columns, tuple(rows[:MAX_TRIALS]))


def _by_trial(summary: Summary) -> dict[int, list[KnobRecord]]:
    by_trial: dict[int, list[KnobRecord]] = {}
    for record in summary.knob_records:
        by_trial.setdefault(record.trial, []).append(record)
    return by_trial
