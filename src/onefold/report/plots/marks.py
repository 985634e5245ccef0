"""What all plots agree on: what a plot is, the colour of a trial, and what is said when the pointer is on it."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from onefold.report.plots.svg import element
from onefold.report.study.summary import Summary
from onefold.vocabulary.objective import Goal
from onefold.vocabulary.records import Trial

EMPTY = Markup("")
SHADES = 8  # classes s0 (worst, lowest) to s7 (best, highest); the page's style gives them their colours


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing with its words. Without a picture the caption says why there is none."""

    name: str
    title: str
    caption: str
    picture: Markup = EMPTY
    legend: tuple[tuple[str, str], ...] = ()  # class of the sample, label
    wide: bool = False


def shade(share: float) -> str:
    """The class of a colour on the way from worst (0) to best (1)."""
    return f"s{min(int(share * SHADES), SHADES - 1)}"


def shades(summary: Summary) -> dict[int, str]:
    """The colour of each trial with a result, by its place in the ranking: outliers do not swallow the scale."""
    last = max(len(summary.ranking) - 1, 1)
    return {trial.number: shade(1 - place / last) for place, trial in enumerate(summary.ranking)}


def ramp(summary: Summary) -> list[tuple[str, str]]:
    """The legend of the trials' colours, where there are several."""
    return [("ramp", "worst to best trial")] if len(summary.ranking) > 1 else []


def level_shades(summary: Summary) -> dict[int, str]:
    """The colour of each level, the highest like the best."""
    steps = max(len(summary.levels) - 1, 1)
    return {level.grant.level: shade(1 - place / steps) for place, level in enumerate(reversed(summary.levels))}


def said(words: str) -> Markup:
    """What a mark says when the pointer is on it."""
    return element("title", Markup.escape(words))


def trial_words(summary: Summary, trial: Trial) -> str:
    """A trial's result on one line."""
    metrics = [name for name in summary.objective.metrics if name in trial.metrics]
    results = ", ".join(f"{name} {summary.written(name, trial.metrics[name])}" for name in metrics)
    return f"trial {trial.number}: {results or trial.state.value}"


def first_words(summary: Summary) -> str:
    """The trial that is drawn on top. With several goals it is first in the ranking, but not the only good one."""
    kind = "best" if len(summary.objective.goals) == 1 else "ranked first"
    return f"{kind}: trial {summary.ranking[0].number}"


def direction(goal: Goal) -> str:
    """Which way is better."""
    return "higher is better" if goal.maximize else "lower is better"
