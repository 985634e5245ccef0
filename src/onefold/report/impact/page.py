"""What a study of impact found, as one HTML file that stands alone."""

from __future__ import annotations

from collections.abc import Iterator

from onefold.impact_analysis import Findings, advice
from onefold.report.html_page import render_page
from onefold.report.impact import tables
from onefold.report.impact.facts import aim, measured, tiles
from onefold.report.impact.phrases import change
from onefold.report.impact.shares import shares
from onefold.report.plots.boxes import boxes
from onefold.report.plots.density import density
from onefold.report.plots.marks import Plot
from onefold.vocabulary import quantities

PANELS = {
    "all": ("All models", "What tune all has made, plain; the metric after the first, short training."),
    "best": ("Best models", "The best of tune all, plain."),
    "best compressed": ("Best models, compressed", "The same models once they are compressed."),
}


def as_html(findings: Findings) -> str:
    """The page."""
    return render_page(
        "impact/page.html",
        "impact/page.css",
        evidence=findings.evidence,
        aim=aim(findings.evidence),
        tiles=list(tiles(findings)),
        advice=advice(findings),
        effects=[tables.effects(findings, form) for form in findings.forms],
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
    titles = {one.name: one.title for one in tables.properties(findings)}
    for models, (title, caption) in PANELS.items():
        samples = {titles[one.property]: one.scaled for one in findings.distributions if one.models == models}
        if samples:
            count = len(next(iter(samples.values())))
            yield boxes(
                f"spread-{models.replace(' ', '-')}",
                f"{title} ({count})",
                caption,
                samples,
                axis="times the least",
                base=1.0,
                written=quantities.factor,
            )
    if findings.changes:
        samples = {titles[name]: values for name, values in findings.changes.items()}
        yield boxes(
            "changes",
            "What compression changes",
            "Each best model compressed, beside itself plain.",
            samples,
            axis="change (%)",
            base=0.0,
            unit=0.01,
            written=change,
        )


def _densities(findings: Findings) -> Plot:
    titles = {one.name: one.title for one in tables.properties(findings)}
    return density(
        "densities",
        "How differences between models change",
        "For each pair of best models: their relative difference compressed, less what it was plain.",
        {titles[name]: pair.delta for name, pair in findings.pairs.items()},
        axis="percentage points",
        noun="pair",
        unit=0.01,
        written=change,
    )
