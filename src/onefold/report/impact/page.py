"""The report of an impact analysis as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterator

from onefold.impact_analysis import Findings, advice
from onefold.report.html_page import render_page
from onefold.report.impact import tables
from onefold.report.impact.facts import measured, subtitle, tiles
from onefold.report.impact.phrases import change
from onefold.report.impact.shares import shares
from onefold.report.impact.tradeoffs import tradeoffs
from onefold.report.plots.boxes import boxes
from onefold.report.plots.density import density
from onefold.report.plots.marks import Plot
from onefold.vocabulary import quantities

PANELS = {
    "all": ("All models", "All plain models of tune all; the metric after the first rung."),
    "best": ("Best models", "The best plain models of tune all."),
    "best compressed": ("Best models, compressed", "The same models, compressed."),
}


def as_html(findings: Findings) -> str:
    """Return the page."""
    return render_page(
        "impact/page.html",
        "impact/page.css",
        evidence=findings.evidence,
        subtitle=subtitle(findings.evidence),
        tiles=list(tiles(findings)),
        advice=advice(findings),
        effects=[(tables.effects(findings, form), tables.unpaired(findings, form)) for form in findings.forms],
        tradeoffs=list(tradeoffs(findings)),
        spreads=[*_spreads(findings)],
        spread=tables.spread(findings),
        deviations=tables.deviations(findings),
        pairs=tables.pairs(findings) if findings.pairs else None,
        densities=_densities(findings) if findings.pairs else None,
        correlations=[tables.correlated(findings, form) for form in findings.forms],
        shares=[(tables.TITLES[form], shares(findings, form)) for form in findings.forms],
        best=tables.best_models(findings),
        failures=tables.failures(findings),
        measured=list(measured(findings)),
    )


def _spreads(findings: Findings) -> Iterator[Plot]:
    titles = {prop.name: prop.title for prop in tables.properties(findings)}
    for models, (title, caption) in PANELS.items():
        samples = {
            titles[sample.property]: sample.scaled for sample in findings.distributions if sample.models == models
        }
        if samples:
            count = len(next(iter(samples.values())))
            yield boxes(
                f"spread-{models.replace(' ', '-')}",
                f"{title} ({count})",
                caption,
                samples,
                axis="multiple of the smallest",
                base=1.0,
                format_value=quantities.factor,
            )
    if findings.changes:
        samples = {titles[name]: values for name, values in findings.changes.items()}
        yield boxes(
            "changes",
            "Change by compression",
            "Each of the best models, compressed, relative to the plain model after as much training.",
            samples,
            axis="change (%)",
            base=0.0,
            unit=0.01,
            format_value=change,
        )


def _densities(findings: Findings) -> Plot:
    titles = {prop.name: prop.title for prop in tables.properties(findings)}
    return density(
        "densities",
        "Change of differences between models",
        "For each pair of best models: relative difference after compression minus before.",
        {titles[name]: pair.delta for name, pair in findings.pairs.items()},
        axis="percentage points",
        noun="pair",
        unit=0.01,
        format_value=change,
    )
