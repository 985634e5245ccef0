"""Select a variant. One that is slower or worse than the plain model is never selected, and the reason is recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.variants import Variant

LATENCY_TOLERANCE = 1.02  # a variant up to 2% slower counts as equally fast
ROUNDING = 1e-9
VariantCost = Literal["size", "latency", "energy"]
VARIANT_COSTS: tuple[VariantCost, ...] = get_args(VariantCost)


@dataclass(frozen=True, slots=True)
class SelectionCriteria:
    """What a selection minimizes, and how much of the metric it may cost."""

    metric: str
    higher_is_better: bool
    optimize_for: VariantCost = "size"
    max_metric_loss: float = 0.01

    def metric_loss(self, variant: Variant, plain: Variant) -> float:
        """Return by how much a variant's metric is worse than the plain model's."""
        return (plain.metrics[self.metric] - variant.metrics[self.metric]) * (1 if self.higher_is_better else -1)

    def cost(self, variant: Variant) -> float:
        """Return the quantity to minimize; latency stands in for an unknown energy."""
        if self.optimize_for == "energy" and variant.energy.joules is not None:
            return variant.energy.joules
        return variant.latency_s if self.optimize_for in ("latency", "energy") else variant.smallest_bytes


@dataclass(frozen=True)
class Selection:
    """The selected variant, the reason, and why others were refused."""

    chosen: Variant
    why: str
    refused: Mapping[str, str]  # by the name of the variant

    def __str__(self) -> str:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
        return f"{self.why}; refused: {reasons}" if reasons else self.why


def check_optimize_for(value: str) -> VariantCost:
    """Return the value if variants can be selected for it; raises InputError otherwise."""
    for cost in VARIANT_COSTS:
        if value == cost:
            return cost
    raise InputError(unknown("optimize_for", value, VARIANT_COSTS))


def select_variant(
    plain: Variant,
    variants: Sequence[Variant],
    criteria: SelectionCriteria,
    name: Callable[[Variant], str] = lambda variant: str(variant.recipe),
) -> Selection:
    """Return the cheapest variant that keeps the metric and the latency of the plain model, or the plain model."""
    refused = {}
    eligible = []
    for variant in variants:
        if reason := _reason_against(variant, plain, criteria):
            refused[name(variant)] = reason
        else:
            eligible.append(variant)
    best = min([plain, *eligible], key=criteria.cost)
    if best is plain:
        return Selection(plain, f"the plain model: no variant is better for {criteria.optimize_for}", refused)
    metric = criteria.metric
    gains = (
        f"{plain.smallest_bytes / best.smallest_bytes:.1f}x smaller, {plain.latency_s / best.latency_s:.2f}x as fast, "
        f"{metric} {best.metrics[metric]:.4g} instead of {plain.metrics[metric]:.4g}"
    )
    return Selection(best, f"{name(best)}: {gains}", refused)


def _reason_against(variant: Variant, plain: Variant, criteria: SelectionCriteria) -> str:
    loss, limit = criteria.metric_loss(variant, plain), criteria.max_metric_loss
    if math.isnan(loss):
        return f"{criteria.metric} is not a number"
    if loss > limit + ROUNDING:
        return f"{criteria.metric} is worse by {loss:.4g}, more than the {limit:g} allowed"
    if variant.latency_s > LATENCY_TOLERANCE * plain.latency_s:
        return f"{variant.latency_s / plain.latency_s:.2f}x the latency"
    return ""
