"""Findings against the same figures computed with numpy and scipy, and the advice that follows."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from onefold.impact_analysis import (
    FORMS,
    TUNE_ALL,
    Arm,
    Findings,
    Form,
    ImpactMeasurements,
    MeasuredModel,
    advice,
    compared_pairs,
    findings,
    importance,
    plan_arms,
)
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Choice, Float, Space

SPACE = Space(model=dict(width=Choice(8, 16, 32), depth=Choice(1, 2)), lr=Float(1e-3, 1e-1, log=True))
COSTS = ("latency_s", "size_bytes", "flops")
# Who tries what: the first two have six trials in common, so that their best have equal values.
ARMS = (
    Arm(TUNE_ALL, "all", (), tuple(range(12))),
    Arm("fix model", "group", ("width", "depth"), tuple(range(6, 18)), tuple(range(12))),
    Arm("fix width", "hyperparameter", ("width",), tuple(range(18, 30)), tuple(range(12))),
    Arm("fix lr", "hyperparameter", ("lr",), tuple(range(30, 42)), tuple(range(12))),
)
BEST = 6


def close(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.fixture(scope="module", autouse=True)
def _small_forests() -> Iterator[None]:
    """Use few trees: importance has its own tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("onefold.impact_analysis.findings"), "importance", partial(importance, trees=12))
        yield


def evidence(metric: str = "accuracy", higher: bool = True, levels: int | None = None) -> ImpactMeasurements:
    """Random numbers for 42 trials, of which the best 6 of each arm and all of "tune all" were measured."""
    rng = np.random.default_rng(7)
    numbers = rng.uniform(0.5, 1.5, size=(42, 2, 4))
    if levels is not None:
        numbers = np.ceil(numbers * levels) / levels
    numbers[18:30, :, 1] *= 0.25  # one arm is faster, by more than chance
    begun, ended = rng.uniform(0.5, 1.0, size=(2, 42))
    sign = 1 if higher else -1
    best = {arm.name: tuple(sorted(arm.members, key=lambda trial: -sign * ended[trial])[:BEST]) for arm in ARMS}
    best["fix lr"] = best["fix lr"][::-1]  # whatever the order: the score says which is best
    ranking = sorted(range(42), key=lambda trial: -sign * begun[trial])
    pairs = {arm.name: compared_pairs(arm, ranking, BEST + 3) for arm in ARMS[1:]}
    going_on = {trial for trials in best.values() for trial in trials}
    going_on |= {trial for group in pairs.values() for pair in group for trial in pair}
    configs = {trial: SPACE.draw(random.Random(trial)) for trial in range(42)}
    models = {}
    for trial in sorted(going_on | set(ARMS[0].members)):
        plain, compressed = (dict(zip((metric, *COSTS), form.tolist())) for form in numbers[trial])
        models[trial] = MeasuredModel(
            trial, configs[trial], float(ended[trial]), plain, compressed if trial in going_on else {}
        )
    scores = dict(enumerate(begun.tolist()))
    return ImpactMeasurements(
        "synthetic", metric, higher, SPACE, ARMS, best, configs, scores, models, "here", "int8", pairs=pairs
    )


CASES: dict[str, Callable[[], ImpactMeasurements]] = {
    "higher is better": evidence,
    "lower is better": lambda: evidence("rmse", higher=False),
    "many are equal": lambda: evidence(levels=3),
}
every_case = pytest.mark.parametrize("case", CASES)


@cache
def findings_of(case: str) -> Findings:
    return findings(CASES[case]())


def names(given: Findings) -> tuple[str, ...]:
    return (given.evidence.metric, *COSTS)


def column(given: Findings, name: str, form: Form = "plain", arm: str = TUNE_ALL) -> list[float]:
    """One property of the best models of an arm."""
    models = [given.evidence.models[trial] for trial in given.evidence.best[arm]]
    return [(model.plain if form == "plain" else model.compressed)[name] for model in models]


def word(delta: float) -> str:
    bounds = {"large": 0.474, "medium": 0.33, "small": 0.147}
    return next((name for name, bound in bounds.items() if abs(delta) >= bound), "negligible")


def mann_whitney(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, str]:
    method = "asymptotic" if len({*one, *other}) < len(one) + len(other) else "exact"
    result = stats.mannwhitneyu(one, other, alternative="two-sided", method=method)
    return float(result.statistic), float(result.pvalue), method


@every_case
def test_effects_compare_each_arm_with_tune_all(case: str) -> None:
    given = findings_of(case)
    rows = given.effects
    assert [(row.form, row.arm, row.property) for row in rows] == [
        (form, arm.name, name) for form in FORMS for arm in ARMS[1:] for name in names(given)
    ]
    ps = []
    for row in rows:
        form = row.form
        mine, base = column(given, row.property, form, row.arm), column(given, row.property, form)
        u, p, method = mann_whitney(mine, base)
        delta = sum((a > b) - (a < b) for a in mine for b in base) / 36
        ps.append(p)
        assert (row.compared.n, row.compared.n_baseline, row.compared.method) == (6, 6, method)
        assert (row.compared.u, row.compared.p, row.compared.delta) == (close(u), close(p), close(delta))
        assert row.compared.magnitude == word(delta)
        assert given.effect(row.arm, row.property, form) is row
    adjusted = stats.false_discovery_control(ps, method="bh")
    assert [row.p_adjusted for row in rows] == close(adjusted.tolist())


def signed_rank_p(differences: np.ndarray) -> float:
    """The exact two-sided p-value, by all combinations of signs."""
    ranks = stats.rankdata(abs(differences))
    sums = np.array(list(product((-1, 1), repeat=len(ranks)))) @ ranks
    return float((abs(sums) >= abs(ranks @ np.sign(differences)) - 1e-9).mean())


@every_case
def test_effects_compare_pairs_from_the_same_draw(case: str) -> None:
    given = findings_of(case)
    rows = given.effects
    ps = []
    for row in rows:
        form = row.form
        models = given.evidence.models
        pairs = [(models[one].form(form), models[other].form(form)) for one, other in given.evidence.pairs[row.arm]]
        assert len(pairs) > BEST
        ratios = np.array([one[row.property] / other[row.property] for one, other in pairs])
        differences = np.round(np.log(ratios), 12)
        ps.append(signed_rank_p(differences[differences != 0]))
        delta = float(np.sign(differences).mean())
        assert (row.paired.n, row.paired.p, row.paired.delta) == (len(pairs), close(ps[-1]), close(delta))
        assert row.paired.magnitude == word(delta)
        assert row.change is not None
        assert row.change.value == close(float(np.median(ratios - 1)))
    assert [row.arm for row in rows if row.trend is None] == ["fix model"] * 2 * len(names(given))
    trends = [row.trend.p for row in rows if row.trend is not None and row.trend.p is not None]
    adjusted = stats.false_discovery_control([*ps, *trends], method="bh")[: len(ps)]
    assert [row.paired_p_adjusted for row in rows] == close(adjusted.tolist())
    assert [row.is_significant for row in rows] == (adjusted < 0.05).tolist()
    significant = {(row.arm, row.property) for row in rows if row.is_significant}
    assert ("fix width", "latency_s") in significant
    assert {arm for arm, _ in significant} == {"fix width"}


@every_case
def test_effects_compare_the_spread(case: str) -> None:
    given = findings_of(case)
    rows = given.effects
    ps = []
    for row in rows:
        form = row.form
        groups = [np.log(column(given, row.property, form, arm)) for arm in (row.arm, TUNE_ALL)]
        ps.append(stats.levene(*groups, center="median").pvalue)
        assert row.spread.p == close(ps[-1])
    assert [row.spread_p_adjusted for row in rows] == close(stats.false_discovery_control(ps).tolist())


def test_exact_and_asymptotic_tests_both_occur() -> None:
    assert {effect.compared.method for effect in findings_of("higher is better").effects} == {"exact", "asymptotic"}


@every_case
@pytest.mark.parametrize("form", FORMS)
def test_the_best_model_of_an_arm_is_the_one_with_the_best_score(case: str, form: Form) -> None:
    given = findings_of(case)
    sign = 1 if given.evidence.higher_is_better else -1

    def of_the_best(arm: str, name: str) -> float:
        scores = [sign * given.evidence.models[trial].score for trial in given.evidence.best[arm]]
        return column(given, name, form, arm)[int(np.argmax(scores))]

    for row in (effect for effect in given.effects if effect.form == form):
        mine, base = of_the_best(row.arm, row.property), of_the_best(TUNE_ALL, row.property)
        assert (row.best.arm, row.best.baseline, row.best.relative) == (mine, base, close((mine - base) / base))
        higher = row.property == "accuracy"
        assert row.best.higher_is_better == higher
        assert row.best.better == (mine > base if higher else mine < base)


@every_case
@pytest.mark.parametrize("form", FORMS)
def test_medians_have_bootstrap_intervals(case: str, form: Form) -> None:
    given = findings_of(case)
    for row in (effect for effect in given.effects if effect.form == form):
        mine, base = (np.array(column(given, row.property, form, arm)) for arm in (row.arm, TUNE_ALL))
        rng = np.random.default_rng(0)
        drawn = [np.median(values[rng.integers(6, size=(2000, 6))], axis=1) for values in (mine, base)]
        low, high = np.percentile((drawn[0] - drawn[1]) / drawn[1], [2.5, 97.5])
        value = (np.median(mine) - np.median(base)) / np.median(base)
        assert (row.medians.value, row.medians.low, row.medians.high) == (close(value), close(low), close(high))


@every_case
def test_deviations_are_relative_to_the_worst(case: str) -> None:
    given = findings_of(case)
    assert [deviation.property for deviation in given.deviations] == list(names(given))
    for one in given.deviations:
        for form, deviation in (("plain", one.plain), ("compressed", one.compressed)):
            low, high = (end(column(given, one.property, form)) for end in (min, max))  # type: ignore[arg-type]
            best, worst = (high, low) if one.property == "accuracy" else (low, high)
            assert deviation == close(abs(best - worst) / worst)
        groups = [np.log(column(given, one.property, form)) for form in FORMS[::-1]]
        assert one.spread is not None
        assert one.spread.p == close(stats.levene(*groups, center="median").pvalue)


@every_case
def test_distributions_are_multiples_of_the_smallest_value(case: str) -> None:
    given = findings_of(case)
    everyone = [given.evidence.models[trial].plain for trial in range(12)]
    expected = {
        **{(name, "all"): [plain[name] for plain in everyone] for name in names(given)},
        (given.evidence.metric, "all"): [given.evidence.scores[trial] for trial in range(12)],  # after short training
        **{(name, "best"): column(given, name) for name in names(given)},
        **{(name, "best compressed"): column(given, name, "compressed") for name in names(given)},
    }
    shown = {(distribution.property, distribution.models): distribution.scaled for distribution in given.distributions}
    assert list(shown) == list(expected)
    assert len(given.distributions) == len(expected)
    for key, values in expected.items():
        assert shown[key] == close(tuple(value / min(values) for value in values))


@every_case
def test_changes_are_relative_to_the_plain_model(case: str) -> None:
    given = findings_of(case)
    assert list(given.changes) == list(names(given))
    for name, changes in given.changes.items():
        plain, compressed = np.array(column(given, name)), np.array(column(given, name, "compressed"))
        assert changes == close(tuple((compressed / plain - 1).tolist()))


def test_changes_are_relative_to_the_control_that_was_trained_as_long() -> None:
    usual = evidence()
    models = {
        trial: replace(model, control={**model.plain, "accuracy": model.plain["accuracy"] * 1.25})
        for trial, model in usual.models.items()
    }
    given, plain = findings(replace(usual, models=models)), findings_of("higher is better")
    assert given.changes["latency_s"] == plain.changes["latency_s"]
    assert given.changes["accuracy"] == close(tuple((1 + change) / 1.25 - 1 for change in plain.changes["accuracy"]))


@every_case
def test_pairs_are_all_pairs_of_the_best_models(case: str) -> None:
    given = findings_of(case)
    assert list(given.pairs) == list(names(given))
    for name, pair in given.pairs.items():
        before, after = ([(a - b) / b for a, b in combinations(column(given, name, form), 2)] for form in FORMS)
        assert (pair.plain, pair.compressed) == (close(tuple(before)), close(tuple(after)))
        assert pair.delta == close(tuple(np.subtract(after, before).tolist()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            test = stats.ks_2samp(before, after)
        assert (pair.statistic, pair.p) == (close(test.statistic), close(test.pvalue))


@every_case
@pytest.mark.parametrize("form", FORMS)
def test_correlations_cover_the_best_models_of_tune_all(case: str, form: Form) -> None:
    given = findings_of(case)
    known = given.correlations[form]
    assert (known.names, known.n, known.constant) == (names(given), 6, ())
    assert [(pair.one, pair.other) for pair in known.pairs] == list(combinations(names(given), 2))
    for pair in known.pairs:
        left, right = column(given, pair.one, form), column(given, pair.other, form)
        ranks = stats.rankdata(left), stats.rankdata(right)
        line = stats.pearsonr(left, right)
        assert (pair.pearson, pair.pearson_p) == (close(line.statistic), close(line.pvalue))
        assert pair.spearman == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-12)
        assert pair.spearman_p == pytest.approx(stats.spearmanr(left, right).pvalue, abs=1e-12)


@every_case
def test_importance_of_the_metric_uses_all_trials_and_of_costs_the_measured_models(case: str) -> None:
    given = findings_of(case)
    measured = len(given.evidence.models)
    compressed = sum(bool(model.compressed) for model in given.evidence.models.values())
    for form, others in (("plain", measured), ("compressed", compressed)):
        known = given.importance[form]  # type: ignore[index]
        assert {name: candidate.n for name, candidate in known.items()} == {
            given.evidence.metric: 42 if form == "plain" else compressed,
            **dict.fromkeys(COSTS, others),
        }
        assert all(
            {share.parameters[0] for share in candidate.singles} == {"width", "depth", "lr"}
            for candidate in known.values()
        )


# What is missing.


def changed(given: ImpactMeasurements, trial: int, **forms: dict[str, float]) -> ImpactMeasurements:
    return replace(given, models={**given.models, trial: replace(given.models[trial], **forms)})  # type: ignore[arg-type]


def test_an_arm_with_one_model_has_an_effect_size_but_no_test() -> None:
    usual = evidence()
    given = findings(replace(usual, best={**usual.best, "fix lr": usual.best["fix lr"][:1]}))
    for row in (effect for effect in given.effects if effect.arm == "fix lr"):
        assert (row.compared.n, row.compared.p, row.p_adjusted) == (1, None, None)
        assert row.compared.delta is not None
        assert "no test" in row.compared.note
    ps = [effect.compared.p for effect in given.effects if effect.arm != "fix lr"]
    adjusted = [effect.p_adjusted for effect in given.effects if effect.arm != "fix lr"]
    assert adjusted == close(stats.false_discovery_control(ps).tolist())  # of those that were asked


def test_an_arm_without_models_has_no_effects() -> None:
    usual = evidence()
    given = findings(replace(usual, best={**usual.best, "fix lr": ()}))
    assert {effect.arm for effect in given.effects} == {"fix model", "fix width"}
    assert given.effect("fix lr", "latency_s") is None


def test_trials_that_failed_are_left_out() -> None:
    usual = evidence()
    lost = usual.best[TUNE_ALL][0]
    models = {trial: model for trial, model in usual.models.items() if trial != lost}
    scores = {trial: score for trial, score in usual.scores.items() if trial != lost}
    given = findings(replace(usual, models=models, scores=scores, failures={lost: "out of memory"}))
    row = given.effect("fix width", "latency_s")
    assert row is not None
    assert row.compared.n_baseline == given.correlations["plain"].n == 5
    assert row.best.baseline == usual.models[usual.best[TUNE_ALL][1]].plain["latency_s"]
    assert given.importance["plain"]["accuracy"].n == 41
    assert len(next(distribution.scaled for distribution in given.distributions if distribution.models == "all")) == 11


def test_without_compressed_models_there_is_only_the_plain_form() -> None:
    usual = evidence()
    given = findings(
        replace(usual, models={trial: replace(model, compressed={}) for trial, model in usual.models.items()})
    )
    assert given.forms == ("plain",)
    assert (given.changes, given.pairs) == ({}, {})
    assert {effect.form for effect in given.effects} == set(given.correlations) == set(given.importance) == {"plain"}
    assert {deviation.compressed for deviation in given.deviations} == {None}
    assert {distribution.models for distribution in given.distributions} == {"all", "best"}
    unadjusted = dict(
        p_adjusted=None, paired_p_adjusted=None, trend_p_adjusted=None, spread_p_adjusted=None, is_significant=False
    )
    usual_rows = [row for row in findings_of("higher is better").effects if row.form == "plain"]
    assert [replace(row, **unadjusted) for row in usual_rows] == [replace(row, **unadjusted) for row in given.effects]


@pytest.mark.parametrize("form", FORMS)
def test_a_property_that_is_zero_for_one_model_is_skipped_with_a_reason(form: Form) -> None:
    usual = evidence()
    trial = usual.best["fix lr"][2]
    given = findings(changed(usual, trial, **{form: {**usual.models[trial].form(form), "latency_s": 0.0}}))
    assert given.skipped == ("latency is not above 0 for every model, so that relative differences are undefined",)
    left = {"accuracy", "size_bytes", "flops"}
    tables = [given.changes, given.pairs, given.importance["plain"], given.importance["compressed"]]
    assert all(set(table) == left for table in tables)
    for rows in (given.effects, given.deviations, given.distributions):
        assert {row.property for row in rows} == left
    assert findings_of("higher is better").skipped == ()


def test_a_property_that_some_model_lacks_is_left_out() -> None:
    usual = evidence()
    plain = {name: value for name, value in usual.models[3].plain.items() if name != "flops"}
    given = changed(usual, 3, plain=plain)
    assert [prop.name for prop in given.properties] == ["accuracy", "latency_s", "size_bytes"]
    assert findings(given).skipped == ()


def test_constant_properties_have_no_effect() -> None:
    usual = evidence()
    models = {
        trial: replace(
            model,
            plain={**model.plain, "flops": 2.0},
            compressed={**model.compressed, "flops": 1.0} if model.compressed else {},
        )
        for trial, model in usual.models.items()
    }
    given = findings(replace(usual, models=models))
    row = given.effect("fix lr", "flops")
    assert row is not None
    assert (row.best.relative, row.compared.p, row.compared.delta, row.medians.high) == (0.0, 1.0, 0.0, 0.0)
    assert (row.paired.differing, row.paired.p, row.paired.delta, row.is_significant) == (0, None, 0.0, False)
    assert row.spread.p is None
    assert given.correlations["plain"].constant == ("flops",)
    assert given.changes["flops"] == (-0.5,) * BEST
    assert next(deviation for deviation in given.deviations if deviation.property == "flops").plain == 0.0
    assert given.importance["plain"]["flops"].explained is None


def test_pairs_that_differ_by_no_more_than_the_repeatability_are_ties() -> None:
    usual = evidence()
    models = {
        trial: replace(model, repeatability={"plain": {"latency_s": 1e3}}) for trial, model in usual.models.items()
    }
    given = findings(replace(usual, models=models))
    for row in (effect for effect in given.effects if effect.property == "latency_s"):
        assert bool(row.paired.differing) == (row.form == "compressed")
        assert row.trend is None or bool(row.trend.differing) == (row.form == "compressed")


# Advice.

FILTERS = Space(
    model=dict(filters=Choice(4, 8, 16, 32, default=4), kernel=Choice(3, 5, 7, default=3)),
    training=dict(lr=Float(1e-3, 1e-1, log=True, default=1e-2), decay=Float(0.0, 1.0)),
)


def said(given: ImpactMeasurements) -> dict[str, tuple[str, ...]]:
    return {entry.question: entry.answers for entry in advice(findings(given))}


def filters_alone(trials: int, best: int, space: Space = FILTERS) -> ImpactMeasurements:
    """The size depends on the filters only, and the accuracy is random."""
    plan, rng = plan_arms(space, trials), np.random.default_rng(3)
    models = {}
    for trial, config in enumerate(plan.configs):
        accuracy = float(rng.uniform(0.90, 0.91))
        models[trial] = MeasuredModel(
            trial, config, accuracy, {"accuracy": accuracy, "size_bytes": 1000.0 * config.filters}
        )
    chosen = {arm.name: tuple(sorted(arm.members, key=lambda t: -models[t].score)[:best]) for arm in plan.arms}
    scores = {trial: model.score for trial, model in models.items()}
    configs = {trial: model.config for trial, model in models.items()}
    pairs = {arm.name: compared_pairs(arm, sorted(scores, key=lambda t: -scores[t]), best) for arm in plan.arms}
    return ImpactMeasurements(
        "synthetic", "accuracy", True, space, plan.arms, chosen, configs, scores, models, "here", "", pairs=pairs
    )


def test_influential_hyperparameters_are_worth_tuning_and_the_others_are_not() -> None:
    answers = said(filters_alone(30, 12))
    accuracy, size = answers["What is worth tuning?"]
    assert accuracy.startswith("accuracy: too few models, or no hyperparameter affects it: configurations predict")
    assert size.startswith("For size: filters (")
    assert "Held at its default: filters −" in size
    assert ", large)." in size
    assert "kernel" not in size
    assert "lr" not in size
    (left,) = answers["What can be left at its default?"]
    assert left.startswith("Leave at the default: kernel, lr, decay. Held fixed, no property of the compared models")
    assert "What does compression change?" not in answers


def test_a_hyperparameter_that_explains_a_property_is_not_left_at_a_good_default() -> None:
    model = {**FILTERS.groups["model"], "filters": Choice(4, 8, 16, 32, default=8)}
    middle = filters_alone(30, 12, Space(**{**FILTERS.groups, "model": model}))
    effect = findings(middle).effect("fix filters", "size_bytes")
    assert effect is not None
    assert effect.paired_p_adjusted is not None
    assert effect.paired_p_adjusted > 0.05  # smaller and larger ones cancel
    assert effect.trend is not None
    assert (effect.trend.delta, effect.trend.differing, effect.is_significant) == (1.0, effect.trend.n, True)
    answers = said(middle)
    assert answers["What is worth tuning?"][1].startswith("For size: filters (")
    assert "Held at its default" not in answers["What is worth tuning?"][1]
    assert answers["What is worth tuning?"][1].endswith(". It rises with filters.")
    assert answers["What can be left at its default?"][0].startswith("Leave at the default: kernel, lr, decay.")


def test_with_few_models_the_advice_names_their_number() -> None:
    answers = said(filters_alone(3, 2))
    assert answers["What can be left at its default?"] == (
        "2 models per arm are too few for a significant difference.",
    )
    assert "Which properties are correlated?" not in answers
    accuracy, size = answers["What is worth tuning?"]
    assert accuracy.startswith("accuracy: too few models, or no hyperparameter affects it")
    assert size.startswith("For size: filters (")


def rivals(*others: tuple[float, float, float], compressed: bool = False, higher: bool = True) -> ImpactMeasurements:
    """Return models of which the best has 0.95, 3 ms and 10 kB; the others are given, in order of their scores."""
    metric = "accuracy" if higher else "rmse"
    models = {}
    for trial, figures in enumerate([(0.95, 3e-3, 1e4), *others]):
        form = dict(zip((metric, "latency_s", "size_bytes"), figures))
        score = 1 - trial / 100 if higher else trial / 100
        models[trial] = MeasuredModel(trial, Config(width=8, depth=1, lr=0.01), score, form, form if compressed else {})
    alone = (Arm(TUNE_ALL, "all", (), tuple(models)),)
    configs = {trial: model.config for trial, model in models.items()}
    scores = {trial: model.score for trial, model in models.items()}
    best = {TUNE_ALL: tuple(models)}
    return ImpactMeasurements("synthetic", metric, higher, SPACE, alone, best, configs, scores, models, "here", "int8")


def test_a_model_that_is_as_good_and_much_cheaper_is_named() -> None:
    worse, larger, good = (0.90, 1e-3, 1e4), (0.95, 1e-3, 3e4), (0.945, 1e-3, 1e4)
    (answer,) = said(rivals(worse, larger, good))["Is the best model the one to take?"]
    assert answer == (
        "Plain: trial 0 ranks first, but trial 3 has accuracy 0.945 instead of 0.95 and is 3.0× better in latency."
    )
    plain, compressed = said(rivals(worse, good, compressed=True))["Is the best model the one to take?"]
    assert "but trial 2 has" in plain
    assert compressed.startswith("Compressed: trial 0 ranks first, but trial 2 has accuracy 0.945")
    (answer,) = said(rivals(worse, larger))["Is the best model the one to take?"]
    assert answer == "Plain: none of the best 3 is as good and clearly cheaper."


def test_similar_metrics_where_lower_is_better() -> None:
    worse, good = (1.0, 1e-3, 1e4), (0.955, 1e-3, 1e4)
    (answer,) = said(rivals(worse, good, higher=False))["Is the best model the one to take?"]
    assert "but trial 2 has rmse 0.955 instead of 0.95 and is 3.0× better in latency" in answer


def test_a_single_model_has_no_rivals() -> None:
    assert "Is the best model the one to take?" not in said(rivals())


def test_compression_and_correlations_are_described() -> None:
    usual = evidence()
    models = {}
    for trial, model in usual.models.items():
        plain = {**model.plain, "flops": model.plain["size_bytes"] ** 2}
        smaller = {**plain, "size_bytes": plain["size_bytes"] / 4, "accuracy": plain["accuracy"]}
        models[trial] = replace(model, plain=plain, compressed=smaller if model.compressed else {})
    answers = said(replace(usual, models=models))
    assert answers["What does compression change?"] == ("size: −75.0 % at the median, from −75.0 % to −75.0 %.",)
    assert answers["Which properties are correlated?"][0].startswith("size, FLOPs are correlated")
