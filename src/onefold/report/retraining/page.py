"""The retraining report as a standalone HTML page."""

from __future__ import annotations

from collections.abc import Iterator

from onefold.report.html_page import render_page
from onefold.report.retraining import facts, plots, tables
from onefold.vocabulary.retraining import RetrainingSummary

REACTIONS_SHOWN, REACTIONS_FOLDED = 8, 100


def as_html(retrained: RetrainingSummary) -> str:
    """Render the page."""
    chosen = retrained.chosen
    plans, windows, layers = (
        tables.plans_table(retrained),
        tables.windows_table(retrained),
        tables.layers_table(retrained.layers),
    )
    return render_page(
        "retraining/page.html",
        retrained=retrained,
        subtitle=facts.subtitle(retrained),
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
    yield "predicted", "estimated before the plan ran, not measured"
    yield "memory", "measured: the peak inside a micro-window; —: not reported by the system"
    yield "limit", "at the end of the micro-window"
    yield (
        retrained.metric,
        "at the end of a micro-window, on the validation data or a subset of it",
    )
    yield "gain", "relative decrease of the validation loss per second of the micro-window"
    yield "time", "since the retraining began, on a monotonic clock"
