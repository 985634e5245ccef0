"""The devices that a study tunes for, and whether what is asked of them makes sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from onefold.device import Device
from onefold.device.host import find_device, host
from onefold.serving.options import ServingOptions
from onefold.serving.scenarios import scenario
from onefold.store.home import Home
from onefold.study.spec import Spec, Strategy
from onefold.vocabulary.errors import InputError, ObjectiveError, suggestion
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.serving import SERVING_METRICS


def with_devices(
    spec: Spec, given: Sequence[str | Device], serving: ServingOptions, strategy: Strategy, home: Home
) -> Spec:
    """The spec of a study for these devices; every mistake is told here, before anything is written down."""
    serving.check()
    if strategy not in get_args(Strategy):
        raise InputError(f"the strategy {strategy!r} is not known{suggestion(strategy, get_args(Strategy))}")
    if given and not spec.workload and spec.quality is None:
        raise InputError("a device serves a model, and a function has none: tune a workload")
    if not given:
        _check_wants_no_device(spec, serving, strategy)
        return replace(spec, strategy=strategy)
    devices = tuple(dict.fromkeys(one if isinstance(one, Device) else find_device(one, home.devices) for one in given))
    spec = replace(
        spec,
        devices=devices,
        host=host(home.devices),
        serve_for=serving.optimize_for,
        serving_search=serving.search,
        serving_space=serving.space,
        scenarios=tuple(str(scenario(text)) for text in serving.scenarios) or spec.scenarios,
        scenario_goal=serving.scenario_goal,
        strategy=strategy,
    )
    _check_devices_of(spec)
    served = set(spec.serving_metrics)
    if strategy == "hierarchical" and spec.quality is not None and set(spec.objective.inputs) & served:
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


def _check_wants_no_device(spec: Spec, serving: ServingOptions, strategy: Strategy) -> None:
    if serving != ServingOptions() or strategy == "hierarchical":
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
