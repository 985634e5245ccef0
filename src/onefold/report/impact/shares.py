"""The importance of hyperparameters for each property, alone and in pairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onefold.impact_analysis import Findings, Form, Importance, Property, Share
from onefold.impact_analysis.advice import MIN_EXPLAINED, is_trusted
from onefold.report.impact.phrases import percent
from onefold.report.impact.tables import TITLES, properties
from onefold.report.table import Cell, Row, Table, columns
from onefold.vocabulary import quantities

SHOWN, PAIRS_SHOWN = 6, 3
INTERACTION = " × "
MIN_SHOWN_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class Bar:
    """A share with its label and tooltip."""

    name: str
    share: float
    text: str
    tooltip: str


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares for one property: of hyperparameters, of pairs, and whether they can be trusted."""

    title: str
    bars: tuple[Bar, ...]
    pairs: tuple[Bar, ...]
    explained: str
    trusted: bool


def shares(findings: Findings, form: Form) -> list[Shares]:
    """Return the shares for each property, largest first."""
    return [
        Shares(
            prop.title,
            tuple(map(_bar, _seen(importance.singles[:SHOWN]))),
            tuple(map(_bar, _seen(importance.pairs[:PAIRS_SHOWN]))),
            explained(importance),
            is_trusted(importance),
        )
        for prop, importance in _importances(findings, form)
    ]


def explained(importance: Importance) -> str:
    """Describe how much of the variance the forest explains, and over how many configurations."""
    if importance.explained is None:
        return importance.note or "nothing varies"
    text = (
        f"{percent(max(0.0, importance.explained))} explained, over {quantities.count(importance.n, 'configuration')}"
    )
    return f"{text}; {importance.note}" if importance.note else text


def singles_table(findings: Findings, form: Form) -> Table:
    """Return the shares of single hyperparameters, in brackets if they are not trusted."""
    importances = _importances(findings, form)
    if not importances:
        return Table(f"importance-{form}", TITLES[form], (), ())
    lines = [Row.of("explained", *(_explained_cell(importance) for _, importance in importances), kind="baseline")]
    for name in dict.fromkeys(share.parameters[0] for _, importance in importances for share in importance.singles):
        lines.append(Row.of(name, *(_cell(importance, importance.of(name)) for _, importance in importances)))
    notes = (
        f"Explained: out-of-bag R² of the forest. In brackets: below {percent(MIN_EXPLAINED)}, so possibly noise.",
    )
    title = f"Share of the variance: {TITLES[form].lower()}"
    head = columns("hyperparameter", (prop.title for prop, _ in importances))
    return Table(f"importance-{form}", title, head, tuple(lines), notes)


def pairs_table(findings: Findings, form: Form) -> Table:
    """Return the strongest interactions of two hyperparameters."""
    lines = []
    for prop, importance in _importances(findings, form):
        for share in _seen(importance.pairs[:PAIRS_SHOWN]):
            lines.append(Row.of(prop.title, Cell(INTERACTION.join(share.parameters)), _cell(importance, share)))
    head = columns("property", ("hyperparameters", "share"), numeric=False)
    return Table(f"pairs-{form}", f"Interactions: {TITLES[form].lower()}", head, tuple(lines))


def _importances(findings: Findings, form: Form) -> list[tuple[Property, Importance]]:
    return [
        (prop, findings.importance[form][prop.name])
        for prop in properties(findings)
        if prop.name in findings.importance[form]
    ]


def _seen(shares: Iterable[Share]) -> list[Share]:
    return [share for share in shares if share.share >= MIN_SHOWN_SHARE]


def _bar(share: Share) -> Bar:
    text = percent(share.share)
    return Bar(
        INTERACTION.join(share.parameters), share.share, text, f"{text} ± {percent(share.spread)} over the trees"
    )


def _cell(importance: Importance, share: Share) -> Cell:
    text = percent(share.share)
    return Cell(text) if is_trusted(importance) else Cell(f"({text})", "quiet")


def _explained_cell(importance: Importance) -> Cell:
    if importance.explained is None:
        return Cell(quantities.MISSING, "quiet", importance.note)
    return Cell(percent(max(0.0, importance.explained)))
