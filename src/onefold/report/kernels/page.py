"""A compilation, or several, as one HTML file that stands alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onefold.report import phrases
from onefold.report.html_page import render_page
from onefold.report.kernels import facts, tables
from onefold.report.kernels.scatter import scatter
from onefold.report.kernels.survey import survey
from onefold.report.plots.marks import Plot
from onefold.report.table import Table
from onefold.report.tile import Tile
from onefold.vocabulary.kernels import CompileResult


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown of one model; `mark` is what its parts are told apart by from those of others."""

    compiled: CompileResult
    mark: str
    aim: str
    reason: str
    fastest: bool  # whether what was compiled is what to take
    tiles: tuple[Tile, ...]
    outcome: tuple[tuple[str, str], ...]
    brought: tuple[str, ...]
    runtimes: Table
    phases: Table
    fates: Table
    operators: Table
    levels: Table
    survey: Plot
    scatter: Plot


def as_html(several: Sequence[CompileResult]) -> str:
    """Return the page of one model, or of several one after the other."""
    # The same loops have the same number in all models: they light up together.
    keys = dict.fromkeys(key for one in several for key in _keys(one))
    numbers = {key: place + 1 for place, key in enumerate(keys)}
    names = ", ".join(dict.fromkeys(one.model for one in several)) or "no model"
    return render_page(
        "kernels/page.html",
        "kernels/page.css",
        title=f"Kernels of {names}",
        models=[_shown(one, numbers, f"-{place + 1}" if place else "") for place, one in enumerate(several)],
        short=tables.models_sheet(several) if len(several) > 1 else None,
        measured=list(_measured(several)),
    )


def _keys(compiled: CompileResult) -> Iterator[str]:
    for one in compiled.rounds[-1:]:
        yield from (state.operator.key for state in one.operators)
    yield from (history.operator.key for history in compiled.histories)


def _shown(compiled: CompileResult, numbers: Mapping[str, int], mark: str) -> Shown:
    return Shown(
        compiled=compiled,
        mark=mark,
        aim=facts.aim(compiled),
        reason=facts.reason(compiled),
        fastest=compiled.recommended == facts.COMPILED,
        tiles=tuple(facts.tiles(compiled)),
        outcome=tuple(facts.outcome(compiled)),
        brought=tuple(facts.brought(compiled)),
        runtimes=tables.runtimes_sheet(compiled),
        phases=tables.phases_sheet(compiled),
        fates=tables.fates_sheet(compiled),
        operators=tables.operators_sheet(compiled, numbers),
        levels=tables.levels_sheet(compiled),
        survey=survey(compiled, mark),
        scatter=scatter(compiled, numbers, mark),
    )


def _measured(several: Sequence[CompileResult]) -> Iterator[tuple[str, str]]:
    yield "latency", "of one pass through the model, or of one run of an operator, on the device"
    yield "error", "the largest difference from the answers of the model before it was compiled"
    yield "candidate", "one implementation of an operator; its time is that of building and running it"
    yield "hot, cold", "no slower, or slower, than a smooth line through the latencies around it (LOESS)"
    yield "filtered", "dropped before it was measured"
    yield "suspended", "an operator that has stopped improving"
    yield "time", "on a clock that only goes forward, since the compilation began"
    for source in dict.fromkeys(phrases.energy_source(one.spent.energy) for one in several):
        yield "energy", source
