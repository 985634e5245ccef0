"""The whole model's latency after each round, with the latencies of the other runtimes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from onefold.report.kernels.facts import COMPILED
from onefold.report.kernels.latencies import drawable, latency_unit, logarithmic
from onefold.report.plots.axes import LETTER, Frame, left_margin, x_axis, y_axis
from onefold.report.plots.marks import Plot, dot, tooltip
from onefold.report.plots.scale import Scale, fitted, unit_of
from onefold.report.plots.svg import Point, element, picture, polyline, shortened, text
from onefold.vocabulary import quantities
from onefold.vocabulary.kernels import CompileResult, RuntimeLatency, TuningRound

NAME, TITLE = "survey", "Latency of the whole model by round"
WIDTH, HEIGHT = 560.0, 340.0
MANY_TIMES = 10.0  # latencies that differ by more than this factor are shown on a logarithmic scale
NAME_SHOWN = 25  # letters of a runtime: all of "onnxruntime int8 spinning"
LABEL_GAP = 15.0  # from label to label
OTHER = "line beside"


def survey(compiled: CompileResult, mark: str = "") -> Plot:
    """Plot a dot for each round with the number of candidates so far, and a dashed line for each other runtime.

    `mark` is a suffix that makes the name of the plot unique on a page with several models.
    """
    name = f"{NAME}{mark}"
    rounds = [
        tuning_round
        for tuning_round in compiled.rounds
        if drawable(tuning_round.latency_s) and math.isfinite(tuning_round.ended_s)
    ]
    if not rounds:
        return Plot(name, TITLE, "No round has finished.")
    others = [runtime for runtime in compiled.runtimes if runtime.name != COMPILED and drawable(runtime.latency_s)]
    caption = "After each round, with the best candidates so far. Small numbers: candidates so far."
    legend = [("line best", "whole model, compiled")]
    if others:
        legend.append((OTHER, "other runtimes"))
    return Plot(name, TITLE, caption, _drawing(rounds, others), tuple(legend))


def apart(positions: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
    """Return the positions moved as little as needed to be `gap` apart, in the same order, from `top` to `bottom`.

    If there is no room for all of them, they start at `top` and continue below `bottom`.
    """
    order = sorted(range(len(positions)), key=lambda at: positions[at])
    moved = [0.0] * len(positions)
    least = top
    for at in order:
        moved[at] = max(positions[at], least)
        least = moved[at] + gap
    most = max(bottom, top + gap * (len(positions) - 1))
    for at in reversed(order):
        moved[at] = min(moved[at], most)
        most = moved[at] - gap
    return moved


def _drawing(rounds: Sequence[TuningRound], others: Sequence[RuntimeLatency]) -> Markup:
    last = quantities.duration(rounds[-1].latency_s)
    labels = [f"{shortened(other.name, NAME_SHOWN)} {quantities.duration(other.latency_s)}" for other in others]
    values = [
        *(tuning_round.latency_s for tuning_round in rounds),
        *(runtime.latency_s for runtime in others),
    ]
    unit, size = latency_unit(values)
    y = _upright_scale(values, Frame(WIDTH, HEIGHT), size)
    right = max(8.2 * len(last), *(LETTER * len(label) for label in labels), 0.0) + 14
    frame = Frame(WIDTH, HEIGHT, left=left_margin(y), right=right)
    end_s = max(*(tuning_round.ended_s for tuning_round in rounds), 1e-9)
    time_unit, second = unit_of("time_s", [end_s])
    x = Scale(0.0, end_s, frame.left + 6, frame.x_end - 6, unit=second)
    hint = "lower is better, logarithmic" if y.log else "lower is better"
    parts = [y_axis(frame, y, f"latency ({unit})", hint), x_axis(frame, x, f"time ({time_unit})", 5)]
    for runtime in others:
        description = tooltip(f"{runtime.name}: {quantities.duration(runtime.latency_s)}")
        path = f"M{frame.left:.1f} {y(runtime.latency_s):.1f}H{frame.x_end:.1f}"
        parts.append(element("path", description, class_=OTHER, d=path))
    points = [(x(tuning_round.ended_s), y(tuning_round.latency_s)) for tuning_round in rounds]
    parts.append(element("path", class_="line best", d=polyline(points)))
    for tuning_round, point in zip(rounds, points):
        parts.append(dot(point, 3.6, "dot best", _tooltip_text(tuning_round), data_cell="round"))
    parts += _counts(rounds, points, frame)
    positions = apart([points[-1][1], *(y(other.latency_s) for other in others)], LABEL_GAP, frame.top, frame.y_end)
    for label, middle, kind in zip([last, *labels], positions, ["value best", *["value"] * len(labels)]):
        parts.append(text(frame.x_end + 8, middle + 4.5, label, class_=kind))
    return picture(WIDTH, HEIGHT, TITLE, parts)


def _upright_scale(values: Sequence[float], frame: Frame, size: float) -> Scale:
    bottom, top = frame.y_end - 6, frame.top + 12  # room for the number at the first dot
    many = max(values) / min(values) > MANY_TIMES
    return logarithmic(values, bottom, top, size) if many else fitted(values, bottom, top, size)


def _tooltip_text(tuning_round: TuningRound) -> str:
    when = f"round {tuning_round.number}, after {quantities.duration(tuning_round.ended_s)}"
    candidates = quantities.count(tuning_round.tried, "candidate")
    return f"{when}: {quantities.duration(tuning_round.latency_s)}\n{candidates} so far"


def _counts(rounds: Sequence[TuningRound], points: Sequence[Point], frame: Frame) -> Iterator[Markup]:
    """Yield the number of candidates so far above each dot, without those that would overlap a label or a dot."""
    labels = [f"{tuning_round.tried:,}" for tuning_round in rounds]
    lefts = [min(cx + 3, frame.x_end - LETTER * len(label)) for label, (cx, _) in zip(labels, points)]
    last, free = len(labels) - 1, -math.inf
    for index, (label, left, (_, cy)) in enumerate(zip(labels, lefts, points)):
        end = left + LETTER * len(label) + 4
        covers = any(x < end and y < cy - 4 for x, y in points[index + 1 :])
        if index == last or (left >= free and end <= lefts[last] and not covers):
            free = end
            yield text(left, cy - 7, label, class_="tick halo")
