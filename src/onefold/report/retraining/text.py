"""A retraining as plain text, for a terminal or a log."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from onefold.report.impact.text import laid
from onefold.report.retraining import facts, tables
from onefold.vocabulary import quantities
from onefold.vocabulary.retraining import PlanEstimate, RetrainingLimits, RetrainingSummary

WIDTH = 110
SHOWN = 12  # plans
REACTIONS_SHOWN = 10
INDENT = " " * 10


def as_text(retrained: RetrainingSummary, width: int = WIDTH) -> str:
    """The retraining in lines, without colour or control characters; a table that is wider goes on below."""
    parts: list[Iterable[str]] = [_head(retrained, width), _facts(retrained, width)]
    if retrained.reactions:
        parts.append(_reactions(retrained, width))
    sheet = tables.plans_sheet(retrained, SHOWN)
    if sheet.lines:
        parts.append(laid(sheet, width))
    if retrained.notes:
        parts.append(["Notes", *(line for note in retrained.notes for line in _wrapped(note, width, "  ", "  "))])
    return _joined(parts)


def as_plans_text(plans: Sequence[PlanEstimate], limits: RetrainingLimits, width: int = WIDTH) -> str:
    """The plans that fit, before anything is trained."""
    room = f"{quantities.size(limits.memory_bytes)} of memory and a window of {quantities.duration(limits.window_s)}"
    if not plans:
        return _joined([_wrapped(f"No plan fits into {room}.", width)])
    fit = "1 plan fits" if len(plans) == 1 else f"{len(plans)} plans fit"
    head = f"{fit} into {room}. Memory and time are predicted; nothing was trained."
    return _joined([_wrapped(head, width), laid(tables.feasible_sheet(plans), width)])


def _head(retrained: RetrainingSummary, width: int) -> Iterator[str]:
    yield from _wrapped(f"Retraining {retrained.model}: {facts.gained(retrained)}", width)
    yield from _wrapped(facts.aim(retrained), width)


def _facts(retrained: RetrainingSummary, width: int) -> Iterator[str]:
    stays = "" if retrained.kept_new else f", {facts.STAYS}"
    yield from _named("Result", f"{retrained.metric} {facts.reached(retrained)}{stays}", width)
    chosen = retrained.chosen
    named = "none" if chosen is None else f"{facts.numbered(retrained)[chosen]}: {chosen}"
    yield from _named("Plan", named, width)
    if retrained.why:
        yield from _wrapped(facts.why(retrained), width, INDENT, INDENT)
    peak = facts.peak_bytes(retrained)
    measured = "" if peak is None else f"{quantities.size(peak)} measured at the peak, "
    over = "over the limit: " if facts.is_over(retrained) else ""
    yield from _named("Memory", f"{over}{measured}{facts.memory_note(retrained)}", width)
    if chosen is not None:
        plan = dict(facts.of_plan(retrained, chosen))
        both = f"predicted {plan['predicted memory']}, measured {plan['measured memory']}"
        yield from _wrapped(f"the chosen plan: {both}", width, INDENT, INDENT)
    if retrained.windows:
        yield from _wrapped(facts.predictions(retrained), width, INDENT, INDENT)
    late = "over the window: " if retrained.elapsed_s > retrained.limits.window_s else ""
    time = f"{late}{quantities.duration(retrained.elapsed_s)}, {facts.time_note(retrained)}"
    yield from _named("Time", time, width)
    yield from _named(
        "Planning", f"{quantities.duration(retrained.planning_s)}, {facts.planning_note(retrained)}", width
    )


def _reactions(retrained: RetrainingSummary, width: int) -> Iterator[str]:
    yield "Reactions"
    for one in retrained.reactions[:REACTIONS_SHOWN]:
        yield from _wrapped(f"after {quantities.duration(one.at_s)}, {one.rule}: {one.said}", width, "  ", "    ")
    more = len(retrained.reactions) - REACTIONS_SHOWN
    if more > 0:
        yield f"  and {more} more"


def _named(name: str, said: str, width: int) -> list[str]:
    return _wrapped(said, width, name.ljust(len(INDENT)), INDENT)


def _wrapped(said: str, width: int, first: str = "", others: str = "") -> list[str]:
    line = " ".join(said.split())
    return textwrap.wrap(line, max(width, 40), initial_indent=first, subsequent_indent=others)


def _joined(parts: Iterable[Iterable[str]]) -> str:
    text = "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts)
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text) + "\n"
