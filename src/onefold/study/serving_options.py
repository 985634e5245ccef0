"""The devices of a study, checked against its objective and its serving options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onefold.device import Device
from onefold.device.host import find_device, host
from onefold.serving.options import ServingOptions
from onefold.serving.scenarios import DEFAULT_SCENARIOS, parse_scenario
from onefold.store.home import Home
from onefold.study.spec import Spec
from onefold.vocabulary.errors import InputError, ObjectiveError, suggestion
from onefold.vocabulary.serving import RATE_METRICS, is_serving_metric


def with_devices(spec: Spec, devices: Sequence[str | Device], serving: ServingOptions, home: Home) -> Spec:
    """Return the spec of a study for these devices.

    Raises InputError or ObjectiveError if the devices, the serving options and the objective do not fit together.
    """
    serving.check()
    if devices and not spec.workload and spec.workload_objective is None:
        raise InputError("a device serves a model, and a function has none; give a workload")
    if not devices:
        _check_without_device(spec, serving)
        return replace(spec, serving=replace(serving, scenarios=DEFAULT_SCENARIOS))
    known = tuple(
        dict.fromkeys(device if isinstance(device, Device) else find_device(device, home.devices) for device in devices)
    )
    scenarios = tuple(str(parse_scenario(text)) for text in serving.scenarios) or DEFAULT_SCENARIOS
    spec = replace(spec, devices=known, host=host(home.devices), serving=replace(serving, scenarios=scenarios))
    _check_metrics(spec)
    return spec


def _check_without_device(spec: Spec, serving: ServingOptions) -> None:
    if serving != ServingOptions():
        raise InputError('serving options need a device; add device="host" or the name of another device')
    own = spec.workload_objective.inputs if spec.workload_objective is not None else ()
    wanted = [name for name in _inputs(spec) if name not in own and is_serving_metric(name)]
    if wanted:
        raise ObjectiveError(
            f'the metric {wanted[0]!r} needs a device; add device="host" or the name of another device'
        )


def _check_metrics(spec: Spec) -> None:
    names = [device.name for device in spec.devices]
    for wanted in _inputs(spec):
        metric, at, name = wanted.partition("@")
        if at and name not in names:
            raise ObjectiveError(f"the metric {wanted!r} names a device that the study lacks{suggestion(name, names)}")
        if at and len(names) == 1:
            raise ObjectiveError(f"with one device, metrics have no device in their name; write {metric}")
    rates = [name for name in _inputs(spec) if name in RATE_METRICS and name not in spec.serving_metrics]
    if rates:
        raise ObjectiveError(
            f"the metric {rates[0]!r} needs a scenario with a rate, got {spec.serving.scenarios[0]!r}; "
            'name one such as "server:100" first'
        )
    served = {name for name in _inputs(spec) if name in spec.serving_metrics}
    if served and spec.serving.measure == "winner":
        raise ObjectiveError(
            f"the metric {min(served)!r} is unknown for trials that are not measured; "
            'use measure="trials", or an objective without serving metrics'
        )


def _inputs(spec: Spec) -> tuple[str, ...]:
    return (*spec.objective.inputs, *spec.objective.guard_inputs)
