"""The devices that a study tunes for, and whether what is asked of them makes sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from onefold.device import Device
from onefold.device.host import find, host
from onefold.errors import InputError, ObjectiveError, suggestion
from onefold.inference import choosing
from onefold.inference.scenarios import scenario
from onefold.serving import SERVING_METRICS, Purpose
from onefold.study.home import Home
from onefold.study.spec import Spec, Strategy


def with_devices(
    spec: Spec,
    given: Sequence[str | Device],
    serve_for: str,
    serving_search: str,
    scenarios: Sequence[str],
    strategy: Strategy,
    home: Home,
) -> Spec:
    """The spec of a study for these devices; every mistake is told here, before anything is written down."""
    purposes = [purpose.value for purpose in Purpose]
    if serve_for not in purposes:
        raise InputError(f"a model is served for {', '.join(purposes)}, but got {serve_for!r}")
    if strategy not in get_args(Strategy):
        raise InputError(f"the strategy {strategy!r} is not known{suggestion(strategy, get_args(Strategy))}")
    choosing.algorithm(serving_search)
    texts = tuple(str(scenario(text)) for text in scenarios) or spec.scenarios
    if given and not spec.workload and spec.quality is None:
        raise InputError("a device serves a model, and a function has none: tune a workload")
    if not given:
        _check_wants_no_device(spec)
        return spec
    devices = tuple(dict.fromkeys(one if isinstance(one, Device) else find(one, home.devices) for one in given))
    spec = replace(
        spec,
        devices=devices,
        host=host(home.devices),
        serve_for=serve_for,
        serving_search=serving_search,
        scenarios=texts,
        strategy=strategy,
    )
    _check_devices_of(spec)
    if (
        strategy == "hierarchical"
        and spec.quality is not None
        and set(spec.objective.inputs) & set(spec.serving_metrics)
    ):
        spec = replace(spec, objective=spec.quality)  # hyperparameters first; how the best one serves comes after
    return spec


def _check_wants_no_device(spec: Spec) -> None:
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
