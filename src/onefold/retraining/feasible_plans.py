"""The memory range search of MPOptimizer: from all possible plans to at most ten that fit and are worth trying.

For each optimizer, freeze rate and number of segments a binary search finds the largest batch that fits. Plans with
one freeze rate and optimizer learn the same from a sample, so only the fastest stays, with the smallest batch that is
nearly as fast. Learning rates are spread around the one that suits the effective batch. The rules choose among the
rest.

The most promising plan comes first: without a search, one would freeze as little as the memory permits, and use Adam at
its usual learning rate. Each departure from that has a cost, and plans are ordered by the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from onefold.retraining.planning_context import LR_STEP, PlanningContext, base_lr, learning_key
from onefold.retraining.rule_facts import plan_facts
from onefold.retraining.rules import Rules
from onefold.vocabulary.retraining import EFFECTIVE_BATCH, MAX_EPOCHS, PlanEstimate, RetrainingPlan

MAX_PLANS = 10
LARGEST_BATCH = 256
FREEZE_RATES = (0.0, 0.25, 0.5, 0.75, 1.0)
# The cost of each departure from the most promising plan. The learning rate decays anyway in the second half.
LR_COSTS = {1.0: 0.0, LR_STEP: 1.0, 1 / LR_STEP: 3.0}  # by factor of the base learning rate
OPTIMIZER_COST, FREEZING_COST = 2.0, 2.5  # of the second optimizer; of each step of freeze rates
LOWEST_LR, HIGHEST_LR = 1e-5, 1e-2
MIN_UPDATES, FEW_UPDATES = 1500, 100  # per window; with fewer the effective batch is reduced to USUAL or SMALLEST
MIN_UPDATES_PER_EPOCH = 8
USUAL_EFFECTIVE_BATCH, SMALLEST_EFFECTIVE_BATCH = 32, 16
STEADY_BATCH = 16  # smallest batch for which BatchNorm trains on batch statistics
NEARLY_AS_FAST = 0.95
GOOD_GAIN = 0.5  # relative to the best remembered gain


def feasible_plans(context: PlanningContext, rules: Rules) -> tuple[PlanEstimate, ...]:
    """Return at most ten plans that fit the memory limit, the most promising first; empty if none fits."""
    shapes = [
        shape
        for rate in FREEZE_RATES
        for optimizer in context.optimizers
        if (shape := _fastest_shape(context, rate, optimizer)) is not None
    ]
    frozen_stages = context.profile.staged.frozen_stages
    distinct = {
        (shape.batch_size, frozen_stages(shape.freeze_rate), shape.segments, shape.optimizer): shape
        for shape in reversed(shapes)
    }
    shapes = list(reversed(distinct.values()))
    if not shapes:
        return ()
    effective = effective_batch(context, context.estimate(shapes[0]).samples_per_s)
    sized = [
        replace(shape, batch_size=size, accumulation=effective // size)
        for shape in shapes
        for size in [min(shape.batch_size, effective)]
        if context.fits(replace(shape, batch_size=size))
    ]
    if not sized:
        return ()
    rates = sorted({shape.freeze_rate for shape in sized})
    costs = {
        _with_lr(shape, factor): FREEZING_COST * rates.index(shape.freeze_rate)
        + OPTIMIZER_COST * context.optimizers.index(shape.optimizer)
        + lr_cost
        for shape in reversed(sized)
        for factor, lr_cost in reversed(LR_COSTS.items())
    }
    plans = sorted(costs, key=lambda plan: (costs[plan], plan.freeze_rate))
    return _apply_rules(context, [context.estimate(plan) for plan in plans], rules)


def effective_batch(context: PlanningContext, samples_per_s: float) -> int:
    """Return the samples per update: 256, or fewer if the window or the data would allow too few updates."""
    size = EFFECTIVE_BATCH
    trained = min(samples_per_s * context.idle_left_s, MAX_EPOCHS * context.samples)
    while size > SMALLEST_EFFECTIVE_BATCH:
        fewest = MIN_UPDATES if size > USUAL_EFFECTIVE_BATCH else FEW_UPDATES
        if trained / size >= fewest and size * MIN_UPDATES_PER_EPOCH <= context.samples:
            break
        size //= 2
    return size


def largest_batch(fits: Callable[[int], bool], largest: int = LARGEST_BATCH) -> int:
    """Return the largest batch size that fits, by binary search; 0 if one sample does not."""
    if not fits(1):
        return 0
    if fits(largest):
        return largest
    low, high = 1, largest  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def segment_counts(maximum: int) -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12, … up to the maximum."""
    counts = [1, 2, 3]
    while counts[-1] < maximum:
        counts.append(counts[-2] * 2)
    return sorted({min(count, maximum) for count in counts})


def _fastest_shape(context: PlanningContext, freeze_rate: float, optimizer: str) -> RetrainingPlan | None:
    """Return the batch size and segments that train the unfrozen layers fastest."""
    estimates: list[PlanEstimate] = []
    for segments in segment_counts(context.max_segments):
        plan = RetrainingPlan(1, freeze_rate=freeze_rate, segments=segments, optimizer=optimizer)
        largest = largest_batch(lambda size, plan=plan: context.fits(replace(plan, batch_size=size)))  # type: ignore[misc]
        sizes = [2**power for power in range(9) if 2**power <= largest]
        sized = (context.estimate(replace(plan, batch_size=size)) for size in sizes)
        estimates += [estimate for estimate in sized if estimate.memory_bytes <= context.usable_bytes]
    if not estimates:
        return None
    fastest = max(estimate.samples_per_s for estimate in estimates)
    fast = [estimate for estimate in estimates if estimate.samples_per_s >= NEARLY_AS_FAST * fastest]
    steady = [estimate for estimate in fast if estimate.plan.batch_size >= STEADY_BATCH]
    candidates = (steady if context.has_batch_norm else fast) or fast
    return min(candidates, key=lambda estimate: (round(estimate.memory_bytes / 1e6), estimate.plan.segments)).plan


def _with_lr(plan: RetrainingPlan, factor: float) -> RetrainingPlan:
    """Return a plan with so many times the usual learning rate."""
    scaled = base_lr(plan.optimizer, plan.effective_batch)
    return replace(plan, lr=float(f"{min(max(factor * scaled, LOWEST_LR), HIGHEST_LR):.3g}"))


def _apply_rules(context: PlanningContext, estimates: Sequence[PlanEstimate], rules: Rules) -> tuple[PlanEstimate, ...]:
    """Return the plans that the rules keep, preferred ones first; all of them if the rules would refuse every plan."""
    fastest = max(estimate.samples_per_s for estimate in estimates)
    rank = {"prefer": 0, "keep": 1, "defer": 2}
    kept = []
    for position, estimate in enumerate(estimates):
        action = rules.verdict(plan_facts(context, estimate, fastest)).then
        if action != "refuse":
            kept.append((rank[action], position, estimate))
    chosen = [estimate for *_, estimate in sorted(kept, key=lambda entry: entry[:2])] if kept else list(estimates)
    return tuple(sorted(chosen[:MAX_PLANS], key=lambda estimate: _remembered_rank(context, estimate.plan)))


def _remembered_rank(context: PlanningContext, plan: RetrainingPlan) -> float:
    """Rank plans that gained in earlier retrainings first, by their gain, and those that gained little last."""
    best = max(context.gains.values(), default=0.0)
    gain = context.gains.get(learning_key(plan))
    if gain is None or best <= 0:
        return 0.0
    return -gain / best if gain >= GOOD_GAIN * best else 1.0
