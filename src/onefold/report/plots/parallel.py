"""Parallel coordinates: every configuration as a line across its parameters and results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from onefold.report.plots.axes import LETTER
from onefold.report.plots.marks import Plot, direction, ranking_legend, tooltip, trial_label, trial_shades, winner_label
from onefold.report.plots.scale import Scale, fitted, unit_of, with_unit
from onefold.report.plots.svg import element, picture, ribbon, shortened, text
from onefold.report.study.summary import Summary
from onefold.report.study.tables import VARIANT
from onefold.vocabulary import quantities
from onefold.vocabulary.forks import dense_config, fork_of
from onefold.vocabulary.objective import Goal
from onefold.vocabulary.records import Trial, Value
from onefold.vocabulary.space import Choice, Float, Parameter
from onefold.vocabulary.variants import Recipe

NAME, TITLE = "parallel", "Configurations"
WIDTH, TOP, BOTTOM = 1136.0, 72.0, 340.0
MISSING_Y = 376.0  # position of trials without a value on an axis
MIN_AXIS_GAP = 96.0  # pixels between two axes; more axes make the drawing wider
TITLE_LETTER = 7.4  # pixels per character of the name of an axis, rounded up
MAX_SLOTS = 8  # values of an Int that get a slot each


@dataclass(frozen=True, slots=True)
class ParallelAxis:
    """One vertical axis: the position of each trial (None: passes below), and labels."""

    title: str
    hint: str
    crossings: Mapping[int, float | None]
    labels: tuple[tuple[float, str], ...]
    aside: str = quantities.MISSING
    right: bool = field(default=False)  # labels on the right


def parallel(summary: Summary) -> Plot:
    """Draw a line per trial, colored by rank, with the best one on top."""
    axes = [_parameter_axis(summary, name, parameter) for name, parameter in _varied(summary).items()]
    if summary.forks:
        axes.append(_recipe_axis(summary))
    if not axes or not summary.ranking:
        why = "No parameter varies" if summary.ranking else "No trial has a result"
        return Plot(NAME, TITLE, f"{why}, so there are no configurations to compare.", wide=True)
    axes += [_goal_axis(summary, goal, last=goal is summary.objective.goals[-1]) for goal in summary.objective.goals]
    legend = [*ranking_legend(summary), ("line best", winner_label(summary))]
    if len(summary.ranking) < len(summary.trials):
        legend.append(("line lost", "no result"))
    caption = "Each line is a trial: its parameters from left to right, then its results."
    if any(None in axis.crossings.values() for axis in axes[: -len(summary.objective.goals)]):
        caption += f" Lines pass at “{quantities.MISSING}” where a parameter is inactive."
    return Plot(NAME, TITLE, caption, _drawing(summary, axes), tuple(legend), wide=True)


def _varied(summary: Summary) -> dict[str, Parameter]:
    used = {name for trial in summary.trials for name in dense_config(trial.config)}
    return {name: parameter for name, parameter in summary.parameters.items() if parameter.size > 1 and name in used}


def _parameter_axis(summary: Summary, name: str, parameter: Parameter) -> ParallelAxis:
    values = {trial.number: trial.config[name] for trial in summary.trials if name in trial.config}
    if isinstance(parameter, Choice):
        return _slots(summary, name, parameter.options, values)
    if not isinstance(parameter, Float) and parameter.size <= MAX_SLOTS:
        return _slots(summary, name, tuple(range(parameter.low, parameter.high + 1)), values)
    scale = Scale(parameter.low, parameter.high, BOTTOM, TOP, parameter.log)
    crossings = {trial.number: _on(scale, values.get(trial.number)) for trial in summary.trials}
    return ParallelAxis(name, "log scale" if parameter.log else "", crossings, tuple(scale.ticks()))


def _recipe_axis(summary: Summary) -> ParallelAxis:
    """Return the axis of the recipes that trials are compressed by."""
    recipes = {trial.number: str(_recipe(trial)) for trial in summary.trials}
    return _slots(summary, VARIANT, tuple(dict.fromkeys(recipes.values())), recipes)


def _recipe(trial: Trial) -> Recipe:
    fork = fork_of(trial.config)
    return Recipe() if fork is None else fork.recipe


def _on(scale: Scale, value: Value) -> float | None:
    return scale(value) if isinstance(value, (int, float)) else None


def _slots(summary: Summary, name: str, options: tuple[Value, ...], values: Mapping[int, Value]) -> ParallelAxis:
    """Return an axis with a slot per option, in which the trials that share it lie side by side."""
    gap = (BOTTOM - TOP) / len(options)
    centers = [BOTTOM - gap * (index + 0.5) for index in range(len(options))]
    crossings: dict[int, float | None] = {trial.number: None for trial in summary.trials}
    order = {trial.number: index for index, trial in enumerate(summary.ranking)}
    for option, center in zip(options, centers):
        same = [n for n, value in values.items() if type(value) is type(option) and value == option]
        same.sort(key=lambda number: order.get(number, len(order)))
        spread = min(gap * 0.6, 3.0 * (len(same) - 1))
        for index, number in enumerate(same):
            crossings[number] = center + spread * (index / max(len(same) - 1, 1) - 0.5)
    every = -(-len(options) // 14)
    labels = tuple((y, quantities.setting(option)) for y, option in list(zip(centers, options))[::every])
    return ParallelAxis(name, "", crossings, labels)


def _goal_axis(summary: Summary, goal: Goal, *, last: bool) -> ParallelAxis:
    """Return the axis of a goal, with the better end on top."""
    values = {trial.number: trial.metrics[goal.metric] for trial in summary.ranking}
    unit, size = unit_of(goal.metric, values.values())
    ends = (BOTTOM, TOP) if goal.maximize else (TOP, BOTTOM)
    scale = fitted(values.values(), *ends, size)
    crossings = {trial.number: _on(scale, values.get(trial.number)) for trial in summary.trials}
    title = with_unit(goal.metric, unit)
    return ParallelAxis(title, direction(goal), crossings, tuple(scale.ticks()), aside="no result", right=last)


def _drawing(summary: Summary, axes: list[ParallelAxis]) -> Markup:
    left = 22 + LETTER * max((len(label) for _, label in axes[0].labels), default=0)
    left = max(54.0, min(left, 130.0))
    right = 74.0
    width = max(WIDTH, left + right + MIN_AXIS_GAP * (len(axes) - 1))
    gap = (width - left - right) / (len(axes) - 1)
    positions = [left + gap * index for index in range(len(axes))]
    parts = [*_lines(summary, axes, positions)]
    for x, axis in zip(positions, axes):
        parts += _axis(axis, x, room=left - 12 if x == left else gap - 16)
    aside = any(None in axis.crossings.values() for axis in axes)
    height = MISSING_Y + 22 if aside else BOTTOM + 12
    label = f"configurations and their {summary.goal_metric}"
    return picture(width, height, label, parts, rigid=width > WIDTH)


def _lines(summary: Summary, axes: list[ParallelAxis], positions: list[float]) -> Iterator[Markup]:
    colors = trial_shades(summary)
    rated = {trial.number for trial in summary.ranking}
    lost = [trial for trial in summary.trials if trial.number not in rated]
    for trial in (*lost, *reversed(summary.ranking)):
        crossings = [axis.crossings[trial.number] for axis in axes]
        points = [(x, MISSING_Y if y is None else y) for x, y in zip(positions, crossings)]
        kind = "best" if trial is summary.ranking[0] else colors.get(trial.number, "lost")
        label = tooltip(_tooltip_text(summary, trial))
        yield element("path", label, class_=f"line {kind}", d=ribbon(points), data_t=trial.number)
        if trial is summary.ranking[0]:
            yield from (element("circle", class_="dot best", cx=x, cy=y, r=3, data_t=trial.number) for x, y in points)


def _tooltip_text(summary: Summary, trial: Trial) -> str:
    settings = [f"{name} = {quantities.setting(value)}" for name, value in dense_config(trial.config).items()]
    if (fork := fork_of(trial.config)) is not None:
        settings.append(str(fork))
    return "\n".join((trial_label(summary, trial), *settings))


def _axis(axis: ParallelAxis, x: float, room: float) -> Iterator[Markup]:
    letters = int(room / LETTER)
    anchor = "end" if axis.right else "middle"
    shift = 66.0 if axis.right else 0.0
    lines = wrapped(axis.title, int(room / TITLE_LETTER) if not axis.right else 18)
    for index, line in enumerate(reversed(lines)):
        inside = (tooltip(axis.title), Markup.escape(line))
        yield element("text", *inside, class_="axis", x=x + shift, y=34 - 15 * index, text_anchor=anchor)
    if axis.hint:
        yield text(x + shift, 49, axis.hint, class_="hint", text_anchor=anchor)
    yield element("path", class_="post", d=f"M{x:.1f} {TOP - 4:.0f}V{BOTTOM + 4:.0f}")
    side, outer = (8, "start") if axis.right else (-8, "end")
    for y, label in axis.labels:
        yield text(x + side, y + 4, shortened(label, letters), class_="tick halo", text_anchor=outer)
    if None in axis.crossings.values():
        yield element("path", class_="post", d=f"M{x:.1f} {MISSING_Y - 5:.0f}v10")
        if axis.right:
            yield text(x + side, MISSING_Y + 4, axis.aside, class_="tick", text_anchor=outer)
        else:
            yield text(x, MISSING_Y + 18, axis.aside, class_="tick", text_anchor="middle")


def wrapped(title: str, letters: int) -> list[str]:
    """Wrap a name into one or two lines, broken at an underscore; a longer name keeps its two ends."""
    if len(title) <= letters:
        return [title]
    breaks = [index + 1 for index, c in enumerate(title) if c in "_ " and index < letters]
    cut = breaks[-1] if breaks else letters
    rest = title[cut:]
    return [title[:cut], rest if len(rest) <= letters else f"…{rest[1 - letters :]}"]
