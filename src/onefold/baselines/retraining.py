"""Retraining strategies from the literature, to compare `onefold` with. Importing this module registers them.

static      batches of 8, 32 accumulated, 40 % of the layers frozen, square root of the layers as segments
dgc         dynamic gradient checkpointing: as static, with the fewest segments that fit
dga         dynamic gradient accumulation: as static, with the largest batch that fits
sage        both: the largest batch, then the fewest segments
bayesian    plans proposed by Bayesian optimization, one per micro-window
oom-retry   the largest batch, halved after each failed allocation
last-layer  all layers but the last frozen, the largest batch that fits
fixed       what one would choose by hand: updates of 32 samples, as few frozen layers and segments as fit; with the
            re-estimated statistics, the decay of the learning rate and the evaluations of onefold
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from onefold.retraining.feasible_plans import FREEZE_RATES, LARGEST_BATCH, largest_batch, segment_counts
from onefold.retraining.planning_context import PlanningContext
from onefold.retraining.strategy import register_strategy
from onefold.search.algorithms import create_searcher
from onefold.search.searcher import Observation
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.retraining import EFFECTIVE_BATCH, PlanEstimate, RetrainingPlan
from onefold.vocabulary.space import Choice, Float, Space

STATIC_PLAN = RetrainingPlan(8, EFFECTIVE_BATCH // 8, freeze_rate=0.4, lr=1e-3)
FIXED_BATCH, FIXED_LR = 32, 3.5e-4  # Adam's 1e-3 at 256 samples, scaled by the square root
PROPOSALS = 20  # of Bayesian optimization for one micro-window, until one fits


@dataclass
class SinglePlanStrategy:
    """A strategy with one plan at a time."""

    name: str
    is_adaptive = False
    _estimates: tuple[PlanEstimate, ...] = ()

    def plans(self, context: PlanningContext) -> tuple[PlanEstimate, ...]:
        plan = self.choose(context)
        plan = None if plan is None else replace(plan, optimizer=context.optimizers[0])
        self._estimates = () if plan is None else (context.estimate(plan),)
        return self._estimates

    def choose(self, context: PlanningContext) -> RetrainingPlan | None:
        """Return the plan for this context; None if none fits."""
        raise NotImplementedError

    def next_plan(self, elapsed_share: float) -> RetrainingPlan:  # noqa: ARG002
        return self._estimates[0].plan

    def tell(self, plan: RetrainingPlan, gain_per_s: float, seconds_per_sample: float) -> float:  # noqa: ARG002
        self._estimates = tuple(replace(estimate, gain_per_s=gain_per_s) for estimate in self._estimates)
        return 1.0

    def switch_plan(self) -> None:
        """Do nothing: there is no other plan."""

    def best_other_merit(self, plan: RetrainingPlan) -> float:  # noqa: ARG002
        return 0.0

    def estimates(self) -> tuple[PlanEstimate, ...]:
        return self._estimates

    def on_out_of_memory(self) -> bool:
        return False


class Static(SinglePlanStrategy):
    """A fixed plan."""

    def choose(self, context: PlanningContext) -> RetrainingPlan | None:
        plan = replace(STATIC_PLAN, segments=_root_segments(context))
        return plan if context.fits(plan) else None


class DynamicCheckpointing(SinglePlanStrategy):
    """A fixed batch with the fewest checkpoint segments that fit."""

    def choose(self, context: PlanningContext) -> RetrainingPlan | None:
        for segments in range(1, context.max_segments + 1):
            plan = replace(STATIC_PLAN, segments=segments)
            if context.fits(plan):
                return plan
        return None


class DynamicAccumulation(SinglePlanStrategy):
    """Fixed checkpoint segments with the largest batch that fits."""

    def choose(self, context: PlanningContext) -> RetrainingPlan | None:
        return _with_largest_batch(context, replace(STATIC_PLAN, segments=_root_segments(context)))


class Sage(SinglePlanStrategy):
    """The largest batch that fits with any number of segments, then the fewest segments that allow it."""

    def choose(self, context: PlanningContext) -> RetrainingPlan | None:
        plans = [
            plan
            for segments in range(1, context.max_segments + 1)
            if (plan := _with_largest_batch(context, replace(STATIC_PLAN, segments=segments))) is not None
        ]
        return max(plans, key=lambda plan: (plan.batch_size, -plan.segments), default=None)


class LastLayer(SinglePlanStrategy):
    """Only the last layer is trained."""

    def choose(self, context: PlanningContext) -> RetrainingPlan | None:
        return _with_largest_batch(context, replace(STATIC_PLAN, freeze_rate=1.0, segments=1))


class Fixed(SinglePlanStrategy):
    """The plan that one would choose by hand, with all mechanisms but the search."""

    is_adaptive = True

    def choose(self, context: PlanningContext) -> RetrainingPlan | None:
        for freeze_rate in FREEZE_RATES:
            for segments in segment_counts(context.max_segments):
                for size in (FIXED_BATCH, FIXED_BATCH // 4, 1):
                    plan = RetrainingPlan(size, FIXED_BATCH // size, freeze_rate, segments, lr=FIXED_LR)
                    if context.fits(plan):
                        return plan
        return None


class OomRetry(SinglePlanStrategy):
    """The largest batch, halved after each failed allocation, without any prediction of memory."""

    batch_size = LARGEST_BATCH

    def choose(self, context: PlanningContext) -> RetrainingPlan | None:  # noqa: ARG002
        return RetrainingPlan(self.batch_size, EFFECTIVE_BATCH // self.batch_size) if self.batch_size >= 1 else None

    def on_out_of_memory(self) -> bool:
        self.batch_size //= 2
        return True


class Bayesian:
    """Plans proposed by Bayesian optimization (TPE) over batch size, freeze rate, segments and learning rate."""

    name, is_adaptive = "bayesian", False

    def __init__(self, seed: int = 0) -> None:
        space = Space(
            batch_size=Choice(*(2**power for power in range(9))),
            freeze_rate=Float(0.0, 1.0),
            segments=Float(0.0, 1.0),
            lr=Float(1e-5, 1e-2, log=True),
        )
        self._searcher = create_searcher("tpe", space, seed, 1)
        self._context: PlanningContext | None = None
        self._pending: dict[RetrainingPlan, tuple[int, Any]] = {}
        self._number = 0
        self._tried: dict[RetrainingPlan, PlanEstimate] = {}

    def plans(self, context: PlanningContext) -> tuple[PlanEstimate, ...]:
        self._context = context
        first = _with_largest_batch(context, replace(STATIC_PLAN, segments=_root_segments(context)))
        smallest = RetrainingPlan(1, EFFECTIVE_BATCH, freeze_rate=1.0)
        start = first or (smallest if context.fits(smallest) else None)
        return () if start is None else (context.estimate(start),)

    def next_plan(self, elapsed_share: float) -> RetrainingPlan:  # noqa: ARG002
        context = self._context
        if context is None:
            raise InputError("next_plan() needs a planning context; call plans(context) first")
        for attempt in range(PROPOSALS):
            config = self._searcher.ask(self._number, attempt)
            value = {name: float(config[name]) for name in config}  # type: ignore[arg-type]
            size = round(value["batch_size"])
            segments = 1 + round(value["segments"] * (context.max_segments - 1))
            plan = RetrainingPlan(
                size, EFFECTIVE_BATCH // size, round(value["freeze_rate"], 3), segments, lr=value["lr"]
            )
            if context.fits(plan):
                self._pending[plan] = (self._number, config)
                self._number += 1
                return plan
        self._number += 1
        return self.plans(context)[0].plan

    def tell(self, plan: RetrainingPlan, gain_per_s: float, seconds_per_sample: float) -> float:  # noqa: ARG002
        if plan in self._pending:
            number, config = self._pending.pop(plan)
            self._searcher.tell(Observation(number, 1, config, (-gain_per_s,)))
        if self._context is not None:
            self._tried[plan] = replace(self._context.estimate(plan), gain_per_s=gain_per_s)
        return 1.0

    def switch_plan(self) -> None:
        """Do nothing: each micro-window has another plan anyway."""

    def best_other_merit(self, plan: RetrainingPlan) -> float:  # noqa: ARG002
        return 0.0

    def estimates(self) -> tuple[PlanEstimate, ...]:
        return tuple(self._tried.values())

    def on_out_of_memory(self) -> bool:
        return False


def _root_segments(context: PlanningContext) -> int:
    """Return the square root of the number of layers (Chen et al., 2016), at most the segments there can be."""
    return max(1, min(context.max_segments, round(math.sqrt(context.profile.staged.layers))))


def _with_largest_batch(context: PlanningContext, plan: RetrainingPlan) -> RetrainingPlan | None:
    """Return the plan with the largest power of two that fits as its batch size; None if one sample does not fit."""
    size = largest_batch(lambda batch_size: context.fits(replace(plan, batch_size=batch_size)))
    if not size:
        return None
    size = 2 ** (size.bit_length() - 1)  # so that it divides the effective batch
    return replace(plan, batch_size=size, accumulation=EFFECTIVE_BATCH // size)


_SINGLE_PLAN = {
    "static": Static,
    "dgc": DynamicCheckpointing,
    "dga": DynamicAccumulation,
    "sage": Sage,
    "oom-retry": OomRetry,
    "last-layer": LastLayer,
    "fixed": Fixed,
}
BASELINES = (*_SINGLE_PLAN, Bayesian.name)


def _register() -> None:
    for name, kind in _SINGLE_PLAN.items():
        register_strategy(name, lambda _rules, _alpha, _seed, name=name, kind=kind: kind(name))  # type: ignore[misc]
    register_strategy(Bayesian.name, lambda _rules, _alpha, seed: Bayesian(seed))


_register()
