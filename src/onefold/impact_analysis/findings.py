"""From what was measured to what it says: the tables of the study, and the figures behind its plots.

found = findings(evidence)
found.effects                what holding something fixed changes, by arm, property and form   (the paper's tables 3, 6)
found.deviations             how far the best models lie apart, plain and compressed           (table 4)
found.pairs                  whether models still differ as they did once they are compressed  (table 5)
found.distributions          how far properties spread, as multiples of the least              (figures 2, 3, 6)
found.changes                what compression changes about each model                         (figure 4)

Beyond the paper: p-values corrected for the number of tests, bootstrap intervals, correlations, and the importance of
hyperparameters alone and two together.
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
from onefold.impact_analysis.sample_validation import Numbers

CHANCE = 0.05  # a p-value below it is called significant


@dataclass(frozen=True, slots=True)
class Effect:
    """What an arm changes about a property, beside "tune all": of its best model, and of its best models together."""

    arm: str
    property: str
    form: Form
    best: BestDifference
    compared: Comparison
    p_adjusted: float | None  # after Benjamini and Hochberg, over all tests of this form
    medians: ConfidenceInterval  # the median of the arm less that of "tune all", as a share of the latter
    is_significant: bool = False  # more than chance, with all the other tests counted in


@dataclass(frozen=True, slots=True)
class Deviation:
    """The largest absolute relative deviation (LARD) among the best models of "tune all", in both forms."""

    property: str
    plain: float
    compressed: float | None


@dataclass(frozen=True, slots=True)
class Distribution:
    """A property of some models, as multiples of the least among them."""

    property: str
    models: str  # "all", "best", "best compressed"
    scaled: tuple[float, ...]


@dataclass(frozen=True)
class Findings:
    """Everything that the evidence says."""

    evidence: ImpactMeasurements
    effects: tuple[Effect, ...]
    deviations: tuple[Deviation, ...]
    distributions: tuple[Distribution, ...]
    changes: Mapping[str, tuple[float, ...]]  # by property: (compressed - plain) / plain of each best model
    pairs: Mapping[str, PairwiseDifferences]  # by property
    correlations: Mapping[Form, Correlations]
    importance: Mapping[Form, Mapping[str, Importance]]  # by property
    skipped: tuple[str, ...] = ()  # what could not be said, and why

    def effect(self, arm: str, name: str, form: Form = "plain") -> Effect | None:
        """One cell of a table; None where the arm was not measured in this form."""
        wanted = (arm, name, form)
        return next((one for one in self.effects if (one.arm, one.property, one.form) == wanted), None)

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms that were measured."""
        return self.evidence.forms


def findings(evidence: ImpactMeasurements, *, seed: int = 0) -> Findings:
    """All tables. A property that is 0 or below for some model has no shares, and is left out with a word about it."""
    usable, skipped = _usable(evidence)
    forms = evidence.forms
    effects = tuple(effect for form in forms for effect in _effects(evidence, usable, form, seed))
    both = evidence.top(form="compressed")
    names = [one.name for one in usable]
    return Findings(
        evidence=evidence,
        effects=effects,
        deviations=tuple(_deviation(evidence, one) for one in usable),
        distributions=tuple(_distributions(evidence, usable)),
        changes={name: relative_difference(values(both, name, "compressed"), values(both, name)) for name in names}
        if both
        else {},
        pairs={name: pairwise_differences(values(both, name), values(both, name, "compressed")) for name in names}
        if both
        else {},
        correlations={
            form: correlations({name: values(evidence.top(form=form), name, form) for name in names}) for form in forms
        },
        importance={form: _importances(evidence, usable, form, seed) for form in forms},
        skipped=skipped,
    )


def _usable(evidence: ImpactMeasurements) -> tuple[list[Property], tuple[str, ...]]:
    usable, skipped = [], []
    compared_ones = {trial for best in evidence.best.values() for trial in best}
    models = [model for trial, model in evidence.models.items() if trial in compared_ones]
    for one in evidence.properties:
        found = [model.form(form)[one.name] for model in models for form in FORMS if model.form(form)]
        if found and min(found) > 0:
            usable.append(one)
        elif found:
            skipped.append(f"{one.title} is 0 or below for some model, so that there are no shares of it")
    return usable, tuple(skipped)


def _effects(evidence: ImpactMeasurements, properties: list[Property], form: Form, seed: int) -> list[Effect]:
    baseline = evidence.top(form=form)
    sign = 1 if evidence.higher_is_better else -1
    found = []
    for arm in evidence.arms:
        models = evidence.top(arm.name, form)
        if arm.name == TUNE_ALL or not models:
            continue
        scores = [[sign * model.score for model in group] for group in (models, baseline)]
        for one in properties:
            mine, theirs = values(models, one.name, form), values(baseline, one.name, form)
            found.append(
                Effect(
                    arm.name,
                    one.name,
                    form,
                    best_difference(mine, theirs, higher_is_better=one.higher_is_better, by=(scores[0], scores[1])),
                    compare_samples(mine, theirs),
                    None,
                    bootstrap_interval(_of_medians, mine, theirs, seed=seed),
                )
            )
    adjusted = benjamini_hochberg([effect.compared.p for effect in found])
    return [
        replace(effect, p_adjusted=p, is_significant=p is not None and p < CHANCE) for effect, p in zip(found, adjusted)
    ]


def _of_medians(arm: Numbers, baseline: Numbers) -> Numbers:
    middle = np.median(baseline, axis=-1)
    return np.asarray((np.median(arm, axis=-1) - middle) / middle)


def _deviation(evidence: ImpactMeasurements, one: Property) -> Deviation:
    plain, both = evidence.top(), evidence.top(form="compressed")
    compressed = lard(values(both, one.name, "compressed"), higher_is_better=one.higher_is_better) if both else None
    return Deviation(one.name, lard(values(plain, one.name), higher_is_better=one.higher_is_better), compressed)


def _distributions(evidence: ImpactMeasurements, properties: list[Property]) -> list[Distribution]:
    """Of all models that "tune all" has made, the metric is that after their first, short training."""
    members = evidence.arm(TUNE_ALL).members
    found = [
        (one, "all", values(evidence.all_models(), one.name))
        if one.name != evidence.metric
        else (one, "all", [evidence.scores[trial] for trial in members if trial in evidence.scores])
        for one in properties
    ]
    found += [(one, "best", values(evidence.top(), one.name)) for one in properties]
    found += [
        (one, "best compressed", values(evidence.top(form="compressed"), one.name, "compressed")) for one in properties
    ]
    return [Distribution(one.name, models, scaled(of)) for one, models, of in found if of and min(of) > 0]


def _importances(
    evidence: ImpactMeasurements, properties: list[Property], form: Form, seed: int
) -> Mapping[str, Importance]:
    """Of every property; costs by their magnitudes, since hyperparameters multiply them.

    The metric of plain models is known of all trials, after their first, short training.
    """
    models = [model for model in evidence.models.values() if model.form(form)]
    found = {}
    for one in properties:
        configs, numbers = [model.config for model in models], values(models, one.name, form)
        if one.name == evidence.metric and form == "plain":
            configs, numbers = [evidence.configs[trial] for trial in evidence.scores], list(evidence.scores.values())
        if one.name != evidence.metric:
            numbers = np.log(numbers).tolist()
        found[one.name] = importance(configs, numbers, evidence.space, seed=seed)
    return found
