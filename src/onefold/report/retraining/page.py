"""A retraining as one HTML file that stands alone."""

from __future__ import annotations

from collections.abc import Iterator

from onefold.report.html_page import render_page
from onefold.report.retraining import facts, plots, tables
from onefold.vocabulary.retraining import RetrainingSummary

REACTIONS_SHOWN, REACTIONS_FOLDED = 8, 100


def as_html(retrained: RetrainingSummary) -> str:
    """The page."""
    chosen = retrained.chosen
    plans, windows, layers = (
        tables.plans_sheet(retrained),
        tables.windows_sheet(retrained),
        tables.layers_sheet(retrained.layers),
    )
    return render_page(
        "retraining/page.html",
        retrained=retrained,
        aim=facts.aim(retrained),
        gained=facts.gained(retrained) if retrained.kept_new else "",
        stays=facts.STAYS,
        tiles=list(facts.tiles(retrained)),
        why=facts.why(retrained),
        chosen=None if chosen is None else facts.numbered(retrained)[chosen],
        settings=[] if chosen is None else list(facts.of_plan(retrained, chosen)),
        predictions=facts.predictions(retrained),
        plots=[plots.memory(retrained), plots.metric(retrained), plots.loss(retrained)],
        reactions=retrained.reactions[:REACTIONS_SHOWN],
        folded=retrained.reactions[REACTIONS_SHOWN : REACTIONS_SHOWN + REACTIONS_FOLDED],
        sheets={sheet.name: sheet for sheet in (plans, windows, layers) if sheet.rows},
        measured=list(_measured(retrained)),
    )


def _measured(retrained: RetrainingSummary) -> Iterator[tuple[str, str]]:
    yield "predicted", "what a plan was expected to need before it ran: an estimate, not a measurement"
    yield "memory", "measured: the peak inside a micro-window; —: the system does not tell"
    yield "limit", "as it stood when the micro-window ended"
    yield (
        retrained.metric,
        "at the end of a micro-window, on data that is kept back from retraining, or on a part of it",
    )
    yield "gain", "what a micro-window gained for each second that it took"
    yield "time", "since the retraining began, on a clock that only goes forward"
