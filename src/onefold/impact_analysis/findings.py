"""The findings of an impact analysis: its tables, and the data of its plots.

result = findings(measurements)
result.effects               difference of each arm to "tune all", by property and form        (the paper's tables 3, 6)
result.deviations            largest deviation among the best models, plain and compressed     (table 4)
result.pairs                 differences between models, before and after compression          (table 5)
result.distributions         spread of properties, as multiples of the smallest value          (figures 2, 3, 6)
result.changes               relative change of each model by compression                      (figure 4)
                             against a control that was trained as long

Beyond the paper: tests of pairs from the same draw, on which claims rest, and of spread; p-values corrected for
multiple testing, bootstrap confidence intervals, correlations, and the importance of hyperparameters (fANOVA).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from onefold.impact_analysis.arms import TUNE_ALL
from onefold.impact_analysis.axes import axes_of
from onefold.impact_analysis.bootstrap import ConfidenceInterval, bootstrap_interval
from onefold.impact_analysis.comparison import Comparison, compare_samples
from onefold.impact_analysis.correlation import Correlations, correlations
from onefold.impact_analysis.descriptive_statistics import (
    BestDifference,
    best_difference,
    lard,
    relative_difference,
    scaled,
)
from onefold.impact_analysis.importance import Importance, importance
from onefold.impact_analysis.model_measurements import FORMS, Form, ImpactMeasurements, Property, values
from onefold.impact_analysis.multiple_testing import benjamini_hochberg
from onefold.impact_analysis.paired_comparison import PairedComparison, compare_pairs
from onefold.impact_analysis.pairwise_differences import PairwiseDifferences, pairwise_differences
from onefold.impact_analysis.sample_validation import FloatArray
from onefold.impact_analysis.spread_test import SpreadComparison, compare_spread
from onefold.vocabulary.space import Parameter

SIGNIFICANCE_LEVEL = 0.05
MIN_PAIRS = 2  # that must agree for a hyperparameter to be without effect
REPEATABILITY_LIMIT = 1.96 * 2**0.5  # standard deviations: of the difference between two measurements


@dataclass(frozen=True, slots=True)
class Effect:
    """The difference of an arm to "tune all" in one property: of its best model, of its best models, and of its pairs.

    Adjusted p-values are those of Benjamini-Hochberg over all tests of that kind, plain and compressed; those of the
    pairs and of their trend are of one kind. `is_significant` is whether one of these two is below SIGNIFICANCE_LEVEL.
    """

    arm: str
    property: str
    form: Form
    best: BestDifference
    compared: Comparison
    p_adjusted: float | None
    medians: ConfidenceInterval  # relative difference of the medians
    paired: PairedComparison
    paired_p_adjusted: float | None
    change: ConfidenceInterval | None  # median of the relative differences within pairs
    # Of an ordered hyperparameter: in each pair the model with its larger value against the other one. A default in the
    # middle of a range has larger and smaller counterparts, whose differences cancel in `paired`.
    trend: PairedComparison | None
    trend_p_adjusted: float | None
    spread: SpreadComparison
    spread_p_adjusted: float | None
    is_significant: bool = False


@dataclass(frozen=True, slots=True)
class Deviation:
    """The largest absolute relative deviation (LARD) among the best models of "tune all", and the test of spread."""

    property: str
    plain: float
    compressed: float | None
    spread: SpreadComparison | None  # of the compressed models against the plain ones
    spread_p_adjusted: float | None = None
    is_significant: bool = False  # the spread differs


@dataclass(frozen=True, slots=True)
class Distribution:
    """A property of a set of models, as multiples of the smallest value."""

    property: str
    models: str  # "all", "best", "best compressed"
    scaled: tuple[float, ...]


@dataclass(frozen=True)
class Findings:
    """All tables and plot data of an impact analysis."""

    evidence: ImpactMeasurements
    effects: tuple[Effect, ...]
    deviations: tuple[Deviation, ...]
    distributions: tuple[Distribution, ...]
    changes: Mapping[str, tuple[float, ...]]  # by property: (compressed - control) / control of each best model
    pairs: Mapping[str, PairwiseDifferences]  # by property
    correlations: Mapping[Form, Correlations]
    importance: Mapping[Form, Mapping[str, Importance]]  # by property
    skipped: tuple[str, ...] = ()  # properties that were left out, and why

    def effect(self, arm: str, name: str, form: Form = "plain") -> Effect | None:
        """Return one cell of a table; None if the arm was not measured in this form."""
        key = (arm, name, form)
        return next((effect for effect in self.effects if (effect.arm, effect.property, effect.form) == key), None)

    @property
    def forms(self) -> tuple[Form, ...]:
        """Return the measured forms."""
        return self.evidence.forms


def findings(evidence: ImpactMeasurements, *, seed: int = 0) -> Findings:
    """Compute all tables. A property that is not above 0 for every model is skipped, since shares are undefined."""
    usable, skipped = _usable(evidence)
    forms = evidence.forms
    effects = _effects(evidence, usable, seed)
    models = evidence.best_models(form="compressed")
    names = [prop.name for prop in usable] if models else []
    compressed = {name: values(models, name, "compressed") for name in names}
    controls = {name: [model.reference[name] for model in models] for name in names}
    return Findings(
        evidence=evidence,
        effects=effects,
        deviations=_deviations(evidence, usable),
        distributions=tuple(_distributions(evidence, usable)),
        changes={name: relative_difference(compressed[name], controls[name]) for name in names},
        pairs={name: pairwise_differences(controls[name], compressed[name]) for name in names},
        correlations={
            form: correlations({prop.name: values(evidence.best_models(form=form), prop.name, form) for prop in usable})
            for form in forms
        },
        importance={form: _importances(evidence, usable, form, seed, effects) for form in forms},
        skipped=skipped,
    )


def _usable(evidence: ImpactMeasurements) -> tuple[list[Property], tuple[str, ...]]:
    usable, skipped = [], []
    compared = {trial for best in evidence.best.values() for trial in best}
    compared |= {trial for pairs in evidence.pairs.values() for pair in pairs for trial in pair}
    models = [model for trial, model in evidence.models.items() if trial in compared]
    for prop in evidence.properties:
        sample = [model.form(form)[prop.name] for model in models for form in FORMS if model.form(form)]
        if sample and min(sample) > 0:
            usable.append(prop)
        elif sample:
            skipped.append(f"{prop.title} is not above 0 for every model, so that relative differences are undefined")
    return usable, tuple(skipped)


def _effects(evidence: ImpactMeasurements, properties: list[Property], seed: int) -> tuple[Effect, ...]:
    effects = [
        _effect(evidence, arm.name, prop, form, seed)
        for form in evidence.forms
        for arm in evidence.arms
        if arm.name != TUNE_ALL and evidence.best_models(arm.name, form)
        for prop in properties
    ]
    unpaired = benjamini_hochberg([effect.compared.p for effect in effects])
    trends = [effect.trend.p if effect.trend is not None else None for effect in effects]
    both = benjamini_hochberg([*(effect.paired.p for effect in effects), *trends])
    paired, trend = both[: len(effects)], both[len(effects) :]
    spread = benjamini_hochberg([effect.spread.p for effect in effects])
    return tuple(
        replace(
            effect,
            p_adjusted=unpaired[index],
            paired_p_adjusted=paired[index],
            trend_p_adjusted=trend[index],
            spread_p_adjusted=spread[index],
            is_significant=is_significant(paired[index]) or is_significant(trend[index]),
        )
        for index, effect in enumerate(effects)
    )


def _effect(evidence: ImpactMeasurements, arm: str, prop: Property, form: Form, seed: int) -> Effect:
    """Return an effect without the adjusted p-values."""
    sign = 1 if evidence.higher_is_better else -1
    groups = evidence.best_models(arm, form), evidence.best_models(form=form)
    own, baseline = (values(group, prop.name, form) for group in groups)
    own_scores, baseline_scores = ([sign * model.score for model in group] for group in groups)
    pairs = evidence.paired_models(arm, form)
    sample, counterparts = ([pair[side].form(form)[prop.name] for pair in pairs] for side in (0, 1))
    return Effect(
        arm=arm,
        property=prop.name,
        form=form,
        best=best_difference(own, baseline, higher_is_better=prop.higher_is_better, by=(own_scores, baseline_scores)),
        compared=compare_samples(own, baseline),
        p_adjusted=None,
        medians=bootstrap_interval(_median_difference, own, baseline, seed=seed),
        paired=compare_pairs(sample, counterparts, repeatability_limit=repeatability_limit(evidence, prop.name, form)),
        paired_p_adjusted=None,
        change=bootstrap_interval(_median, relative_difference(sample, counterparts), seed=seed) if pairs else None,
        trend=_trend(evidence, arm, prop.name, form),
        trend_p_adjusted=None,
        spread=compare_spread(own, baseline),
        spread_p_adjusted=None,
    )


def _trend(evidence: ImpactMeasurements, arm: str, name: str, form: Form) -> PairedComparison | None:
    fixed = evidence.arm(arm).fixed
    if len(fixed) != 1 or not _is_ordered(evidence.space.parameters[fixed[0]]):
        return None
    axis = next(axis for axis in axes_of((), evidence.space) if axis.name == fixed[0])
    pairs = [pair for pair in evidence.paired_models(arm, form) if all(fixed[0] in model.config for model in pair)]
    ordered = [sorted(pair, key=lambda model: axis.coordinate(model.config) or 0.0) for pair in pairs]
    smaller, larger = ([pair[side].form(form)[name] for pair in ordered] for side in (0, 1))
    return compare_pairs(larger, smaller, repeatability_limit=repeatability_limit(evidence, name, form))


def repeatability_limit(evidence: ImpactMeasurements, name: str, form: Form) -> float:
    """Return the relative difference that 95 % of the repeated measurements of one model stay below (ISO 5725).

    It is 0 for what is counted.
    """
    known = [rsd for model in evidence.models.values() if name in (rsd := model.repeatability.get(form, {}))]
    return REPEATABILITY_LIMIT * median(rsd[name] for rsd in known) if known else 0.0


def _is_ordered(parameter: Parameter) -> bool:
    """Return whether the values of a parameter are numbers."""
    values = parameter.grid(2)
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def is_significant(p: float | None) -> bool:
    """Return whether an adjusted p-value is below the level of significance."""
    return p is not None and p < SIGNIFICANCE_LEVEL


def _median(numbers: FloatArray) -> FloatArray:
    return np.asarray(np.median(numbers, axis=-1))


def _median_difference(arm: FloatArray, baseline: FloatArray) -> FloatArray:
    reference = np.median(baseline, axis=-1)
    return np.asarray((np.median(arm, axis=-1) - reference) / reference)


def _deviations(evidence: ImpactMeasurements, properties: list[Property]) -> tuple[Deviation, ...]:
    deviations = [_deviation(evidence, prop) for prop in properties]
    adjusted = benjamini_hochberg([deviation.spread.p if deviation.spread else None for deviation in deviations])
    return tuple(
        replace(deviation, spread_p_adjusted=p, is_significant=is_significant(p))
        for deviation, p in zip(deviations, adjusted)
    )


def _deviation(evidence: ImpactMeasurements, prop: Property) -> Deviation:
    plain = values(evidence.best_models(), prop.name)
    compressed = values(evidence.best_models(form="compressed"), prop.name, "compressed")
    higher = prop.higher_is_better
    return Deviation(
        prop.name,
        lard(plain, higher_is_better=higher),
        lard(compressed, higher_is_better=higher) if compressed else None,
        compare_spread(compressed, plain) if compressed else None,
    )


def _distributions(evidence: ImpactMeasurements, properties: list[Property]) -> list[Distribution]:
    """Return the distributions; for all models of "tune all", the metric is that after the first rung."""
    members = evidence.arm(TUNE_ALL).members
    samples = [
        (prop, "all", values(evidence.all_models(), prop.name))
        if prop.name != evidence.metric
        else (prop, "all", [evidence.scores[trial] for trial in members if trial in evidence.scores])
        for prop in properties
    ]
    samples += [(prop, "best", values(evidence.best_models(), prop.name)) for prop in properties]
    samples += [
        (prop, "best compressed", values(evidence.best_models(form="compressed"), prop.name, "compressed"))
        for prop in properties
    ]
    return [
        Distribution(prop.name, models, scaled(sample))
        for prop, models, sample in samples
        if sample and min(sample) > 0
    ]


def _importances(
    evidence: ImpactMeasurements, properties: list[Property], form: Form, seed: int, effects: Sequence[Effect]
) -> Mapping[str, Importance]:
    """Return the importance for every property; costs on a log scale, since hyperparameters multiply them.

    The metric of plain models is taken after the first rung, where all trials have one. Hyperparameters whose pairs
    do not differ have no share.
    """
    unchanged = {
        (effect.property, *evidence.arm(effect.arm).fixed)
        for effect in effects
        if effect.form == form and effect.paired.n >= MIN_PAIRS and not effect.paired.differing
    }
    models = [model for model in evidence.models.values() if model.form(form)]
    by_property = {}
    for prop in properties:
        configs, numbers = [model.config for model in models], values(models, prop.name, form)
        if prop.name == evidence.metric and form == "plain":
            configs, numbers = [evidence.configs[trial] for trial in evidence.scores], list(evidence.scores.values())
        if prop.name != evidence.metric:
            numbers = np.log(numbers).tolist()
        excluded = [name for name in evidence.space.parameters if (prop.name, name) in unchanged]
        by_property[prop.name] = importance(configs, numbers, evidence.space, seed=seed, without_effect=excluded)
    return by_property
