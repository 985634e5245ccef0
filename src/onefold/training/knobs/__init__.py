"""Knobs: system parameters that change the cost of training, but not what is learned."""

from onefold.training.knobs.catalog import AvailableKnobs, applied, available_knobs, narrowed, why_nothing_acts
from onefold.training.knobs.knob import Knob, KnobUnavailable, TrainingContext

__all__ = [
    "AvailableKnobs",
    "Knob",
    "KnobUnavailable",
    "TrainingContext",
    "applied",
    "available_knobs",
    "narrowed",
    "why_nothing_acts",
]
