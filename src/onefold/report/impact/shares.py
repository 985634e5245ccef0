"""How much each hyperparameter explains of a property, alone and two together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onefold.impact_analysis import Findings, Form, Importance, Property, Share
from onefold.impact_analysis.advice import MIN_EXPLAINED, is_trusted
from onefold.report.impact.phrases import part
from onefold.report.impact.tables import TITLES, properties
from onefold.report.table import Cell, Row, Table, columns
from onefold.vocabulary import quantities

SHOWN, PAIRS_SHOWN = 6, 3
TOGETHER = " × "
SEEN = 0.005  # a share below it is none


@dataclass(frozen=True, slots=True)
class Bar:
    """A share with its name."""

    name: str
    share: float
    told: str
    more: str


@dataclass(frozen=True, slots=True)
class Shares:
    """What is shown of one property: its hyperparameters, the strongest two together, and how far to believe it."""

    title: str
    bars: tuple[Bar, ...]
    pairs: tuple[Bar, ...]
    explained: str
    trusted: bool


def shares(found: Findings, form: Form) -> list[Shares]:
    """Of each property, largest first."""
    return [
        Shares(
            one.title,
            tuple(map(_bar, _seen(known.singles[:SHOWN]))),
            tuple(map(_bar, _seen(known.pairs[:PAIRS_SHOWN]))),
            explained(known),
            is_trusted(known),
        )
        for one, known in _known(found, form)
    ]


def explained(known: Importance) -> str:
    """How much of a property is foretold of unseen models, and from how many."""
    if known.explained is None:
        return known.note or "nothing differs"
    said = f"{part(max(0.0, known.explained))} explained, over {quantities.count(known.n, 'configuration')}"
    return f"{said}; {known.note}" if known.note else said


def singles_table(found: Findings, form: Form) -> Table:
    """The shares of each hyperparameter, in brackets where they are not to be believed."""
    known = _known(found, form)
    if not known:
        return Table(f"importance-{form}", TITLES[form], (), ())
    lines = [Row.of("explained", *(_foretold(each) for _, each in known), kind="baseline")]
    for name in dict.fromkeys(share.parameters[0] for _, each in known for share in each.singles):
        lines.append(Row.of(name, *(_cell(each, each.of(name)) for _, each in known)))
    notes = (f"Explained: out-of-bag R² of the forest. In brackets: below {part(MIN_EXPLAINED)}, so possibly noise.",)
    title = f"Share of the variance: {TITLES[form].lower()}"
    head = columns("hyperparameter", (one.title for one, _ in known))
    return Table(f"importance-{form}", title, head, tuple(lines), notes)


def pairs_table(found: Findings, form: Form) -> Table:
    """The hyperparameters that do most together, beyond what each does alone."""
    lines = []
    for one, each in _known(found, form):
        for share in _seen(each.pairs[:PAIRS_SHOWN]):
            lines.append(Row.of(one.title, Cell(TOGETHER.join(share.parameters)), _cell(each, share)))
    head = columns("property", ("hyperparameters", "share"), numeric=False)
    return Table(f"pairs-{form}", f"Two together: {TITLES[form].lower()}", head, tuple(lines))


def _known(found: Findings, form: Form) -> list[tuple[Property, Importance]]:
    return [(one, found.importance[form][one.name]) for one in properties(found) if one.name in found.importance[form]]


def _seen(known: Iterable[Share]) -> list[Share]:
    return [share for share in known if share.share >= SEEN]


def _bar(share: Share) -> Bar:
    told = part(share.share)
    return Bar(TOGETHER.join(share.parameters), share.share, told, f"{told} ± {part(share.spread)} over the trees")


def _cell(known: Importance, share: Share) -> Cell:
    told = part(share.share)
    return Cell(told) if is_trusted(known) else Cell(f"({told})", "quiet")


def _foretold(known: Importance) -> Cell:
    if known.explained is None:
        return Cell(quantities.NOTHING, "quiet", known.note)
    return Cell(part(max(0.0, known.explained)))
