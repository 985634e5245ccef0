"""The compression section of a study report: variants of the best trials, and which one is recommended."""

from __future__ import annotations

from onefold.report.study.summary import Summary
from onefold.report.table import Column, ColumnKind, Row, Table
from onefold.vocabulary import quantities
from onefold.vocabulary.records import from_json
from onefold.vocabulary.variants import SHORTLIST, Shortlist


def shortlist_of(summary: Summary) -> Shortlist | None:
    """Return the shortlist of compressed variants; None if the study has none."""
    kept = (summary.study.result or {}).get(SHORTLIST)
    return None if kept is None else from_json(Shortlist, kept)


def remarks(shortlist: Shortlist) -> tuple[str, ...]:
    """Return notes on variants that could not be built and on trials that could not be measured."""
    notes = [f"{candidate}: {note}" for candidate in shortlist.candidates for note in candidate.variant.notes]
    return (*notes, *(f"trial {trial}: {why}" for trial, why in shortlist.failures.items()))


def shortlist_table(shortlist: Shortlist) -> Table:
    """Return a table with one row per variant, smallest first, and the verdict on each."""
    columns = (
        Column("trial", ColumnKind.TRIAL),
        Column("variant", ColumnKind.SETTING, numeric=False),
        Column(shortlist.metric, ColumnKind.GOAL),
        Column("latency", ColumnKind.COST),
        Column("energy", ColumnKind.COST),
        Column("size", ColumnKind.COST),
        Column("encoded", ColumnKind.COST),
        Column("verdict", ColumnKind.SETTING, numeric=False),
    )
    rows = []
    for candidate in sorted(shortlist.candidates, key=lambda candidate: candidate.variant.smallest_bytes):
        variant = candidate.variant
        joules = variant.energy.joules
        cells = (
            str(candidate.trial),
            str(variant.recipe),
            f"{variant.metrics[shortlist.metric]:.4f}",
            quantities.duration(variant.latency_s),
            quantities.joules(joules),
            quantities.size(variant.size_bytes),
            quantities.size(variant.smallest_bytes),
            "recommended"
            if candidate is shortlist.choice
            else f"rejected: {candidate.refused}"
            if candidate.refused
            else "acceptable",
        )
        rows.append(Row.of(*cells, trial=candidate.trial))
    return Table("shortlist", "Compressed", columns, tuple(rows))
