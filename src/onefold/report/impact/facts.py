"""What a study of impact did, in a few words: what was tried, shared, measured and compressed, and how."""

from __future__ import annotations

from collections.abc import Iterator

from onefold.impact_analysis import Findings, ImpactMeasurements
from onefold.report.tile import Tile
from onefold.vocabulary import quantities


def aim(evidence: ImpactMeasurements) -> str:
    """What was tuned for, and where."""
    return f"{evidence.metric}, {'higher' if evidence.higher_is_better else 'lower'} is better, on {evidence.device}"


def tiles(findings: Findings) -> Iterator[Tile]:
    """The study in four numbers."""
    evidence = findings.evidence
    sizes = [len(arm.members) for arm in evidence.arms]
    yield Tile("Arms", f"{len(sizes):,}", f"{_range(sizes)} trials each")
    ran, asked, failed = len(evidence.configs), sum(sizes), len(evidence.failures)
    note = (
        f"of {asked:,} asked for: what arms have in common is trained once" if ran < asked else "none could be shared"
    )
    yield Tile("Trainings", f"{ran:,}", note, badge=f"{failed:,} failed" if failed else "")
    counts = [len(trials) for trials in evidence.best.values()]
    yield Tile("Models measured", f"{len(evidence.models):,}", f"among them the best {_range(counts)} of each arm")
    compressed = sum(bool(model.compressed) for model in evidence.models.values())
    yield Tile("Compressed", f"{compressed:,}" if compressed else quantities.NOTHING, _recipe(evidence))


def measured(findings: Findings) -> Iterator[tuple[str, str]]:
    """How values came about, and what could not be said."""
    titles = {one.name: one.title for one in findings.evidence.properties}
    for name, way in findings.evidence.ways.items():
        yield titles.get(name, name), way
    yield "compression", _recipe(findings.evidence)
    for said in findings.skipped:
        yield "left out", said


def _recipe(evidence: ImpactMeasurements) -> str:
    compressed = any(model.compressed for model in evidence.models.values())
    return evidence.recipe if compressed else "no model was compressed"


def _range(counts: list[int]) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
