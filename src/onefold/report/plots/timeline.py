"""What knobs came to in one trial: the time of a step, window by window."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from onefold.report import phrases
from onefold.report.plots.axes import Frame, left_margin, level, upright
from onefold.report.plots.marks import Plot, said
from onefold.report.plots.scale import Scale, fitted, unit_of
from onefold.report.plots.svg import element, picture
from onefold.vocabulary import quantities
from onefold.vocabulary.knobs import Phase, Steered, StepWindow

NAME, TITLE = "knobs-timeline", "A step's time, window by window"
KINDS = {
    Phase.FOUND: "line none",
    Phase.PROBED: "line s3",
    Phase.SETTLED: "line best",
    Phase.RECALLED: "line best",
}
TELLS = {
    Phase.FOUND: "as the knobs stood",
    Phase.PROBED: "a candidate",
    Phase.SETTLED: "settled on",
    Phase.RECALLED: "recalled from a similar job",
}


def timeline(trial: int, steered: Sequence[Steered]) -> Plot:
    """A bar for each window, as long as it took, as high as its steps took."""
    windows = [window for each in steered for window in each.windows]
    phases = [phase for phase in Phase if any(window.phase is phase for window in windows)]
    caption = f"Trial {trial}: {len(windows)} windows of steps with the same knobs."
    legend = tuple((KINDS[phase], TELLS[phase]) for phase in phases)
    return Plot(NAME, TITLE, caption, _drawing(windows), legend)


def _drawing(windows: Sequence[StepWindow]) -> Markup:
    unit, size = unit_of("step_s", [window.step_s for window in windows])
    frame = Frame(560, 280, right=12)
    y = fitted([0.0, *(window.step_s for window in windows)], frame.y_end, frame.top, size)
    frame = Frame(560, 280, left=left_margin(y), right=12)
    whole_s = sum(window.steps * window.step_s for window in windows)
    name, second = unit_of("time_s", [whole_s])
    x = Scale(0.0, max(whole_s, 1e-9), frame.left, frame.x_end, unit=second)
    parts = [upright(frame, y, f"a step ({unit})", "lower is better"), level(frame, x, f"time in windows ({name})")]
    began = 0.0
    for window in windows:
        ended = began + window.steps * window.step_s
        told = f"{window.steps} steps of {phrases.step(window)}, {TELLS[window.phase]}:"
        spoken = said(f"{told}\n{quantities.settings(window.knobs)}")
        left, right = x(began), max(x(ended), x(began) + 2)
        place = f"M{left:.1f} {y(window.step_s):.1f}H{right:.1f}"
        parts.append(element("path", spoken, class_=f"{KINDS[window.phase]} thick", d=place))
        began = ended
    return picture(frame.width, frame.height, "the time of a step in each window", parts)
