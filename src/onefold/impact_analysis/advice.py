"""Findings in plain words: what to tune for what, what to leave alone, and where the best model is a bad choice."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from statistics import median

from onefold.impact_analysis.correlation import Correlations
from onefold.impact_analysis.findings import CHANCE, Effect, Findings
from onefold.impact_analysis.importance import Importance
from onefold.impact_analysis.model_measurements import Form, MeasuredModel, Property
from onefold.impact_analysis.multiple_testing import benjamini_hochberg
from onefold.impact_analysis.pairwise_differences import PairwiseDifferences

MATTERS = 0.1  # of the variance: a hyperparameter with less is not worth a word
TRUSTED = 0.2  # of the variance must be foretold of unseen models before shares are believed
NEAR = 0.01  # of the metric: as good as the best, for most purposes
MUCH = 1.2  # times better in a cost: worth changing one's mind for
TOGETHER, APART = 0.9, 0.6  # rank correlations: one property tells the other, or does not
ENOUGH = 5  # models, to say anything about their order
_TOLD_BY_ANOTHER = ("useful_flops",)  # which are the FLOPs, in plain models


@dataclass(frozen=True, slots=True)
class Advice:
    """A question that a practitioner asks, and what the findings answer."""

    question: str
    answers: tuple[str, ...]


def advice(found: Findings) -> tuple[Advice, ...]:
    """The page of plain advice."""
    parts = [
        Advice("What is worth tuning?", tuple(_worth_tuning(found))),
        Advice("What can be left at its default?", tuple(_left_alone(found))),
        Advice("Is the best model the one to take?", tuple(_better_choices(found))),
        Advice("What does compression change?", tuple(_compression(found))),
        Advice("Which properties tell each other?", tuple(_correlated(found))),
    ]
    return tuple(part for part in parts if part.answers)


def _worth_tuning(found: Findings) -> list[str]:
    said = []
    for one in found.evidence.properties:
        shares = found.importance["plain"].get(one.name)
        if shares is None or not shares.singles or one.name in _TOLD_BY_ANOTHER:
            continue
        if not trusted(shares):
            said.append(f"{one.title}: too few models to say, or nothing tunes it: {_explained(shares)}.")
            continue
        named = [f"{share.parameters[0]} ({share.share:.0%})" for share in shares.singles if share.share >= MATTERS]
        pairs = [share for share in shares.pairs[:1] if share.share >= MATTERS]
        more = f"; {' and '.join(pairs[0].parameters)} together add {pairs[0].share:.0%}" if pairs else ""
        fixed = [_told(effect) for effect in found.effects if _matters(found, effect, one)]
        effects = f". Held fixed: {'; '.join(fixed)}" if fixed else ""
        said.append(f"For {one.title}: {', '.join(named) or 'nothing by itself'}{more}{effects}.")
    return said


def _left_alone(found: Findings) -> list[str]:
    """Hyperparameters whose arm differs from "tune all" in nothing by more than chance, and that explain little."""
    shares = [one for one in found.importance["plain"].values() if trusted(one)]
    quiet, tested = [], False
    for arm in found.evidence.arms:
        effects = [effect for effect in found.effects if effect.arm == arm.name and effect.compared.p is not None]
        if arm.kind != "hyperparameter" or not effects:
            continue
        tested = True
        moved = any(effect.is_significant for effect in effects)
        explains = any(share.of(arm.fixed[0]).share >= MATTERS for share in shares)
        if not moved and not explains:
            quiet.append(arm.fixed[0])
    count = len(found.evidence.top())
    if not tested or not _could_be_told(found, count):
        return [f"{count} models are too few to say."]
    if not shares:
        return ["Nothing can be said: no property can be foretold from the configurations that were tried."]
    if not quiet:
        return ["Nothing: every hyperparameter changes some property by more than chance, or explains a share of it."]
    return [
        f"Leave alone: {', '.join(quiet)}. Held fixed, no property of the best {count} models changes by more than "
        f"chance, and none is explained by it to {MATTERS:.0%}."
    ]


def _could_be_told(found: Findings, count: int) -> bool:
    """Whether an arm that differs in every property as clearly as can be would be found significant."""
    tests = sum(effect.form == "plain" for effect in found.effects)
    alike = len({effect.property for effect in found.effects})
    least = 2 / comb(2 * count, count)
    return alike > 0 and least * tests / alike < CHANCE


def _better_choices(found: Findings) -> list[str]:
    said = []
    for form in found.forms:
        models = found.evidence.top(form=form)
        if len(models) < 2:
            continue
        first = models[0]
        for model in models[1:]:
            gains = _gains(found, model, first, form)
            if gains:
                said.append(
                    f"{form.capitalize()}: trial {first.trial} was chosen, but trial {model.trial} has "
                    f"{found.evidence.metric} {model.form(form)[found.evidence.metric]:.4g} instead of "
                    f"{first.form(form)[found.evidence.metric]:.4g} and is {gains}."
                )
                break
        else:
            said.append(f"{form.capitalize()}: none of the best {len(models)} is as good and clearly cheaper.")
    return said


def _compression(found: Findings) -> list[str]:
    said = []
    for one in found.evidence.properties:
        changes = found.changes.get(one.name, ())
        if not changes or not any(changes):
            continue
        ends = f"from {_percent(min(changes))} to {_percent(max(changes))}"
        said.append(f"{one.title}: {_percent(median(changes))} at the median, {ends}.")
    titles = {one.name: one.title for one in found.evidence.properties}
    adjusted = benjamini_hochberg([pair.p for pair in found.pairs.values()])
    moved = [name for name, p in zip(found.pairs, adjusted) if p is not None and p < CHANCE]
    apart = [titles[name] for name in moved if _lies_apart(found.pairs[name])]
    nearer = [titles[name] for name in moved if not _lies_apart(found.pairs[name])]
    if apart:
        said.append(f"Models lie further apart once compressed, in {', '.join(apart)}: choose afterwards.")
    if nearer:
        said.append(f"Models lie closer together once compressed, in {', '.join(nearer)}.")
    return said


def _lies_apart(pairs: PairwiseDifferences) -> bool:
    """Whether models differ by more, at the median, than they did before."""
    return median(map(abs, pairs.compressed)) > median(map(abs, pairs.plain))


def _correlated(found: Findings) -> list[str]:
    """Properties of plain models in groups whose order is the same, and what latency cannot be told from."""
    told = found.correlations["plain"]
    if told.n < ENOUGH:
        return []
    costs = [one for one in found.evidence.properties if one.name in told.names and one.name not in _TOLD_BY_ANOTHER]
    costs = [one for one in costs if one.name != found.evidence.metric]
    groups: list[list[Property]] = []
    for one in costs:
        home = next((group for group in groups if all(_goes_with(told, one, other) for other in group)), None)
        if home is None:
            groups.append([one])
        else:
            home.append(one)
    said = [
        f"{', '.join(one.title for one in group)} go together (rank correlations of {TOGETHER} and more): "
        "measuring one of them will do to compare models."
        for group in groups
        if len(group) > 1
    ]
    apart = [
        f"{one.title} ({value:.2f})"
        for one in costs
        if one.name != "latency_s"
        and "latency_s" in told.names
        and (value := told.between("latency_s", one.name).spearman) is not None
        and abs(value) < APART
    ]
    if apart:
        said.append(f"Latency cannot be told from {', '.join(apart)}: measure it.")
    return said


def _goes_with(told: Correlations, one: Property, other: Property) -> bool:
    value = told.between(one.name, other.name).spearman
    return value is not None and value >= TOGETHER


def _percent(share: float) -> str:
    text = f"{share:+.1%}".replace("-", "−").replace("%", " %")
    return text.replace("+0.0 %", "0 %").replace("−0.0 %", "0 %")


def trusted(shares: Importance) -> bool:
    """Whether configurations foretell enough of a property for its shares to be believed."""
    return shares.explained is not None and shares.explained >= TRUSTED


def _explained(shares: Importance) -> str:
    if shares.explained is None:
        return shares.note or "nothing differs"
    return f"configurations foretell {max(0.0, shares.explained):.0%} of it"


def _matters(found: Findings, effect: Effect, one: Property) -> bool:
    single = found.evidence.arm(effect.arm).kind == "hyperparameter"
    return single and effect.property == one.name and effect.form == "plain" and effect.is_significant


def _told(effect: Effect) -> str:
    low, high = effect.medians.low, effect.medians.high
    return (
        f"{effect.arm.removeprefix('fix ')} {_percent(effect.medians.value)} "
        f"({_percent(low)} to {_percent(high)}, {effect.compared.magnitude})"
    )


def _gains(found: Findings, model: MeasuredModel, first: MeasuredModel, form: Form) -> str:
    """In what a model is clearly cheaper than another, if it is as good and in nothing clearly worse."""
    metric, sign = found.evidence.metric, 1 if found.evidence.higher_is_better else -1
    mine, theirs = model.form(form), first.form(form)
    if sign * (theirs[metric] - mine[metric]) > NEAR * abs(theirs[metric]):
        return ""
    costs = [one for one in found.evidence.properties if one.name != metric and mine[one.name] > 0]
    ratios = {one.title: theirs[one.name] / mine[one.name] for one in costs}
    if any(ratio < 1 / MUCH for ratio in ratios.values()):
        return ""
    better = [f"{ratio:.1f}× better in {title}" for title, ratio in ratios.items() if ratio >= MUCH]
    return ", ".join(better)
