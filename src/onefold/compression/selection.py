"""Which variant to take. One that is slower or worse than the plain model is never taken, and why is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onefold.vocabulary.variants import Variant

NOISE = 1.02  # a variant that takes this much longer is as fast
ROUNDING = 1e-9
AIMS = ("size", "latency", "energy")


@dataclass(frozen=True)
class Selection:
    """The variant to take, why, and why not the others."""

    chosen: Variant
    why: str
    refused: Mapping[str, str]  # by the name of the variant

    def __str__(self) -> str:
        told = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
        return f"{self.why}; not taken: {told}" if told else self.why


def choose(
    plain: Variant,
    variants: Sequence[Variant],
    metric: str,
    higher: bool,
    aim: str,
    drop: float,
    name: Callable[[Variant], str] = lambda one: str(one.recipe),
) -> Selection:
    """The best variant for the aim among those that lose no more than `drop` of the metric and are not slower."""

    def lost(one: Variant) -> float:
        return (plain.metrics[metric] - one.metrics[metric]) * (1 if higher else -1)

    def cost(one: Variant) -> float:
        if aim == "energy" and one.energy.joules is not None:
            return one.energy.joules
        return one.latency_s if aim in ("latency", "energy") else one.smallest_bytes

    refused = {}
    able = []
    for one in variants:
        if math.isnan(lost(one)):
            refused[name(one)] = f"{metric} is not a number"
        elif lost(one) > drop + ROUNDING:
            refused[name(one)] = f"{metric} is worse by {lost(one):.4g}, more than the {drop:g} allowed"
        elif one.latency_s > NOISE * plain.latency_s:
            refused[name(one)] = f"{one.latency_s / plain.latency_s:.2f}x as slow"
        else:
            able.append(one)
    best = min([plain, *able], key=cost)
    if best is plain:
        return Selection(plain, f"the plain model: no variant is better for {aim}", refused)
    gains = (
        f"{plain.smallest_bytes / best.smallest_bytes:.1f}x smaller, {plain.latency_s / best.latency_s:.2f}x as fast, "
        f"{metric} {best.metrics[metric]:.4g} instead of {plain.metrics[metric]:.4g}"
    )
    return Selection(best, f"{name(best)}: {gains}", refused)
