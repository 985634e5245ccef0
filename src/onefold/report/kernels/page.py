"""The HTML report of one or several compilations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onefold.report import phrases
from onefold.report.html_page import render_page
from onefold.report.kernels import facts, tables
from onefold.report.kernels.scatter import scatter
from onefold.report.kernels.survey import survey
from onefold.vocabulary.kernels import CompileResult


def as_html(results: Sequence[CompileResult]) -> str:
    """Return the page of one model, or of several one after the other."""
    # An operator has the same number in all models, so that it is highlighted in all of them.
    keys = dict.fromkeys(key for compiled in results for key in _keys(compiled))
    numbers = {key: index + 1 for index, key in enumerate(keys)}
    names = ", ".join(dict.fromkeys(compiled.model for compiled in results)) or "no model"
    return render_page(
        "kernels/page.html",
        "kernels/page.css",
        title=f"Kernels of {names}",
        models=[
            _section(compiled, numbers, f"-{index + 1}" if index else "") for index, compiled in enumerate(results)
        ],
        short=tables.models_table(results) if len(results) > 1 else None,
        measured=list(_measured(results)),
    )


def _keys(compiled: CompileResult) -> Iterator[str]:
    for tuning_round in compiled.rounds[-1:]:
        yield from (state.operator.key for state in tuning_round.operators)
    yield from (history.operator.key for history in compiled.histories)


def _section(compiled: CompileResult, numbers: Mapping[str, int], mark: str) -> dict[str, Any]:
    """Return the section of one model; `mark` is a suffix that makes its element ids unique."""
    return dict(
        compiled=compiled,
        mark=mark,
        setup=facts.setup(compiled),
        reason=facts.reason(compiled),
        is_recommended=compiled.recommended == facts.COMPILED,
        tiles=tuple(facts.tiles(compiled)),
        outcome=tuple(facts.outcome(compiled)),
        savings=tuple(facts.savings(compiled)),
        runtimes=tables.runtimes_table(compiled),
        phases=tables.phases_table(compiled),
        fates=tables.fates_table(compiled),
        operators=tables.operators_table(compiled, numbers),
        levels=tables.levels_table(compiled),
        survey=survey(compiled, mark),
        scatter=scatter(compiled, numbers, mark),
    )


def _measured(results: Sequence[CompileResult]) -> Iterator[tuple[str, str]]:
    yield "latency", "of one inference, or of one run of an operator, on the device"
    yield "error", "the largest difference from the outputs of the model before compilation"
    yield "candidate", "one schedule of an operator; its time is that of building and running it"
    yield "hot, cold", "at or below, or above, the LOESS fit of the latencies at that point of the search"
    yield "filtered", "dropped by the cold filter before it was measured"
    yield "suspended", "an operator of which no further gain is expected"
    yield "time", "on a monotonic clock, since the compilation began"
    for source in dict.fromkeys(phrases.energy_source(compiled.spent.energy) for compiled in results):
        yield "energy", source
