"""The overview of an impact analysis: its arms, trials and models, and how properties were measured."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from onefold.impact_analysis import Findings, ImpactMeasurements
from onefold.report.impact.phrases import rsd
from onefold.report.tile import Tile
from onefold.vocabulary import quantities


def subtitle(evidence: ImpactMeasurements) -> str:
    """Return the metric, its direction and the devices."""
    direction = "higher" if evidence.higher_is_better else "lower"
    devices = f"{evidence.device}; plain models on {evidence.server}" if evidence.server else evidence.device
    return f"{evidence.metric}, {direction} is better, on {devices}"


def tiles(findings: Findings) -> Iterator[Tile]:
    """Return the numbers of arms, trials and models."""
    evidence = findings.evidence
    sizes = [len(arm.members) for arm in evidence.arms]
    yield Tile("Arms", f"{len(sizes):,}", f"{_range(sizes)} trials each")
    configs, total, failed = len(evidence.configs), sum(sizes), len(evidence.failures)
    note = f"of {total:,}: configurations that arms share are trained once" if configs < total else "none are shared"
    yield Tile("Trials", f"{configs:,}", note, badge=f"{failed:,} failed" if failed else "")
    counts = [len(trials) for trials in evidence.best.values()]
    yield Tile("Models measured", f"{len(evidence.models):,}", f"including the best {_range(counts)} of each arm")
    compressed = sum(bool(model.compressed) for model in evidence.models.values())
    yield Tile("Compressed", f"{compressed:,}" if compressed else quantities.MISSING, _recipe(evidence))
    if known := evidence.repeatability("latency_s"):
        note = f"relative standard deviation (RSD) of the latency, median over models; at most {rsd(max(known))}"
        yield Tile("Repeatability", rsd(median(known)), note)


def measured(findings: Findings) -> Iterator[tuple[str, str]]:
    """Return how each property was measured, and which were skipped."""
    titles = {prop.name: prop.title for prop in findings.evidence.properties}
    for name, description in findings.evidence.ways.items():
        yield titles.get(name, name), description
    yield "compression", _recipe(findings.evidence)
    if any(model.control for model in findings.evidence.models.values()):
        yield "control", "changes by compression are relative to the plain model after as much further training"
    for reason in findings.skipped:
        yield "skipped", reason


def _recipe(evidence: ImpactMeasurements) -> str:
    compressed = any(model.compressed for model in evidence.models.values())
    return evidence.recipe if compressed else "none"


def _range(counts: list[int]) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
