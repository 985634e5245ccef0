"""The retraining report as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from onefold.report.retraining import facts, tables
from onefold.report.text_layout import joined, labeled, table_lines, wrapped
from onefold.vocabulary import quantities
from onefold.vocabulary.retraining import PlanEstimate, RetrainingLimits, RetrainingSummary

WIDTH = 110
SHOWN = 12  # plans
REACTIONS_SHOWN = 10
LABEL = 10  # columns of a label
INDENT = " " * LABEL


def as_text(retrained: RetrainingSummary, width: int = WIDTH) -> str:
    """Render the report without colors or control characters; tables wider than `width` continue below."""
    parts: list[Iterable[str]] = [_head(retrained, width), _facts(retrained, width)]
    if retrained.reactions:
        parts.append(_reactions(retrained, width))
    sheet = tables.plans_table(retrained, SHOWN)
    if sheet.rows:
        parts.append(table_lines(sheet, width))
    if retrained.notes:
        parts.append(["Notes", *(line for note in retrained.notes for line in wrapped(note, width, "  ", "  "))])
    return joined(parts)


def as_plans_text(plans: Sequence[PlanEstimate], limits: RetrainingLimits, width: int = WIDTH) -> str:
    """Render feasible plans, before any training."""
    room = f"{quantities.size(limits.memory_bytes)} of memory and a window of {quantities.duration(limits.window_s)}"
    if not plans:
        return joined([wrapped(f"No plan fits into {room}.", width)])
    fit = "1 plan fits" if len(plans) == 1 else f"{len(plans)} plans fit"
    head = f"{fit} into {room}. Memory and time are predicted; nothing was trained."
    return joined([wrapped(head, width), table_lines(tables.feasible_table(plans), width)])


def _head(retrained: RetrainingSummary, width: int) -> Iterator[str]:
    yield from wrapped(f"Retraining {retrained.model}: {facts.gained(retrained)}", width)
    yield from wrapped(facts.subtitle(retrained), width)


def _facts(retrained: RetrainingSummary, width: int) -> Iterator[str]:
    stays = "" if retrained.kept_new else f", {facts.STAYS}"
    yield from labeled("Result", f"{retrained.metric} {facts.reached(retrained)}{stays}", width, LABEL)
    chosen = retrained.chosen
    named = "none" if chosen is None else f"{facts.numbered(retrained)[chosen]}: {chosen}"
    yield from labeled("Plan", named, width, LABEL)
    if retrained.why:
        yield from wrapped(facts.why(retrained), width, INDENT, INDENT)
    peak = facts.peak_bytes(retrained)
    measured = "" if peak is None else f"{quantities.size(peak)} measured peak, "
    over = "over the limit: " if facts.is_over(retrained) else ""
    yield from labeled("Memory", f"{over}{measured}{facts.memory_note(retrained)}", width, LABEL)
    if chosen is not None:
        plan = dict(facts.of_plan(retrained, chosen))
        both = f"predicted {plan['predicted memory']}, measured {plan['measured memory']}"
        yield from wrapped(f"the chosen plan: {both}", width, INDENT, INDENT)
    if retrained.windows:
        yield from wrapped(facts.predictions(retrained), width, INDENT, INDENT)
    late = "over the window: " if retrained.elapsed_s > retrained.limits.window_s else ""
    time = f"{late}{quantities.duration(retrained.elapsed_s)}, {facts.time_note(retrained)}"
    yield from labeled("Time", time, width, LABEL)
    planning = f"{quantities.duration(retrained.planning_s)}, {facts.planning_note(retrained)}"
    yield from labeled("Planning", planning, width, LABEL)


def _reactions(retrained: RetrainingSummary, width: int) -> Iterator[str]:
    yield "Reactions"
    for reaction in retrained.reactions[:REACTIONS_SHOWN]:
        yield from wrapped(
            f"after {quantities.duration(reaction.at_s)}, {reaction.rule}: {reaction.said}", width, "  ", "    "
        )
    more = len(retrained.reactions) - REACTIONS_SHOWN
    if more > 0:
        yield f"  and {more} more"
