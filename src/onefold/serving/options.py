"""How a model is to be served: what serving points are searched for, and under which load they are judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from onefold.serving import point_search
from onefold.serving.scenarios import GOALS, scenario
from onefold.serving.space import ServingSpace
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.serving import OptimizeFor

MeasureMode = Literal["trials", "winner"]


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """How to search serving points, and the scenarios that a deployment is set up for.

    `optimize_for` is latency, throughput or energy. `search` names the algorithm that picks the points to measure, and
    `space` the points that it may pick; by default all that the device allows. `scenarios` describe how requests
    arrive (`server:8@20`), and `scenario_goal` whether their mean or p99 response time is minimized. `measure` says
    whether every trial of a study is measured, or the winner alone.
    """

    optimize_for: str = OptimizeFor.THROUGHPUT.value
    search: str = "few"
    space: ServingSpace | None = None
    scenarios: tuple[str, ...] = ()
    scenario_goal: str = GOALS[0]
    measure: MeasureMode = "trials"

    def check(self) -> None:
        """Raise InputError for the first option that makes no sense."""
        purposes = [purpose.value for purpose in OptimizeFor]
        if self.optimize_for not in purposes:
            raise InputError(f"optimize_for must be one of {', '.join(purposes)}; got {self.optimize_for!r}")
        if self.scenario_goal not in GOALS:
            raise InputError(f"scenario_goal must be {' or '.join(GOALS)}; got {self.scenario_goal!r}")
        if self.measure not in get_args(MeasureMode):
            raise InputError(f"measure must be {' or '.join(get_args(MeasureMode))}; got {self.measure!r}")
        point_search.algorithm(self.search)
        for text in self.scenarios:
            scenario(text)
