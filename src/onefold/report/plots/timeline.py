"""The timeline of knob tuning in one trial: the step time of each window."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from onefold.report import phrases
from onefold.report.plots.axes import Frame, left_margin, x_axis, y_axis
from onefold.report.plots.marks import Plot, tooltip
from onefold.report.plots.scale import Scale, fitted, unit_of
from onefold.report.plots.svg import element, picture
from onefold.vocabulary import quantities
from onefold.vocabulary.knobs import KnobRecord, Phase, StepWindow

NAME, TITLE = "knobs-timeline", "Step time by window"
STYLES = {
    Phase.FOUND: "line none",
    Phase.PROBED: "line s3",
    Phase.COMPARED: "line s2",
    Phase.SETTLED: "line best",
    Phase.RECALLED: "line best",
}
LABELS = {
    Phase.FOUND: "default knobs",
    Phase.PROBED: "probed candidate",
    Phase.COMPARED: "compared in turn",
    Phase.SETTLED: "settled knobs",
    Phase.RECALLED: "recalled from a similar job",
}


def timeline(trial: int, records: Sequence[KnobRecord]) -> Plot:
    """Return a plot with a bar for each window: its width is the duration of the window, its height the step time."""
    windows = [window for record in records for window in record.windows]
    phases = [phase for phase in Phase if any(window.phase is phase for window in windows)]
    caption = f"Trial {trial}: {len(windows)} windows of steps with the same knobs."
    legend = tuple((STYLES[phase], LABELS[phase]) for phase in phases)
    return Plot(NAME, TITLE, caption, _drawing(windows), legend)


def _drawing(windows: Sequence[StepWindow]) -> Markup:
    step_unit, step_size = unit_of("step_s", [window.step_s for window in windows])
    frame = Frame(560, 280, right=12)
    y = fitted([0.0, *(window.step_s for window in windows)], frame.y_end, frame.top, step_size)
    frame = Frame(560, 280, left=left_margin(y), right=12)
    total_s = sum(window.steps * window.step_s for window in windows)
    time_unit, time_size = unit_of("time_s", [total_s])
    x = Scale(0.0, max(total_s, 1e-9), frame.left, frame.x_end, unit=time_size)
    parts = [
        y_axis(frame, y, f"step time ({step_unit})", "lower is better"),
        x_axis(frame, x, f"time in windows ({time_unit})"),
    ]
    start_s = 0.0
    for window in windows:
        end_s = start_s + window.steps * window.step_s
        heading = f"{window.steps} steps of {phrases.step(window)}, {LABELS[window.phase]}:"
        label = tooltip(f"{heading}\n{quantities.settings(window.knobs)}")
        left, right = x(start_s), max(x(end_s), x(start_s) + 2)
        path = f"M{left:.1f} {y(window.step_s):.1f}H{right:.1f}"
        parts.append(element("path", label, class_=f"{STYLES[window.phase]} thick", d=path))
        start_s = end_s
    return picture(frame.width, frame.height, "step time of each window", parts)
