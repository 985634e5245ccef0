"""What all plots share: the `Plot` record, the colors of trials, labels and tooltips."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from onefold.report.plots.svg import Point, element
from onefold.report.study.summary import Summary
from onefold.vocabulary.objective import Goal
from onefold.vocabulary.records import Trial

EMPTY = Markup("")
SHADES = 8  # CSS classes s0 (worst, lowest) to s7 (best, highest), defined in style.css


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing with its title, caption and legend. Without a picture the caption says why there is none."""

    name: str
    title: str
    caption: str
    picture: Markup = EMPTY
    legend: tuple[tuple[str, str], ...] = ()  # CSS class of the sample, label
    wide: bool = False


def shade(share: float) -> str:
    """Return the CSS class of a color between worst (0) and best (1)."""
    return f"s{min(int(share * SHADES), SHADES - 1)}"


def trial_shades(summary: Summary) -> dict[int, str]:
    """Return the color of each trial with a result, by rank, so that outliers do not dominate the scale."""
    last = max(len(summary.ranking) - 1, 1)
    return {trial.number: shade(1 - index / last) for index, trial in enumerate(summary.ranking)}


def ranking_legend(summary: Summary) -> list[tuple[str, str]]:
    """Return the legend of the trials' colors, if there are several trials."""
    return [("ramp", "worst to best trial")] if len(summary.ranking) > 1 else []


def level_shades(summary: Summary) -> dict[int, str]:
    """Return the color of each level, the highest one in the color of the best trial."""
    steps = max(len(summary.levels) - 1, 1)
    return {level.grant.level: shade(1 - index / steps) for index, level in enumerate(reversed(summary.levels))}


def tooltip(content: str) -> Markup:
    """Return the tooltip of a mark."""
    return element("title", Markup.escape(content))


def dot(center: Point, radius: float, style: str, description: str, **data: str | float | None) -> Markup:
    """Return a circle with a tooltip."""
    return element("circle", tooltip(description), class_=style, cx=center[0], cy=center[1], r=radius, **data)


def trial_label(summary: Summary, trial: Trial) -> str:
    """Return the result of a trial on one line."""
    metrics = [name for name in summary.objective.metrics if name in trial.metrics]
    results = ", ".join(f"{name} {summary.format(name, trial.metrics[name])}" for name in metrics)
    return f"trial {trial.number}: {results or trial.state.value}"


def winner_label(summary: Summary) -> str:
    """Name the trial that is drawn on top: the best one, or with several goals the one ranked first."""
    kind = "best" if len(summary.objective.goals) == 1 else "ranked first"
    return f"{kind}: trial {summary.ranking[0].number}"


def direction(goal: Goal) -> str:
    """Return which direction is better."""
    return "higher is better" if goal.maximize else "lower is better"
