"""The devices of a study, checked against its objective and its serving options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onefold.device import Device
from onefold.device.host import find_device, host
from onefold.processes import available_cores
from onefold.serving.options import ServingOptions
from onefold.serving.scenarios import DEFAULT_SCENARIOS, parse_scenario
from onefold.store.home import Home
from onefold.study.spec import Spec
from onefold.vocabulary.errors import InputError, ObjectiveError, suggestion
from onefold.vocabulary.serving import RATE_METRICS, is_serving_metric

ENOUGH_CORES = 4  # of which one is reserved by default beside training on an accelerator


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
    _check_measure_cores(spec)
    return spec


def reserved_cores(spec: Spec) -> int:
    """Return how many cores of this machine are reserved for measuring trials while others train."""
    if not measures_here(spec) or spec.parallelism.engine == "inline":
        return 0
    if spec.serving.measure_cores is not None:
        return spec.serving.measure_cores
    is_accelerated = spec.parallelism.accelerator != "cpu"
    return len(available_cores()) // ENOUGH_CORES if is_accelerated else 0


def measures_here(spec: Spec) -> bool:
    """Return whether trials are measured on this machine."""
    return spec.serving.measure == "trials" and any(not device.agent for device in spec.devices)


def _check_measure_cores(spec: Spec) -> None:
    count, available = spec.serving.measure_cores, len(available_cores())
    if not count:
        return
    if not measures_here(spec):
        raise InputError(
            f"measure_cores={count} would be ignored: no trial is measured on this machine while others train"
        )
    if spec.parallelism.engine == "inline":
        raise InputError(f'measure_cores={count} would be ignored by engine="inline", which does one thing at a time')
    if count >= available:
        raise InputError(f"measure_cores must leave a core for training: at most {available - 1}, got {count}")
    if spec.parallelism.threads > available - count:
        threads = spec.parallelism.threads
        raise InputError(f"with measure_cores={count} a trial has at most {available - count} threads, got {threads}")


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
