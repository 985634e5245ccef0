"""The strategies that a study can be compared with: what other tuners do about the machine's knobs.

`fixed` tunes hyperparameters only, the knobs stay as they are. `as-hyperparameters` puts the knobs into the search
space and looks for the highest accuracy per second of training, as one would with any tuner.
"""

from __future__ import annotations

from dataclasses import replace

from onefold.study.spec import Spec
from onefold.vocabulary.knobs import KNOB_PREFIX, KnobOptions
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.space import Choice, Space

# What every visit can turn: its threads are those of its worker, which keeps freed memory as it is.
KNOBS = {"memory_format": ("contiguous", "channels last"), "update": ("loop", "fused")}


def with_strategy(spec: Spec) -> Spec:
    """The spec as its strategy wants it."""
    if spec.strategy == "fixed":
        return replace(spec, knobs=KnobOptions("off"))
    if spec.strategy == "as-hyperparameters" and "knobs" not in spec.space.groups:
        return replace(
            spec, knobs=KnobOptions("off"), space=_with_knobs(spec.space), objective=_per_second(spec.objective)
        )
    return spec


def _with_knobs(space: Space) -> Space:
    return Space(**space.groups, knobs={f"{KNOB_PREFIX}{name}": Choice(*options) for name, options in KNOBS.items()})


def _per_second(objective: Objective) -> Objective:
    """The first goal per second of training; a loss counts the more, the longer it took."""
    goal = objective.goals[0]
    if goal.maximize:
        return Objective(maximize=f"({goal.metric}) / train_time_s", require=objective.require)
    return Objective(minimize=f"({goal.metric}) * train_time_s", require=objective.require)
