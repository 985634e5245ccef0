"""Several impact analyses on one page: where the same hyperparameter has another impact on another model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onefold.impact_analysis import TUNE_ALL, Findings, Form, Property
from onefold.report.html_page import render_page
from onefold.report.impact.facts import subtitle
from onefold.report.impact.phrases import effect_details
from onefold.report.impact.plain import as_json
from onefold.report.impact.tables import EMPTY, TITLES, effect_cell, properties
from onefold.report.impact.tradeoffs import COSTS, tradeoff
from onefold.report.plots.marks import Plot
from onefold.report.table import Cell, Row, Table, columns
from onefold.report.text_layout import joined, one_line, table_lines, wrapped

WIDTH = 100
TITLE = "Impact analyses side by side"


@dataclass(frozen=True, slots=True)
class SideBySideReport:
    """The report of several impact analyses. A `Report`."""

    subjects: Sequence[Findings]

    def as_text(self) -> str:
        """Return plain text."""
        head = [TITLE, *(f"{one_line(name)}: {one_line(text)}" for name, text in self._facts())]
        summary = [line for part in differences(self.subjects) for line in wrapped(part, WIDTH, "  - ", "    ")]
        return joined([head, summary, *(table_lines(table, WIDTH) for table in _tables(self.subjects) if table.rows)])

    def as_json(self) -> list[dict[str, Any]]:
        """Return the findings of each subject."""
        return [as_json(findings) for findings in self.subjects]

    def as_html(self) -> str:
        """Return the page."""
        return render_page(
            "impact/side_by_side.html",
            "impact/page.css",
            title=TITLE,
            facts=list(self._facts()),
            differences=differences(self.subjects),
            effects=[table for form in _forms(self.subjects) for table in _effect_tables(self.subjects, form)],
            deviations=deviations(self.subjects),
            plots=list(_plots(self.subjects)),
        )

    def _facts(self) -> Iterator[tuple[str, str]]:
        for name, findings in zip(names(self.subjects), self.subjects):
            yield name, subtitle(findings.evidence)


def names(subjects: Sequence[Findings]) -> list[str]:
    """Return the workloads, each with its device if a workload occurs twice."""
    plain = [findings.evidence.workload for findings in subjects]
    return [
        name if plain.count(name) == 1 else f"{name} on {findings.evidence.device}"
        for name, findings in zip(plain, subjects)
    ]


def differences(subjects: Sequence[Findings]) -> list[str]:
    """Name, for each property, what affects some of the models significantly and others not."""
    lines = []
    for prop in _properties(subjects):
        by_arm = {
            arm: [_affects(findings, arm, prop) for findings in subjects]
            for arm in _arms(subjects)
            if sum(_affects(findings, arm, prop) is not None for findings in subjects) > 1
        }
        varying = []
        for arm, answers in by_arm.items():
            affected = [name for name, answer in zip(names(subjects), answers) if answer]
            others = [name for name, answer in zip(names(subjects), answers) if answer is False]
            if affected and others:
                varying.append(f"{arm.removeprefix('fix ')} ({', '.join(affected)}; not {', '.join(others)})")
        if varying:
            lines.append(f"{prop.title} is affected in some of them by {', '.join(varying)}.")
    return lines


def deviations(subjects: Sequence[Findings]) -> Table:
    """Return the largest deviation among the best models of each subject: the paper's table 4."""
    forms = _forms(subjects)
    lines = []
    for prop in _properties(subjects):
        cells = []
        for findings in subjects:
            known = next((each for each in findings.deviations if each.property == prop.name), None)
            values = () if known is None else (known.plain, known.compressed)[: len(forms)]
            shown = [EMPTY if value is None else Cell(f"{value:,.3f}") for value in values]
            cells += shown or [EMPTY] * len(forms)
        lines.append(Row.of(prop.title, *cells))
    head = columns("property", tuple(forms) * len(subjects))
    groups = tuple((name, len(forms)) for name in names(subjects))
    notes = ("|best - worst| / worst, among the best models of tune all.",)
    return Table("deviations", "Largest deviation (LARD)", head, tuple(lines), notes, groups)


def _tables(subjects: Sequence[Findings]) -> Iterator[Table]:
    for form in _forms(subjects):
        yield from _effect_tables(subjects, form)
    yield deviations(subjects)


def _effect_tables(subjects: Sequence[Findings], form: Form) -> Iterator[Table]:
    """Return one table per property: what is held fixed by subject."""
    notes = (
        "Of pairs of models from the same draw: the magnitude of the paired Cliff's delta if the difference to tune "
        "all is significant, or whether the property rises or falls with the hyperparameter if that is, or else the "
        "p-value; = if no pair differs.",
    )
    for prop in _properties(subjects):
        lines = []
        for arm in _arms(subjects):
            effects = [findings.effect(arm, prop.name, form) for findings in subjects]
            cells = [effect_cell(effect, effect_details(effect)) if effect else EMPTY for effect in effects]
            lines.append(Row.of(arm.removeprefix("fix "), *cells))
        yield Table(
            f"{form}-{prop.name.replace('_', '-')}",
            f"{TITLES[form]}: {prop.title}",
            columns("held fixed", names(subjects), numeric=False),
            tuple(lines),
            notes,
        )


def _plots(subjects: Sequence[Findings]) -> Iterator[Plot]:
    for number, (name, findings) in enumerate(zip(names(subjects), subjects), start=1):
        known = {prop.name: prop for prop in properties(findings)}
        costs = [known[each] for each in COSTS if each in known and findings.evidence.metric in known]
        for form in findings.forms if costs else ():
            plot = tradeoff(findings, form, costs[0])
            yield replace(plot, name=f"{plot.name}-{number}", title=f"{name}. {plot.title}")


def _affects(findings: Findings, arm: str, prop: Property) -> bool | None:
    """Return whether an arm affects a property of plain models significantly; None if it was not tested."""
    effect = findings.effect(arm, prop.name)
    return None if effect is None or not effect.paired.n else effect.is_significant


def _arms(subjects: Sequence[Findings]) -> list[str]:
    return [
        arm
        for arm in dict.fromkeys(arm.name for findings in subjects for arm in findings.evidence.arms)
        if arm != TUNE_ALL
    ]


def _properties(subjects: Sequence[Findings]) -> list[Property]:
    return list({prop.name: prop for findings in subjects for prop in properties(findings)}.values())


def _forms(subjects: Sequence[Findings]) -> list[Form]:
    return list(dict.fromkeys(form for findings in subjects for form in findings.forms))
