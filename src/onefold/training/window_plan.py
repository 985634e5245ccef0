"""A window of steps before it is run, what it measured, and the rules by which steps are grouped into windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from onefold.training.knob_search import Setting
from onefold.vocabulary.knobs import Phase

MIN_STEPS = 3  # of a window
MIN_PROFILED_STEPS = 8  # so that all groups of hardware events are counted


@dataclass(frozen=True, slots=True)
class KnobPlan:
    """The next window of steps."""

    phase: Phase
    setting: Setting
    steps: int
    is_profiled: bool = False
    abort_s: float = math.inf  # the window ends early if its steps take longer
    enough_s: float = math.inf  # the window may end with `min_steps` that took this long together
    min_steps: int = MIN_STEPS
    lent_cores: int = 0  # to use, if so many are still lent when the window starts


@dataclass(frozen=True, slots=True)
class WindowMeasurement:
    """What a window of steps measured."""

    step_s: float
    step_j: float | None
    steps: int
    losses: list[float] = field(default_factory=list)
    load: float = 0.0  # cores that other processes kept busy
    lent_cores: int = 0  # in use


@dataclass(frozen=True, slots=True)
class StepRules:
    """How steps are grouped into windows."""

    warm_up: int = 1  # steps after a change of knobs that are not counted
    first_warm_up: int = 3  # and at the start
    min_steps: int = MIN_STEPS  # of a window
    min_profiled_steps: int = MIN_PROFILED_STEPS
    window_share: float = 1.0  # of WINDOW_S
    train_networks: bool = True  # a step without a torch operator trains nothing


TRAINING_STEPS = StepRules()
FUNCTION_STEPS = StepRules(
    warm_up=0, first_warm_up=1, min_steps=1, min_profiled_steps=1, window_share=0.1, train_networks=False
)
