"""Findings in plain language: what to tune, what to leave at its default, and when the top model is a bad choice."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from onefold.impact_analysis.correlation import Correlations
from onefold.impact_analysis.findings import SIGNIFICANCE_LEVEL, Effect, Findings, is_significant
from onefold.impact_analysis.importance import MIN_CONFIGURATIONS, Importance
from onefold.impact_analysis.model_measurements import Form, MeasuredModel, Property
from onefold.impact_analysis.paired_comparison import smallest_p

MIN_SHARE = 0.1  # of the variance, for a hyperparameter to be mentioned
MIN_EXPLAINED = 0.2  # out-of-bag R² from which shares are trusted
SIMILAR_METRIC = 0.01  # relative loss of the metric that most users accept
MUCH_CHEAPER = 1.2  # cost ratio that justifies another choice
STRONG_CORRELATION, WEAK_CORRELATION = 0.9, 0.6  # rank correlations
MIN_CORRELATED_MODELS = 5
COUNTED = ("size_bytes", "flops", "useful_flops")  # of an architecture, without noise: one pair that differs is proof
_REDUNDANT = ("useful_flops",)  # equal to the FLOPs in plain models


@dataclass(frozen=True, slots=True)
class Advice:
    """A practitioner's question, and what the findings answer."""

    question: str
    answers: tuple[str, ...]


def advice(findings: Findings) -> tuple[Advice, ...]:
    """Return the questions that the findings can answer."""
    parts = [
        Advice("What is worth tuning?", tuple(_worth_tuning(findings))),
        Advice("What can be left at its default?", tuple(_left_at_default(findings))),
        Advice("Is the best model the one to take?", tuple(_better_choices(findings))),
        Advice("What does compression change?", tuple(_compression(findings))),
        Advice("Which properties are correlated?", tuple(_correlated(findings))),
    ]
    return tuple(part for part in parts if part.answers)


def is_trusted(importance: Importance) -> bool:
    """Return whether configurations predict a property well enough for its shares to be trusted."""
    enough = importance.n >= MIN_CONFIGURATIONS
    return enough and importance.explained is not None and importance.explained >= MIN_EXPLAINED


def is_confirmed(findings: Findings, name: str, prop: Property) -> bool:
    """Return whether the pairs of a hyperparameter differ in a property: significantly, unless that is counted."""
    effect = findings.effect(f"fix {name}", prop.name)
    if effect is None:
        return False
    return effect.is_significant or (prop.name in COUNTED and bool(effect.paired.differing))


def _worth_tuning(findings: Findings) -> list[str]:
    lines = []
    for prop in findings.evidence.properties:
        importance = findings.importance["plain"].get(prop.name)
        if importance is None or not importance.singles or prop.name in _REDUNDANT:
            continue
        if not is_trusted(importance):
            lines.append(f"{prop.title}: too few models, or no hyperparameter affects it: {_explained(importance)}.")
            continue
        confirmed = {
            name for (name,) in (share.parameters for share in importance.singles) if is_confirmed(findings, name, prop)
        }
        named = [
            f"{share.parameters[0]} ({share.share:.0%})"
            for share in importance.singles
            if share.share >= MIN_SHARE and share.parameters[0] in confirmed
        ]
        pairs = [
            share
            for share in importance.pairs[:1]
            if share.share >= MIN_SHARE and confirmed.issuperset(share.parameters)
        ]
        interaction = (
            f"; the interaction of {' and '.join(pairs[0].parameters)} adds {pairs[0].share:.0%}" if pairs else ""
        )
        relevant = [effect for effect in findings.effects if _is_relevant(findings, effect, prop)]
        fixed = [_describe(effect) for effect in relevant if is_significant(effect.paired_p_adjusted)]
        trends = [trend_text(effect) for effect in relevant if is_significant(effect.trend_p_adjusted)]
        effects = f". Held at its default: {'; '.join(fixed)}" if fixed else ""
        effects += f". It {' and '.join(trends)}" if trends else ""
        lines.append(
            f"For {prop.title}: {', '.join(named) or 'no hyperparameter that the pairs confirm'}{interaction}{effects}."
        )
    return lines


def _left_at_default(findings: Findings) -> list[str]:
    """Name hyperparameters whose arm differs significantly in no property, and that explain little of any."""
    importances = {
        prop: importance
        for prop in findings.evidence.properties
        if (importance := findings.importance["plain"].get(prop.name)) is not None and is_trusted(importance)
    }
    unimportant, has_tests = [], False
    for arm in findings.evidence.arms:
        effects = [effect for effect in findings.effects if effect.arm == arm.name and effect.paired.n]
        if arm.kind != "hyperparameter" or not effects:
            continue
        has_tests = True
        changes = any(effect.is_significant for effect in effects)
        explains = any(
            importance.of(arm.fixed[0]).share >= MIN_SHARE and is_confirmed(findings, arm.fixed[0], prop)
            for prop, importance in importances.items()
        )
        if not changes and not explains:
            unimportant.append(arm.fixed[0])
    count = len(findings.evidence.best_models())
    if not has_tests or not _has_power(findings):
        return [f"{count} models per arm are too few for a significant difference."]
    if not importances:
        return ["Unknown: no property can be predicted from the configurations that were tried."]
    if not unimportant:
        return ["Nothing: every hyperparameter affects some property significantly, or explains a share of it."]
    return [
        f"Leave at the default: {', '.join(unimportant)}. Held fixed, no property of the compared models changes "
        f"significantly, and none is explained by it to {MIN_SHARE:.0%}."
    ]


def _has_power(findings: Findings) -> bool:
    """Return whether the clearest possible difference of one arm in every property would be significant."""
    tests = sum(
        comparison is not None and comparison.p is not None
        for effect in findings.effects
        for comparison in (effect.paired, effect.trend)
    )
    cells_of_arm = len({(effect.property, effect.form) for effect in findings.effects})
    most_pairs = max((effect.paired.n for effect in findings.effects), default=0)
    return cells_of_arm > 0 and smallest_p(most_pairs) * tests / cells_of_arm < SIGNIFICANCE_LEVEL


def advised_model(findings: Findings, form: Form) -> MeasuredModel | None:
    """Return the first of the best models that is as good as the top one, and clearly cheaper; None without one."""
    models = findings.evidence.best_models(form=form)
    return next((model for model in models[1:] if _gains(findings, model, models[0], form)), None)


def _better_choices(findings: Findings) -> list[str]:
    evidence, lines = findings.evidence, []
    for form in findings.forms:
        models = evidence.best_models(form=form)
        if len(models) < 2:
            continue
        top, model = models[0], advised_model(findings, form)
        if model is None:
            lines.append(f"{form.capitalize()}: none of the best {len(models)} is as good and clearly cheaper.")
        else:
            lines.append(
                f"{form.capitalize()}: trial {top.trial} ranks first, but trial {model.trial} has "
                f"{evidence.metric} {model.form(form)[evidence.metric]:.4g} instead of "
                f"{top.form(form)[evidence.metric]:.4g} and is {_gains(findings, model, top, form)}."
            )
    return lines


def _compression(findings: Findings) -> list[str]:
    lines = []
    for prop in findings.evidence.properties:
        changes = findings.changes.get(prop.name, ())
        if not changes or not any(changes):
            continue
        span = f"from {_percent(min(changes))} to {_percent(max(changes))}"
        lines.append(f"{prop.title}: {_percent(median(changes))} at the median, {span}.")
    evidence = findings.evidence
    if lines and evidence.server:
        lines.append(
            f"Costs are those of plain models on {evidence.server} and of compressed ones on {evidence.device}."
        )
    titles = {prop.name: prop.title for prop in evidence.properties}
    spreads = {
        titles[each.property]: each.spread
        for each in findings.deviations
        if each.is_significant and each.spread is not None
    }
    wider = [title for title, spread in spreads.items() if spread.is_wider]
    narrower = [title for title, spread in spreads.items() if not spread.is_wider]
    if wider:
        lines.append(f"Compressed models differ more than plain ones in {', '.join(wider)}: select after compression.")
    if narrower:
        lines.append(f"Compressed models differ less than plain ones in {', '.join(narrower)}.")
    return lines


def _correlated(findings: Findings) -> list[str]:
    """Group properties of plain models that rank them alike, and name those that do not predict latency."""
    plain = findings.correlations["plain"]
    if plain.n < MIN_CORRELATED_MODELS:
        return []
    excluded = (*_REDUNDANT, findings.evidence.metric)
    costs = [prop for prop in findings.evidence.properties if prop.name in plain.names and prop.name not in excluded]
    groups: list[list[Property]] = []
    for prop in costs:
        group = next((group for group in groups if all(_are_correlated(plain, prop, other) for other in group)), None)
        if group is None:
            groups.append([prop])
        else:
            group.append(prop)
    lines = [
        f"{', '.join(prop.title for prop in group)} are correlated (rank correlation {STRONG_CORRELATION} or more): "
        "measuring one of them suffices to compare models."
        for group in groups
        if len(group) > 1
    ]
    weak = [
        f"{prop.title} ({value:.2f})"
        for prop in costs
        if prop.name != "latency_s"
        and "latency_s" in plain.names
        and (value := plain.between("latency_s", prop.name).spearman) is not None
        and abs(value) < WEAK_CORRELATION
    ]
    if weak:
        lines.append(f"Latency cannot be predicted from {', '.join(weak)}: measure it.")
    return lines


def _are_correlated(correlations: Correlations, first: Property, second: Property) -> bool:
    value = correlations.between(first.name, second.name).spearman
    return value is not None and value >= STRONG_CORRELATION


def _percent(share: float) -> str:
    text = f"{share:+.1%}".replace("-", "−").replace("%", " %")
    return text.replace("+0.0 %", "0 %").replace("−0.0 %", "0 %")


def _explained(importance: Importance) -> str:
    if importance.explained is None:
        return importance.note or "nothing varies"
    return f"configurations predict {max(0.0, importance.explained):.0%} of its variance"


def _is_relevant(findings: Findings, effect: Effect, prop: Property) -> bool:
    is_single = findings.evidence.arm(effect.arm).kind == "hyperparameter"
    return is_single and effect.property == prop.name and effect.form == "plain" and effect.is_significant


def _describe(effect: Effect) -> str:
    assert effect.change is not None
    interval = f"{_percent(effect.change.low)} to {_percent(effect.change.high)}"
    name = effect.arm.removeprefix("fix ")
    return f"{name} {_percent(effect.change.value)} ({interval}, {effect.paired.magnitude})"


def trend_text(effect: Effect) -> str:
    """Say in which direction a property changes with the hyperparameter."""
    assert effect.trend is not None
    direction = "rises" if (effect.trend.delta or 0) > 0 else "falls"
    return f"{direction} with {effect.arm.removeprefix('fix ')}"


def _gains(findings: Findings, model: MeasuredModel, top: MeasuredModel, form: Form) -> str:
    """Return in which costs a model is clearly better than the top one; empty if it is worse in anything."""
    metric, sign = findings.evidence.metric, 1 if findings.evidence.higher_is_better else -1
    own, best = model.form(form), top.form(form)
    if sign * (best[metric] - own[metric]) > SIMILAR_METRIC * abs(best[metric]):
        return ""
    costs = [prop for prop in findings.evidence.properties if prop.name != metric and own[prop.name] > 0]
    ratios = {prop.title: best[prop.name] / own[prop.name] for prop in costs}
    if any(ratio < 1 / MUCH_CHEAPER for ratio in ratios.values()):
        return ""
    return ", ".join(f"{ratio:.1f}× better in {title}" for title, ratio in ratios.items() if ratio >= MUCH_CHEAPER)
