"""The devices that a study tunes for, and whether what is asked of them makes sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from onefold.device import Device
from onefold.device.host import find, host
from onefold.errors import InputError, ObjectiveError, suggestion
from onefold.inference import choosing
from onefold.inference.points import ServingSpace
from onefold.inference.scenarios import GOALS, scenario
from onefold.objective import Objective
from onefold.serving import SERVING_METRICS, Purpose
from onefold.study.home import Home
from onefold.study.spec import Spec, Strategy


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of serving."""

    serve_for: str = Purpose.THROUGHPUT.value
    serving_search: str = "few"
    serving_space: ServingSpace | None = None
    scenarios: tuple[str, ...] = ()
    scenario_goal: str = GOALS[0]
    strategy: Strategy = "onefold"

    def check(self) -> None:
        """Tells the first mistake."""
        purposes = [purpose.value for purpose in Purpose]
        if self.serve_for not in purposes:
            raise InputError(f"a model is served for {', '.join(purposes)}, but got {self.serve_for!r}")
        if self.strategy not in get_args(Strategy):
            raise InputError(
                f"the strategy {self.strategy!r} is not known{suggestion(self.strategy, get_args(Strategy))}"
            )
        if self.scenario_goal not in GOALS:
            raise InputError(f"the goal of a scenario is {' or '.join(GOALS)}; got {self.scenario_goal!r}")
        choosing.algorithm(self.serving_search)
        for text in self.scenarios:
            scenario(text)


def with_devices(spec: Spec, given: Sequence[str | Device], asked: Asked, home: Home) -> Spec:
    """The spec of a study for these devices; every mistake is told here, before anything is written down."""
    asked.check()
    if given and not spec.workload and spec.quality is None:
        raise InputError("a device serves a model, and a function has none: tune a workload")
    if not given:
        _check_wants_no_device(spec, asked)
        return replace(spec, strategy=asked.strategy)
    devices = tuple(dict.fromkeys(one if isinstance(one, Device) else find(one, home.devices) for one in given))
    spec = replace(
        spec,
        devices=devices,
        host=host(home.devices),
        serve_for=asked.serve_for,
        serving_search=asked.serving_search,
        serving_space=asked.serving_space,
        scenarios=tuple(str(scenario(text)) for text in asked.scenarios) or spec.scenarios,
        scenario_goal=asked.scenario_goal,
        strategy=asked.strategy,
    )
    _check_devices_of(spec)
    served = set(spec.serving_metrics)
    if asked.strategy == "hierarchical" and spec.quality is not None and set(spec.objective.inputs) & served:
        spec = replace(spec, objective=_before_serving(spec.quality, spec.objective, served))
    return spec


def _before_serving(quality: Objective, objective: Objective, served: set[str]) -> Objective:
    """Hyperparameters first; how the best one serves comes after. What is required of anything else stays."""
    bounds = {
        metric: bound
        for metric, bound in objective.require.items()
        if not served & set(Objective(minimize=metric).inputs)
    }
    best, least = ([goal.metric for goal in quality.goals if goal.maximize is wanted] for wanted in (True, False))
    return Objective(best, least, {**quality.require, **bounds})


def _check_wants_no_device(spec: Spec, asked: Asked) -> None:
    if replace(asked, strategy="onefold") != Asked() or asked.strategy == "hierarchical":
        raise InputError("how to serve is asked for without a device: add --device host, or another device's name")
    wanted = [name for name in spec.objective.inputs if name.partition("@")[0] in SERVING_METRICS]
    if wanted:
        raise ObjectiveError(f"{wanted[0]} is known only with a device: add --device host, or another device's name")


def _check_devices_of(spec: Spec) -> None:
    names = [device.name for device in spec.devices]
    for wanted in spec.objective.inputs:
        metric, at, name = wanted.partition("@")
        if at and name not in names:
            raise ObjectiveError(f"{wanted} names a device that the study does not have{suggestion(name, names)}")
        if at and len(names) == 1:
            raise ObjectiveError(f"with one device its metrics have no device in their name: write {metric}")
