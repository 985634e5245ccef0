"""Select a variant: the one that was asked for, or the best within limits. Reasons against the others are recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Literal, get_args

from onefold.compression.requirements import property_of, violated_requirement
from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.quantities import parse_share
from onefold.vocabulary.requirement import Bound
from onefold.vocabulary.variants import Recipe, Variant

ROUNDING = 1e-9
VariantCost = Literal["size", "latency", "energy"]
VARIANT_COSTS: tuple[VariantCost, ...] = get_args(VariantCost)


@suggest_fields
@dataclass(frozen=True)
class SelectionOptions:
    """Which variant is selected: what to minimize and what it may cost, or the variant itself.

    `take` is the name of a recipe or of its folder, such as "int8", "80% sparsity, int8" or "sparsity-0.8-int8". It is
    selected whatever it costs.
    """

    optimize_for: VariantCost = "size"
    max_metric_loss: float = 0.01  # of the workload's metric; a variant that loses more is refused
    allow_slower: float | str = 0.02  # share by which a variant may be slower than the plain model: 0.1 or "10%"
    take: str | None = None

    def check(self, recipes: Iterable[Recipe]) -> None:
        """Raise InputError for an invalid option; `recipes` are those of the variants besides the plain model."""
        if self.optimize_for not in VARIANT_COSTS:
            raise InputError(unknown("optimize_for", self.optimize_for, VARIANT_COSTS))
        if not (isinstance(self.max_metric_loss, Real) and self.max_metric_loss >= 0):
            raise InputError(f"max_metric_loss must be a number of at least 0, but got {self.max_metric_loss!r}")
        if not parse_share(self.allow_slower) >= 0:
            raise InputError(f"allow_slower must be at least 0, such as 0.1 for 10%, but got {self.allow_slower}")
        known = (Recipe(), *recipes)
        if self.take is not None and not any(recipe.is_named(self.take) for recipe in known):
            raise InputError(unknown("variant", self.take, {recipe.folder_name for recipe in known}))


@dataclass(frozen=True, slots=True)
class SelectionCriteria:
    """The metric of a workload, the options of a selection, and requirements by property of a variant."""

    metric: str
    higher_is_better: bool
    options: SelectionOptions = field(default_factory=SelectionOptions)
    bounds: Mapping[str, Bound] = field(default_factory=dict)

    def metric_loss(self, variant: Variant, plain: Variant) -> float:
        """Return by how much a variant's metric is worse than the plain model's."""
        return (plain.metrics[self.metric] - variant.metrics[self.metric]) * (1 if self.higher_is_better else -1)

    def cost(self, variant: Variant) -> float:
        """Return the quantity to minimize; latency stands in for an unknown energy."""
        optimize_for = self.options.optimize_for
        if optimize_for == "energy" and variant.energy.joules is not None:
            return variant.energy.joules
        return variant.latency_s if optimize_for in ("latency", "energy") else variant.smallest_bytes

    def reason_against(self, variant: Variant, plain: Variant) -> str:
        """Return which limit a variant violates; empty if none."""
        loss, limit = self.metric_loss(variant, plain), self.options.max_metric_loss
        if math.isnan(loss):
            return f"{self.metric} is not a number"
        if loss > limit + ROUNDING:
            return f"{self.metric} is worse by {loss:.4g}, more than the {limit:g} allowed"
        slowest = 1 + parse_share(self.options.allow_slower)
        if variant.latency_s > slowest * plain.latency_s:
            return f"{variant.latency_s / plain.latency_s:.2f}x the latency, more than the {slowest:.4g}x allowed"
        return violated_requirement(variant, self.bounds)

    def settled(self, variants: Sequence[Variant]) -> SelectionCriteria:
        """Return the criteria with the limits known of requirements that are relative to the best of the variants."""
        values = {name: [property_of(variant, name) for variant in variants] for name in self.bounds}
        bounds = {
            name: bound.settled(value for value in values[name] if value is not None)
            for name, bound in self.bounds.items()
        }
        return replace(self, bounds=bounds)


@dataclass(frozen=True)
class Selection:
    """The selected variant, the reason, and why others were refused."""

    chosen: Variant
    why: str
    refused: Mapping[str, str]  # by the name of the variant

    def __str__(self) -> str:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
        return f"{self.why}; refused: {reasons}" if reasons else self.why


def select_variant(
    plain: Variant,
    variants: Sequence[Variant],
    criteria: SelectionCriteria,
    name: Callable[[Variant], str] = lambda variant: str(variant.recipe),
) -> Selection:
    """Return the cheapest variant within the limits, or the plain model.

    With `take`, only variants of that recipe are considered; the first one is selected if none is within the limits.
    """
    take, criteria = criteria.options.take, criteria.settled((plain, *variants))
    reasons = {id(variant): criteria.reason_against(variant, plain) for variant in variants}
    reasons[id(plain)] = violated_requirement(plain, criteria.bounds)
    refused = {name(variant): reason for variant in variants if (reason := reasons[id(variant)])}
    wanted = [variant for variant in (plain, *variants) if not take or variant.recipe.is_named(take)]
    if not wanted:
        return Selection(plain, f"the plain model: there is no variant {take!r}", refused)
    best = min((variant for variant in wanted if not reasons[id(variant)]), key=criteria.cost, default=wanted[0])
    if best is plain:
        why = "as asked" if take else f"no variant is better for {criteria.options.optimize_for}"
        if reasons[id(plain)] and not take:
            why = f"no variant is within the limits, and {reasons[id(plain)]}"
        return Selection(plain, f"the plain model: {why}", refused)
    against = refused.pop(name(best), "")
    asked = f"as asked although {against}; " if against else "as asked; " if take else ""
    metric = criteria.metric
    gains = (
        f"{plain.smallest_bytes / best.smallest_bytes:.1f}x smaller, {plain.latency_s / best.latency_s:.2f}x as fast, "
        f"{metric} {best.metrics[metric]:.4g} instead of {plain.metrics[metric]:.4g}"
    )
    return Selection(best, f"{name(best)}: {asked}{gains}", refused)
