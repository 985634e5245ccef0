"""Error messages for limits that no plan can keep."""

from __future__ import annotations

import math

from onefold.retraining.feasible_plans import FREEZE_RATES, segment_counts
from onefold.retraining.planning_context import MEMORY_MARGIN, PlanningContext
from onefold.vocabulary.quantities import duration, share, size
from onefold.vocabulary.retraining import RetrainingLimits, RetrainingPlan

MARGIN = 1.15  # of the suggested window, since measured times scatter
STEPS = 20  # that fit into the suggested window


def insufficient_memory_message(context: PlanningContext, limits: RetrainingLimits, other_bytes: int = 0) -> str:
    """State the least memory that any plan needs; `other_bytes` is what the process needs besides training."""
    plans = [
        RetrainingPlan(1, 1, rate, segments, optimizer=optimizer)
        for optimizer in context.optimizers
        for rate in FREEZE_RATES
        for segments in segment_counts(context.max_segments)
    ]
    smallest = context.profile.cheapest(plans, context.held_bytes)
    needed = max(smallest.memory_bytes / (1 - MEMORY_MARGIN), other_bytes)
    reason = (
        "to profile the network and to save the model"
        if needed == other_bytes
        else f"with one sample per batch and {share(smallest.plan.freeze_rate)} of its layers frozen"
    )
    is_lower_now = context.limit_bytes < limits.memory_bytes
    now = f", of which {size(context.limit_bytes)} are available now" if is_lower_now else ""
    return (
        f"retraining this model needs at least {size(needed)}, {reason}, but the memory limit is "
        f"{size(limits.memory_bytes)}{now}; Python, torch and the model hold {size(context.held_bytes)}. "
        f"Set memory to {math.ceil(needed / 2**20)}MiB or more"
    )


def short_window_message(step_s: float, other_s: float, limits: RetrainingLimits) -> str:
    """State the shortest sensible window; `other_s` is the time to load, evaluate and save the model."""
    step = f"one step takes about {duration(step_s)}, and " if step_s else ""
    return (
        f"{step}loading, evaluating and saving the model {'' if step else 'takes at least '}{duration(other_s)}, "
        f"but the window is {duration(limits.window_s)}; set window to "
        f"{max(1, math.ceil(MARGIN * other_s + STEPS * step_s))}s or more"
    )
