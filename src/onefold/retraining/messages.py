"""What is said when no plan can keep the limits."""

from __future__ import annotations

from onefold.retraining.feasible_plans import FREEZE_RATES, segment_counts
from onefold.retraining.network_profile import least
from onefold.retraining.planning_context import MARGIN, PlanningContext
from onefold.vocabulary.retraining import RetrainingLimits, RetrainingPlan


def insufficient_memory_message(context: PlanningContext, limits: RetrainingLimits, afterwards: int = 0) -> str:
    """Says the least that is possible."""
    plans = [
        RetrainingPlan(1, 1, rate, segments, optimizer=context.optimizer)
        for rate in FREEZE_RATES
        for segments in segment_counts(context.max_segments)
    ]
    smallest = least(context.profile, plans, context.held)
    needed = max(smallest.memory_bytes / (1 - MARGIN), context.held + afterwards)
    asked = f"{limits.memory_bytes / 1e6:.0f} MB"
    now = "" if context.limit >= limits.memory_bytes else f", of which {context.limit / 1e6:.0f} MB are there now"
    return (
        f"retraining this model takes at least {needed / 1e6:.0f} MB, one sample at a time with "
        f"{smallest.plan.freeze_rate:.0%} of its layers frozen, but the limit is {asked}{now}; Python, torch and the "
        f"model themselves hold {context.held / 1e6:.0f} MB of it. Give --memory {-(-needed // 1e6):.0f}MB or more"
    )


def short_window_message(step_s: float, besides_s: float, limits: RetrainingLimits) -> str:
    """Says how long the window must be at least."""
    return (
        f"one step takes about {step_s:.2g} s, and opening, scoring and saving the model {besides_s:.2g} s, but the "
        f"window is {limits.window_s:g} s; give --window {max(1, -(-(besides_s + 20 * step_s) // 1)):.0f}s or more"
    )
