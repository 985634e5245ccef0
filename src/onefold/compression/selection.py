"""Select a variant: the one that was asked for, or the best within limits. Reasons against the others are recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Literal, get_args

from onefold.compression.requirements import property_of, requirement_text, total_violation, violated_requirements
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
class Verdict:
    """The limits that a variant violates, each as a reason against it."""

    requirements: tuple[str, ...] = ()
    metric_loss: str = ""
    slowdown: str = ""

    def __str__(self) -> str:
        return ", and ".join(reason for reason in (self.metric_loss, self.slowdown, *self.requirements) if reason)


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

    def judge(self, variant: Variant, plain: Variant) -> Verdict:
        """Return every limit that a variant violates; the plain model only has requirements to meet."""
        requirements = violated_requirements(variant, self.bounds)
        if variant is plain:
            return Verdict(requirements)
        loss, limit = self.metric_loss(variant, plain), self.options.max_metric_loss
        metric_loss = slowdown = ""
        if math.isnan(loss):
            metric_loss = f"{self.metric} is not a number"
        elif loss > limit + ROUNDING:
            metric_loss = f"{self.metric} is worse by {loss:.4g}, more than the {limit:g} allowed"
        slowest = 1 + parse_share(self.options.allow_slower)
        if variant.latency_s > slowest * plain.latency_s:
            slowdown = f"{variant.latency_s / plain.latency_s:.2f}x the latency, more than the {slowest:.4g}x allowed"
        return Verdict(requirements, metric_loss, slowdown)

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
    """The selected variant, the reason, why others were refused, and whether it meets the requirements."""

    chosen: Variant
    why: str
    refused: Mapping[str, str]  # by the name of the variant
    is_feasible: bool = True

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

    Requirements go before the limit of the latency: if all that is within the limits violates one, the fastest variant
    that meets them is selected, and the one nearest to them if there is none. None of these loses more of the metric
    than allowed. With `take`, only variants of that recipe are considered; the first one is selected if none is within
    the limits.
    """
    take, criteria = criteria.options.take, criteria.settled((plain, *variants))
    verdicts = {id(variant): criteria.judge(variant, plain) for variant in (plain, *variants)}
    reasons = {id(variant): str(verdicts[id(variant)]) for variant in (plain, *variants)}
    refused = {name(variant): reason for variant in (plain, *variants) if (reason := reasons[id(variant)])}
    wanted = [variant for variant in (plain, *variants) if not take or variant.recipe.is_named(take)]
    accurate = [variant for variant in wanted if not verdicts[id(variant)].metric_loss]
    within = [variant for variant in accurate if not reasons[id(variant)]]
    meeting = [variant for variant in accurate if not verdicts[id(variant)].requirements]
    required = " and ".join(requirement_text(*item) for item in criteria.bounds.items())
    why = ""
    if not wanted:
        best, why = plain, f"there is no variant {take!r}"
    elif within:
        best, why = min(within, key=criteria.cost), "as asked" if take else ""
    elif take:
        best = wanted[0]
        why = f"as asked although {reasons[id(best)]}"
    elif meeting:
        best = min(meeting, key=lambda variant: (variant.latency_s, criteria.cost(variant)))
        why = f"{reasons[id(best)]}, but nothing faster meets {required}"
    else:
        best = min(accurate, key=lambda each: (total_violation(each, criteria.bounds), criteria.cost(each)))
        allowed = f"within the allowed loss of {criteria.metric}"
        why = f"the nearest, since nothing meets {required} {allowed}: {reasons[id(best)]}"
    if best is plain:
        why = f"the plain model: {why or f'no variant is better for {criteria.options.optimize_for}'}"
    else:
        why = f"{name(best)}: {f'{why}; ' if why else ''}{_gains(best, plain, criteria.metric)}"
    refused.pop(name(best), None)
    return Selection(best, why, refused, is_feasible=not verdicts[id(best)].requirements)


def _gains(variant: Variant, plain: Variant, metric: str) -> str:
    return (
        f"{plain.smallest_bytes / variant.smallest_bytes:.1f}x smaller, "
        f"{plain.latency_s / variant.latency_s:.2f}x as fast, "
        f"{metric} {variant.metrics[metric]:.4g} instead of {plain.metrics[metric]:.4g}"
    )
