"""The part of a report that shows the best trials compressed: which variant to take, and why not the others."""

from __future__ import annotations

from onefold.report.study.summary import Summary
from onefold.report.table import Column, ColumnKind, Row, Table
from onefold.vocabulary import quantities
from onefold.vocabulary.records import from_json
from onefold.vocabulary.variants import SHORTLIST, Shortlist


def shortlist_of(summary: Summary) -> Shortlist | None:
    """The variants of a study's best trials; None where none were made."""
    kept = (summary.study.result or {}).get(SHORTLIST)
    return None if kept is None else from_json(Shortlist, kept)


def remarks(found: Shortlist) -> tuple[str, ...]:
    """What else is to be said: forms that could not be made, and trials that could not be measured."""
    said = [f"{one}: {note}" for one in found.candidates for note in one.variant.notes]
    return (*said, *(f"trial {trial}: {why}" for trial, why in found.failures.items()))


def shortlist_table(found: Shortlist) -> Table:
    """A row for each variant, smallest first, with the verdict on it."""
    columns = (
        Column("trial", ColumnKind.TRIAL),
        Column("variant", ColumnKind.SETTING, numeric=False),
        Column(found.metric, ColumnKind.GOAL),
        Column("latency", ColumnKind.COST),
        Column("energy", ColumnKind.COST),
        Column("size", ColumnKind.COST),
        Column("encoded", ColumnKind.COST),
        Column("verdict", ColumnKind.SETTING, numeric=False),
    )
    rows = []
    for one in sorted(found.candidates, key=lambda one: one.variant.smallest_bytes):
        variant = one.variant
        joules = variant.energy.joules
        cells = (
            str(one.trial),
            str(variant.recipe),
            f"{variant.metrics[found.metric]:.4f}",
            quantities.duration(variant.latency_s),
            quantities.NOTHING if joules is None else quantities.joules(joules),
            quantities.size(variant.size_bytes),
            quantities.size(variant.smallest_bytes),
            "taken" if one is found.choice else f"not taken: {one.refused}" if one.refused else "would do",
        )
        rows.append(Row.of(*cells, trial=one.trial))
    return Table("shortlist", "Compressed", columns, tuple(rows))
