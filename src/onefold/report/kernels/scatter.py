"""Candidates over time: a scatter plot for each operator that takes much of the model's latency."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from onefold.report.kernels.costs import Fate, by_time, fates, has_failed
from onefold.report.kernels.latencies import drawable, latency_unit, logarithmic
from onefold.report.plots.axes import LETTER, Frame, left_margin, x_axis, y_axis
from onefold.report.plots.marks import Plot, dot, tooltip
from onefold.report.plots.scale import Scale
from onefold.report.plots.svg import cross, element, picture, polyline, shortened, text
from onefold.vocabulary import quantities
from onefold.vocabulary.kernels import CandidateHistory, CompileResult, ScheduleCandidate

NAME, TITLE = "candidates", "Candidates over time"
MAX_PLOTS = 6
MAX_MARKS = 500  # per operator; more cannot be distinguished
WIDTH, HEIGHT, TITLE_HEIGHT = 360.0, 250.0, 22.0
KINDS = {Fate.HOT: "dot s5", Fate.COLD: "dot plain hollow", Fate.FAILED: "cross"}
LABELS = {Fate.HOT: "hot", Fate.COLD: "cold: above the LOESS fit", Fate.FAILED: "failed"}
FASTEST = {Fate.HOT: "dot best", Fate.COLD: "dot best hollow"}
LINE, RECALLED_CLASS = "line best thin", " pale"


def scatter(compiled: CompileResult, numbers: Mapping[str, int], mark: str = "") -> Plot:
    """Plot a mark for each candidate and the LOESS fit; `numbers` link marks to the operators' table.

    `mark` is a suffix that makes the name of the plot unique on a page with several models.
    """
    name, shown = f"{NAME}{mark}", most_time(compiled)
    if not shown:
        return Plot(name, TITLE, "No candidate was measured.")
    every = sum(bool(history.candidates) for history in compiled.histories)
    caption = "Candidates in measurement order."
    if every > MAX_PLOTS:
        caption = f"The {MAX_PLOTS} of {every} operators with the most time. {caption}"
    if any(len(history.candidates) > MAX_MARKS for history in shown):
        caption += f" Of more than {MAX_MARKS:,}, an even selection with the fastest is shown."
    drawing = Markup("").join(_drawing(history, numbers.get(history.operator.key, 0)) for history in shown)
    return Plot(name, TITLE, caption, drawing, tuple(_legend(shown)), wide=True)


def most_time(compiled: CompileResult) -> list[CandidateHistory]:
    """Return the histories of the operators that take most of the model's latency in the last round."""
    order = {state.operator.key: index for index, state in enumerate(by_time(compiled))}
    known = [history for history in compiled.histories if history.candidates]
    return sorted(known, key=lambda history: order.get(history.operator.key, len(order)))[:MAX_PLOTS]


def _legend(histories: Sequence[CandidateHistory]) -> Iterator[tuple[str, str]]:
    present = {fate for history in histories for fate in fates(history)}
    yield from ((KINDS[fate], LABELS[fate]) for fate in Fate if fate in present)
    if any(history.recalled for history in histories):
        yield KINDS[Fate.HOT] + RECALLED_CLASS, "pale: recalled from an earlier compilation"
    if present != {Fate.FAILED}:
        yield FASTEST[Fate.HOT], "fastest"
    if any(sum(map(drawable, history.line)) > 1 for history in histories):
        yield LINE, "LOESS fit"


def _drawing(history: CandidateHistory, number: int) -> Markup:
    operator = history.operator
    shapes = ", ".join(operator.shapes)
    summary = f"{operator.name}, {operator.kind}, {quantities.count(operator.weight, 'run')} in the model"
    about = f"{summary}; {quantities.metric('flops', operator.flops)} flops, {shapes}"
    name = text(0, 14, shortened(operator.name, 40), class_="axis")
    inside = element(
        "g", tooltip(about), *_plotted(history), transform=f"translate(0 {TITLE_HEIGHT:.0f})", data_t=number
    )
    return picture(WIDTH, HEIGHT + TITLE_HEIGHT, f"{TITLE}: {operator.name}", [name, inside])


def _plotted(history: CandidateHistory) -> list[Markup]:
    known = [
        candidate.latency_s
        for candidate in history.candidates
        if not has_failed(candidate) and candidate.latency_s is not None
    ]
    values = [value for value in (*known, *history.line) if value is not None and drawable(value)]
    best = min(filter(drawable, known), default=None)
    label = "" if best is None else quantities.duration(best)
    right = LETTER * len(label) + 16
    failed = any(map(has_failed, history.candidates))
    frame = Frame(WIDTH, HEIGHT, right=right)
    unit, size = latency_unit(values)
    y = logarithmic(values or [1.0], frame.y_end - 6, frame.top + (18 if failed else 0), size)
    lane = LETTER * len(Fate.FAILED.value) + 14 if failed else 0.0
    frame = Frame(WIDTH, HEIGHT, left=max(left_margin(y), lane), right=right)
    count = len(history.candidates)
    x = Scale(1.0, float(max(count, 2)), frame.left + 6, frame.x_end - 4)
    parts = [x_axis(frame, x, "candidate", min(5, count))]
    if values:
        parts.append(y_axis(frame, y, f"latency ({unit})", "logarithmic"))
    else:
        middle = (frame.left + frame.x_end) / 2
        parts.append(text(middle, HEIGHT / 2, "no candidate has a latency", class_="hint", text_anchor="middle"))
    if failed:
        parts.append(text(frame.left - 8, frame.top + 4, Fate.FAILED.value, class_="tick", text_anchor="end"))
    parts += _marks(history, best, x, y, frame.top)
    usual = [(x(index + 1), y(value)) for index, value in enumerate(history.line) if value and drawable(value)]
    if len(usual) > 1:
        parts.append(element("path", class_=f"{LINE} halved", d=polyline(usual)))
    if best is not None:
        parts.append(text(frame.x_end + 6, y(best) + 4.5, label, class_="value best"))
    return parts


def _marks(history: CandidateHistory, best: float | None, x: Scale, y: Scale, lane: float) -> Iterator[Markup]:
    """Yield the marks: cold ones first, so that they cover nothing, and the fastest on top."""
    marks = list(enumerate(zip(history.candidates, fates(history))))
    every = math.ceil(len(marks) / MAX_MARKS)
    fastest = next(
        (index for index, (candidate, fate) in marks if candidate.latency_s == best and fate is not Fate.FAILED), None
    )
    drawn = [mark for mark in marks[::every] if mark[0] != fastest]
    drawn.sort(key=lambda mark: mark[1][1] is not Fate.COLD)
    if best is not None and fastest is not None:
        drawn.append(marks[fastest])
    for index, (candidate, fate) in drawn:
        recalled = index < history.recalled
        kind = (FASTEST if index == fastest else KINDS)[fate] + (RECALLED_CLASS if recalled else "")
        description = _tooltip_text(index + 1, candidate, fate, recalled)
        if fate is Fate.FAILED:
            yield element(
                "path", tooltip(description), class_=kind, d=cross(x(index + 1), lane, 2.6), data_cell="candidate"
            )
        elif candidate.latency_s is not None and drawable(candidate.latency_s):
            center, radius = (x(index + 1), y(candidate.latency_s)), 3.6 if index == fastest else 2.4
            yield dot(center, radius, kind, description, data_cell="candidate")


def _tooltip_text(number: int, candidate: ScheduleCandidate, fate: Fate, recalled: bool) -> str:
    parts = [fate.value]
    if fate is not Fate.FAILED and candidate.latency_s is not None:
        parts.insert(0, quantities.duration(candidate.latency_s))
    if candidate.failure is not None:
        parts.append(candidate.failure.value)
    return f"candidate {number}: {', '.join([*parts, *(['recalled'] if recalled else [])])}"
