"""The findings of an impact analysis: its tables, and the data of its plots.

result = findings(measurements)
result.effects               difference of each arm to "tune all", by property and form        (the paper's tables 3, 6)
result.deviations            largest deviation among the best models, plain and compressed     (table 4)
result.pairs                 differences between models, before and after compression          (table 5)
result.distributions         spread of properties, as multiples of the smallest value          (figures 2, 3, 6)
result.changes               relative change of each model by compression                      (figure 4)

Beyond the paper: p-values corrected for multiple testing, bootstrap confidence intervals, correlations, and the
importance of hyperparameters alone and in pairs (fANOVA).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from onefold.impact_analysis.arms import TUNE_ALL
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
from onefold.impact_analysis.pairwise_differences import PairwiseDifferences, pairwise_differences
from onefold.impact_analysis.sample_validation import FloatArray

SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Effect:
    """The difference of an arm to "tune all" in one property: of its best model, and of its best models together."""

    arm: str
    property: str
    form: Form
    best: BestDifference
    compared: Comparison
    p_adjusted: float | None  # Benjamini-Hochberg, over all tests of this form
    medians: ConfidenceInterval  # relative difference of the medians
    is_significant: bool = False  # p_adjusted is below SIGNIFICANCE_LEVEL


@dataclass(frozen=True, slots=True)
class Deviation:
    """The largest absolute relative deviation (LARD) among the best models of "tune all"."""

    property: str
    plain: float
    compressed: float | None


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
    changes: Mapping[str, tuple[float, ...]]  # by property: (compressed - plain) / plain of each best model
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
    effects = tuple(effect for form in forms for effect in _effects(evidence, usable, form, seed))
    compressed_models = evidence.best_models(form="compressed")
    names = [prop.name for prop in usable]
    return Findings(
        evidence=evidence,
        effects=effects,
        deviations=tuple(_deviation(evidence, prop) for prop in usable),
        distributions=tuple(_distributions(evidence, usable)),
        changes={
            name: relative_difference(values(compressed_models, name, "compressed"), values(compressed_models, name))
            for name in names
        }
        if compressed_models
        else {},
        pairs={
            name: pairwise_differences(values(compressed_models, name), values(compressed_models, name, "compressed"))
            for name in names
        }
        if compressed_models
        else {},
        correlations={
            form: correlations({name: values(evidence.best_models(form=form), name, form) for name in names})
            for form in forms
        },
        importance={form: _importances(evidence, usable, form, seed) for form in forms},
        skipped=skipped,
    )


def _usable(evidence: ImpactMeasurements) -> tuple[list[Property], tuple[str, ...]]:
    usable, skipped = [], []
    promoted = {trial for best in evidence.best.values() for trial in best}
    models = [model for trial, model in evidence.models.items() if trial in promoted]
    for prop in evidence.properties:
        sample = [model.form(form)[prop.name] for model in models for form in FORMS if model.form(form)]
        if sample and min(sample) > 0:
            usable.append(prop)
        elif sample:
            skipped.append(f"{prop.title} is not above 0 for every model, so that relative differences are undefined")
    return usable, tuple(skipped)


def _effects(evidence: ImpactMeasurements, properties: list[Property], form: Form, seed: int) -> list[Effect]:
    baseline = evidence.best_models(form=form)
    sign = 1 if evidence.higher_is_better else -1
    effects = []
    for arm in evidence.arms:
        models = evidence.best_models(arm.name, form)
        if arm.name == TUNE_ALL or not models:
            continue
        scores = [[sign * model.score for model in group] for group in (models, baseline)]
        for prop in properties:
            arm_values, base_values = values(models, prop.name, form), values(baseline, prop.name, form)
            effects.append(
                Effect(
                    arm.name,
                    prop.name,
                    form,
                    best_difference(
                        arm_values, base_values, higher_is_better=prop.higher_is_better, by=(scores[0], scores[1])
                    ),
                    compare_samples(arm_values, base_values),
                    None,
                    bootstrap_interval(_median_difference, arm_values, base_values, seed=seed),
                )
            )
    adjusted = benjamini_hochberg([effect.compared.p for effect in effects])
    return [
        replace(effect, p_adjusted=p, is_significant=p is not None and p < SIGNIFICANCE_LEVEL)
        for effect, p in zip(effects, adjusted)
    ]


def _median_difference(arm: FloatArray, baseline: FloatArray) -> FloatArray:
    reference = np.median(baseline, axis=-1)
    return np.asarray((np.median(arm, axis=-1) - reference) / reference)


def _deviation(evidence: ImpactMeasurements, prop: Property) -> Deviation:
    plain, compressed_models = evidence.best_models(), evidence.best_models(form="compressed")
    compressed = (
        lard(values(compressed_models, prop.name, "compressed"), higher_is_better=prop.higher_is_better)
        if compressed_models
        else None
    )
    return Deviation(prop.name, lard(values(plain, prop.name), higher_is_better=prop.higher_is_better), compressed)


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
    evidence: ImpactMeasurements, properties: list[Property], form: Form, seed: int
) -> Mapping[str, Importance]:
    """Return the importance for every property; costs on a log scale, since hyperparameters multiply them.

    The metric of plain models is taken after the first rung, where all trials have one.
    """
    models = [model for model in evidence.models.values() if model.form(form)]
    by_property = {}
    for prop in properties:
        configs, numbers = [model.config for model in models], values(models, prop.name, form)
        if prop.name == evidence.metric and form == "plain":
            configs, numbers = [evidence.configs[trial] for trial in evidence.scores], list(evidence.scores.values())
        if prop.name != evidence.metric:
            numbers = np.log(numbers).tolist()
        by_property[prop.name] = importance(configs, numbers, evidence.space, seed=seed)
    return by_property
