"""The memory range searcher: from all plans there could be down to ten or fewer that fit and are worth trying.

For each freeze rate and each number of segments the largest batch that fits is found by halving the range. Of the
plans with one freeze rate, which learn the same from a sample, the fastest stays, in the smallest batches that are
nearly as fast. Learning rates are spread around the one that belongs to the batch. What remains is put to the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from onefold.retraining.planning_context import PlanningContext
from onefold.retraining.rule_facts import plan_facts
from onefold.retraining.rules import Rules
from onefold.vocabulary.retraining import EFFECTIVE_BATCH, PlanEstimate, RetrainingPlan

MOST = 10  # plans that are left
LARGEST_BATCH = 256
FREEZE_RATES = (0.0, 0.25, 0.5, 0.75, 1.0)
RATES = (1.0, 3.0, 1 / 3)  # learning rates around the usual one, the most promising first
LOWEST_LR, HIGHEST_LR = 1e-5, 1e-2
USUAL_LR = {"adam": 1e-3, "sgd": 1e-2}  # for an update from 256 samples
ENOUGH_UPDATES = 400  # in a window, to get anywhere
SMALLEST_UPDATE = 16  # samples
NEARLY_AS_FAST = 0.95


def feasible_plans(context: PlanningContext, rules: Rules) -> tuple[PlanEstimate, ...]:
    """At most ten plans that fit, the fastest first within each freeze rate; none where nothing fits."""
    shapes = [shape for rate in FREEZE_RATES if (shape := _best_shape(context, rate)) is not None]
    shapes = list({(one.batch_size, _frozen(context, one), one.segments): one for one in reversed(shapes)}.values())
    shapes.reverse()
    if not shapes:
        return ()
    samples_in_update = update_samples(context, max(context.estimate(one).samples_per_s for one in shapes))
    sized = [
        replace(one, batch_size=size, accumulation=samples_in_update // size)
        for one in shapes
        for size in [min(one.batch_size, samples_in_update)]
        if context.fits(replace(one, batch_size=size))
    ]
    if not sized:
        return ()
    # Few frozen layers and the usual learning rate promise most; both are varied from there.
    places = sorted((at + 2 * by, at, by) for at in range(len(sized)) for by in range(len(RATES)))
    spread = dict.fromkeys(_learning(sized[at], RATES[by], context.optimizer) for _, at, by in places)
    return _narrowed(context, [context.estimate(plan) for plan in spread], rules)


def update_samples(context: PlanningContext, samples_per_s: float) -> int:
    """How many samples an update learns from: 256, or fewer where the window would hold too few updates."""
    size = EFFECTIVE_BATCH
    while size > SMALLEST_UPDATE and (
        samples_per_s * context.left_s / size < ENOUGH_UPDATES or size * 8 > context.samples
    ):
        size //= 2
    return size


def largest_batch(fits: Callable[[int], bool], most: int = LARGEST_BATCH) -> int:
    """The largest batch that fits, by halving the range; 0 where not even one sample does."""
    if not fits(1):
        return 0
    low, high = 1, most + 1  # low fits, high does not
    if fits(most):
        return most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def segment_counts(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, … up to the most there can be."""
    counts = [1, 2, 3]
    while counts[-1] < most:
        counts.append(counts[-2] * 2)
    return sorted({min(count, most) for count in counts})


def _best_shape(context: PlanningContext, rate: float) -> RetrainingPlan | None:
    """The fastest way to learn from the layers that this rate leaves."""
    found: list[PlanEstimate] = []
    for segments in segment_counts(context.max_segments):
        plan = RetrainingPlan(1, freeze_rate=rate, segments=segments, optimizer=context.optimizer)
        most = largest_batch(lambda size, plan=plan: context.fits(replace(plan, batch_size=size)))  # type: ignore[misc]
        sizes = {2**power for power in range(9) if 2**power <= most}
        tried = (context.estimate(replace(plan, batch_size=size)) for size in sorted(sizes))
        found += [one for one in tried if one.memory_bytes <= context.room]
    if not found:
        return None
    fastest = max(one.samples_per_s for one in found)
    quick = [one for one in found if one.samples_per_s >= NEARLY_AS_FAST * fastest]
    steady = [one for one in quick if one.plan.batch_size >= 16] if context.has_batch_norm else quick
    return min(steady or quick, key=lambda one: (round(one.memory_bytes / 1e6), one.plan.segments)).plan


def _frozen(context: PlanningContext, plan: RetrainingPlan) -> int:
    return context.profile.staged.frozen_stages(plan.freeze_rate)


def _learning(plan: RetrainingPlan, factor: float, optimizer: str) -> RetrainingPlan:
    """With its learning rate: smaller updates take smaller steps."""
    share = plan.effective_batch / EFFECTIVE_BATCH
    scaled = USUAL_LR[optimizer] * (share**0.5 if optimizer == "adam" else share)
    return replace(plan, lr=float(f"{min(max(factor * scaled, LOWEST_LR), HIGHEST_LR):.3g}"))


def _narrowed(context: PlanningContext, plans: Sequence[PlanEstimate], rules: Rules) -> tuple[PlanEstimate, ...]:
    """What the rules leave; all of them where they leave nothing."""
    fastest = max(one.samples_per_s for one in plans)
    order = {"prefer": 0, "keep": 1, "defer": 2}
    kept = []
    for place, one in enumerate(plans):
        then = rules.verdict(plan_facts(context, one, fastest)).then
        if then != "refuse":
            kept.append((order[then], place, one))
    chosen = [one for *_, one in sorted(kept, key=lambda each: each[:2])] if kept else list(plans)
    return tuple(chosen[:MOST])
