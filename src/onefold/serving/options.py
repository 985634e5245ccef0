"""Options of serving: how serving points are searched, and the load that a deployment is set up for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from onefold.runtimes.registry import selected_runtimes
from onefold.serving import point_search
from onefold.serving.scenario_settings import SCENARIO_GOALS
from onefold.serving.scenarios import parse_scenario
from onefold.serving.space import ServingSpace
from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.serving import OptimizeFor

MeasureMode = Literal["trials", "winner"]


@suggest_fields
@dataclass(frozen=True, slots=True)
class ServingOptions:
    """How to search serving points, and the scenarios that a deployment is set up for.

    `optimize_for` is latency, throughput or energy. `search` names the algorithm that picks the points to measure (few
    or grid), and `space` the points that it may pick; by default all that the device allows. `scenarios` describe how
    requests arrive (`server:100`; by default single-stream and offline), and `scenario_goal` whether their mean or p99
    response time is minimized. `measure` says whether every trial of a study is measured, or the winner alone.
    `measure_cores` are cores of this machine on which trials are measured while others train on the rest; with 0 the
    trials are paused meanwhile. By default 0, and a quarter of four cores or more where training runs on an
    accelerator. `served_samples` is the number of samples whose serving the ratios of an objective count; by default
    the size of the test set.
    `runtimes` are compared with ONNX Runtime for a model that is deployed: openvino, ncnn, litert, executorch, pytorch,
    or all; each adds the model in its format to the deployment folder. Trials are compared in ONNX Runtime.
    """

    optimize_for: str = OptimizeFor.THROUGHPUT.value
    search: str = "few"
    space: ServingSpace | None = None
    scenarios: tuple[str, ...] = ()
    scenario_goal: str = SCENARIO_GOALS[0]
    measure: MeasureMode = "trials"
    served_samples: float | None = None
    measure_cores: int | None = None
    runtimes: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise InputError for the first invalid option."""
        for name, value, known in (
            ("optimize_for", self.optimize_for, [goal.value for goal in OptimizeFor]),
            ("scenario_goal", self.scenario_goal, SCENARIO_GOALS),
            ("measure", self.measure, get_args(MeasureMode)),
        ):
            if value not in known:
                raise InputError(unknown(name, value, known))
        if self.served_samples is not None and not 0 < self.served_samples < math.inf:
            raise InputError(f"served_samples must be above 0 and finite, got {self.served_samples}")
        if self.measure_cores is not None and self.measure_cores < 0:
            raise InputError(f"measure_cores must be 0 or more, got {self.measure_cores}")
        point_search.algorithm(self.search)
        for text in self.scenarios:
            parse_scenario(text)
        selected_runtimes(self.runtimes)
