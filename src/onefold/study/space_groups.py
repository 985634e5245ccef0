"""The groups `system` and `serving` of a space: what the knobs of a trial and its serving points may be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import get_args

from onefold.search import Algorithm
from onefold.serving import point_search
from onefold.serving.options import ServingOptions
from onefold.serving.space import ServingSpace
from onefold.vocabulary.errors import InputError, SpaceError, unknown
from onefold.vocabulary.knobs import FUNCTION_KNOBS, KNOB_NAMES, KnobOptions, Probing
from onefold.vocabulary.records import Value
from onefold.vocabulary.space import INNER_GROUPS, SERVING, SYSTEM, Parameter, Space

SERVING_PARAMETERS = {  # by name in the space: the field of ServingSpace
    "batch_size": "batch_sizes",
    "threads": "threads",
    "graph_level": "graph_levels",
    "execution": "executions",
    "precision": "precisions",
}


def check_groups(space: Space) -> None:
    """Raise SpaceError for a group that means something else than its name says."""
    if "compression" in space.groups:
        raise SpaceError(
            "the group 'compression' would be ignored; say how models are compressed with compress=ForkOptions(...)"
        )


def split_algorithm(algorithm: Algorithm) -> tuple[Algorithm, dict[str, str]]:
    """Return the algorithm of the hyperparameters, and those of the groups `system` and `serving`."""
    if isinstance(algorithm, str):
        return algorithm, {}
    inner = {group: name for group, name in algorithm.items() if group in INNER_GROUPS}
    outer = {group: name for group, name in algorithm.items() if group not in INNER_GROUPS}
    return outer or "tpe", inner


def with_system_group(
    space: Space, knobs: KnobOptions, algorithms: Mapping[str, str], *, is_function: bool, yields_steps: bool
) -> KnobOptions:
    """Return the knob options with the values and the algorithm of the group `system`.

    Raises InputError if the group or its algorithm would be ignored.
    """
    algorithm = algorithms.get(SYSTEM)
    if algorithm is not None:
        if algorithm not in get_args(Probing):
            raise InputError(unknown("algorithm of the group 'system'", algorithm, get_args(Probing)))
        knobs = replace(knobs, probing=algorithm)  # type: ignore[arg-type]
    group = space.inner.get(SYSTEM, {})
    if algorithm is not None and knobs.mode == "off":
        raise InputError("the algorithm of the group 'system' would be ignored, since knobs are off; tune them")
    if not group:
        return knobs
    if is_function and not yields_steps:
        raise SpaceError(
            "the group 'system' would be ignored: knobs are tuned between the steps of a training, and this function "
            "yields none; yield after each step, or move its parameters to another group"
        )
    known = FUNCTION_KNOBS if is_function else KNOB_NAMES
    values = {name: _values(SYSTEM, name, parameter, known) for name, parameter in group.items()}
    several = [name for name, options in values.items() if len(options) > 1]
    if knobs.mode == "off" and (several or is_function):
        name = (several or list(values))[0]
        raise SpaceError(
            f"{name} of the group 'system' would be ignored, since knobs are off; tune them, or give it a single value "
            "of a workload"
        )
    return replace(knobs, options=values)


def with_serving_group(
    space: Space, serving: ServingOptions, algorithms: Mapping[str, str], *, has_device: bool
) -> ServingOptions:
    """Return the serving options with the values and the algorithm of the group `serving`.

    Raises InputError if the group or its algorithm would be ignored.
    """
    algorithm, group = algorithms.get(SERVING), space.inner.get(SERVING, {})
    if (group or algorithm is not None) and not has_device:
        raise SpaceError(
            "the group 'serving' would be ignored: no device serves the model; add device=\"host\" or another"
        )
    if algorithm is not None:
        point_search.algorithm(algorithm)  # raises for an unknown name
        serving = replace(serving, search=algorithm)
    if not group:
        return serving
    if serving.space is not None:
        raise InputError("serving points are given twice, by the group 'serving' and by ServingOptions.space; give one")
    values = {name: _values(SERVING, name, parameter, SERVING_PARAMETERS) for name, parameter in group.items()}
    for name in ("batch_size", "threads"):
        if all(isinstance(value, int) for value in values.get(name, ())):
            values[name] = tuple(sorted(values.get(name, ())))  # type: ignore[type-var]
    given = {SERVING_PARAMETERS[name]: known for name, known in values.items() if known}
    return replace(serving, space=ServingSpace(**given))  # type: ignore[arg-type]


def _values(group: str, name: str, parameter: Parameter, known: Iterable[str]) -> tuple[Value, ...]:
    if name not in known:
        raise SpaceError(unknown("parameter", name, known, of=f"the group {group!r}"))
    return tuple(parameter.grid(int(parameter.size)))
