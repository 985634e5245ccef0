"""Run time of `onefold impact` on two cores, its tables against an independent computation, and what it claims.

LeNet on Fashion-MNIST: ten hyperparameters in two groups, thirteen arms of thirty trials, the eight best of each and
their counterparts fully trained, pruned to 80 % sparsity, quantized and served. Every cell of its tables is computed
again from the recorded values, with numpy and scipy alone. What affects size and FLOPs is known by arithmetic. In
simulated studies nothing has an effect, so that every claim is false.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import tempfile
import time
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from claims import Claim, arguments, conclude, table
from scipy.stats import false_discovery_control, ks_2samp, levene, mannwhitneyu, rankdata

from onefold import impact
from onefold.impact_analysis import TUNE_ALL, Findings
from onefold.impact_analysis import findings as compute_findings
from onefold.impact_analysis.advice import is_trusted
from onefold.impact_analysis.api import ImpactOptions
from onefold.testing.simulated_impact import simulated_impact

METHOD_VERSION = 2  # pairs, known effects and simulated studies
MINUTES = 30
COUNTED = ("size_bytes", "flops")  # costs that follow from the architecture, without noise
ARCHITECTURE = {"filters", "kernel", "hidden"}
ELSEWHERE = {
    "dropout",
    "batch_size",
    "optimizer",
    "lr",
    "momentum",
}  # what these costs cannot depend on
NULL_STUDIES, MAX_FALSE_CLAIMS = 200, 0.05


def main() -> None:
    quick = arguments(__doc__).quick
    options = ImpactOptions(trials=6, best=3, max_epochs=2) if quick else ImpactOptions(trials=30, best=8, max_epochs=3)
    with tempfile.TemporaryDirectory() as home:
        started = time.monotonic()
        result = impact("digits" if quick else "fashion", options=options, home=home, on_event=_Progress(started))
        minutes = (time.monotonic() - started) / 60
        figures = json.loads(result.figures.read_text())
    print(f"\n{minutes:.1f} minutes\n", flush=True)
    for part in result.advice:
        print(part.question, *part.answers, sep="\n   ", flush=True)
    evidence = result.findings.evidence
    requested = sum(len(arm.members) for arm in evidence.arms)
    agreement = recompute(result)
    compared = {trial for best in evidence.best.values() for trial in best}
    compared |= {trial for pairs in evidence.pairs.values() for pair in pairs for trial in pair}
    table(
        [{"arm": arm.name, "trials": len(arm.members), "best": len(evidence.best[arm.name])} for arm in evidence.arms]
    )
    table(
        [
            {
                "trainings requested": requested,
                "run": len(evidence.configs),
                "fully trained": len(compared),
                "measured": len(evidence.models),
                "failed": len(evidence.failures),
                "minutes": minutes,
            }
        ]
    )
    known = known_effects(result.findings)
    nulls = null_studies(20 if quick else NULL_STUDIES)
    table([{"cost": cost, "significant effects": ", ".join(arms)} for cost, arms in known.by_cost.items()])
    claims = [
        Claim("onefold impact, 30 trials an arm", f"<= {MINUTES} minutes", f"{minutes:.1f}", minutes <= MINUTES),
        Claim(
            "cells of its tables that agree with an independent computation",
            "all of them",
            f"{agreement.equal} of {agreement.cells}, apart by {agreement.max_difference:.1e} at most",
            agreement.equal == agreement.cells,
        ),
        Claim(
            "effects on size and FLOPs of hyperparameters that cannot have one", "0", str(known.false), not known.false
        ),
    ]
    if not quick:  # too few models for a significant effect, and too few studies for a rate
        claims += _claims_of_full_runs(known, nulls)
    counts = {"requested": requested, "run": len(evidence.configs), "fully_trained": len(compared)}
    counts |= {"measured": len(evidence.models), "null_studies": nulls.studies, "null_claims": nulls.with_claims}
    tables = {name: figures[name] for name in ("advice", "effects", "deviations")}
    conclude("impact", claims, {"minutes": minutes, **counts, **tables}, quick=quick)


@dataclass(frozen=True)
class KnownEffects:
    """The significant effects by cost, and how many of those on size and FLOPs are correct, possible and false."""

    by_cost: dict[str, list[str]]
    correct: int
    possible: int
    false: int
    has_both: bool


def known_effects(findings: Findings) -> KnownEffects:
    """Compare the significant effects with those that follow from the arithmetic of the network."""
    metric, arms = findings.evidence.metric, {arm.name: set(arm.fixed) for arm in findings.evidence.arms}
    by_cost: dict[str, list[str]] = {prop.name: [] for prop in findings.evidence.properties if prop.name != metric}
    for effect in findings.effects:
        if effect.is_significant and effect.property != metric:
            by_cost[effect.property].append(f"{effect.arm.removeprefix('fix ')} ({effect.form})")
    counted = [effect for effect in findings.effects if effect.property in COUNTED and effect.form == "plain"]
    possible = [effect for effect in counted if arms[effect.arm] & ARCHITECTURE]
    correct = [effect for effect in possible if effect.is_significant]
    false = [effect for effect in counted if effect.is_significant and arms[effect.arm] <= ELSEWHERE]
    return KnownEffects(
        by_cost, len(correct), len(possible), len(false), {effect.property for effect in correct} == set(COUNTED)
    )


@dataclass(frozen=True)
class NullStudies:
    """In how many studies without any effect one was claimed: of an arm, on the spread, or by importance."""

    studies: int
    with_claims: int


def null_studies(count: int) -> NullStudies:
    """Analyze simulated studies in which every property is noise."""
    started, with_claims = time.monotonic(), 0
    for seed in range(count):
        result = compute_findings(simulated_impact(seed=seed))
        effects = [effect for effect in result.effects if effect.is_significant]
        spreads = [deviation for deviation in result.deviations if deviation.is_significant]
        shares = [known for known in result.importance["plain"].values() if is_trusted(known)]
        with_claims += bool(effects or spreads or shares)
        if seed % 20 == 19:
            print(
                f"{time.monotonic() - started:6.0f} s  {seed + 1} null studies, {with_claims} with claims", flush=True
            )
    return NullStudies(count, with_claims)


def _claims_of_full_runs(known: KnownEffects, nulls: NullStudies) -> list[Claim]:
    return [
        Claim(
            "costs with a significant effect",
            "all of them",
            f"{sum(map(bool, known.by_cost.values()))} of {len(known.by_cost)}",
            all(known.by_cost.values()),
        ),
        Claim(
            "effects of the architecture on size and FLOPs that are significant",
            "at least one of each",
            f"{known.correct} of {known.possible}",
            known.has_both,
        ),
        Claim(
            "simulated studies without any effect in which one is claimed",
            f"<= {MAX_FALSE_CLAIMS:.0%}",
            f"{nulls.with_claims} of {nulls.studies}",
            nulls.with_claims <= MAX_FALSE_CLAIMS * nulls.studies,
        ),
    ]


class _Progress:
    """Prints important events, and others every 20 s."""

    def __init__(self, started: float) -> None:
        self._started = self._printed = started

    def __call__(self, event: Any) -> None:
        now = time.monotonic()
        if event.kind in ("measured", "failed", "ended") or now - self._printed > 20:
            self._printed = now
            text = event.facts().get("message") or f"{event.kind}, {event.progress().trials_started} trials started"
            print(f"{now - self._started:6.0f} s  {text}", flush=True)


@dataclass(frozen=True)
class Agreement:
    """How many cells are equal to those of an independent computation, and the largest difference."""

    equal: int
    cells: int
    max_difference: float


def recompute(result: Any) -> Agreement:
    """Compute every cell of the tables again from the recorded values."""
    evidence = result.findings.evidence
    pairs: list[tuple[float, float]] = []  # of a cell and of the same cell computed here
    kinds: dict[str, list[tuple[float | None, float | None]]] = {"unpaired": [], "paired": [], "spread": []}
    trends: list[tuple[float | None, float | None]] = []
    for effect in result.findings.effects:
        groups = [evidence.best_models(arm, effect.form) for arm in (effect.arm, TUNE_ALL)]
        values, baseline_values = (
            np.array([model.form(effect.form)[effect.property] for model in group]) for group in groups
        )
        best, baseline_best = (
            max(group, key=lambda model: model.score).form(effect.form)[effect.property] for group in groups
        )
        ratios = np.array(
            [
                evidence.models[one].form(effect.form)[effect.property]
                / evidence.models[other].form(effect.form)[effect.property]
                for one, other in evidence.pairs[effect.arm]
            ]
        )
        differences = np.round(np.log(ratios), 12)
        differences[np.abs(differences) <= _repeatability_limit(evidence, effect)] = 0
        kinds["unpaired"].append((effect.p_adjusted, _mann_whitney(values, baseline_values)))
        kinds["paired"].append((effect.paired_p_adjusted, _signed_rank(differences[differences != 0])))
        if effect.trend is not None:
            directions = _directions(evidence, effect.arm)
            rising = (directions * differences)[directions != 0]
            trends.append((effect.trend_p_adjusted, _signed_rank(rising[rising != 0])))
        kinds["spread"].append((effect.spread_p_adjusted, _brown_forsythe(values, baseline_values)))
        pairs += [
            (effect.best.relative, (best - baseline_best) / baseline_best),
            (effect.compared.delta, float(np.sign(values[:, None] - baseline_values[None]).mean())),
            (effect.paired.delta, float(np.sign(differences).mean()) if len(differences) else None),
            *zip((effect.compared.p, effect.paired.p, effect.spread.p), (kind[-1][1] for kind in kinds.values())),
        ]
    kinds["paired"] += trends
    for kind in kinds.values():
        tests = [(shown, p) for shown, p in kind if p is not None]
        pairs += zip((shown for shown, _ in tests), false_discovery_control([p for _, p in tests]))
    pairs = [pair for pair in pairs if pair != (None, None)]
    for deviation in result.findings.deviations:
        is_metric = deviation.property == evidence.metric
        for form, value in (("plain", deviation.plain), ("compressed", deviation.compressed)):
            recorded = [model.form(form)[deviation.property] for model in evidence.best_models(form=form)]
            best, worst = (max(recorded), min(recorded)) if is_metric else (min(recorded), max(recorded))
            pairs.append((value, abs((best - worst) / worst)))
    for name, compared in result.findings.pairs.items():
        models = evidence.best_models(form="compressed")
        before, after = (
            [(a - b) / b for a, b in itertools.combinations([values[name] for values in group], 2)]
            for group in ([model.control or model.plain for model in models], [model.compressed for model in models])
        )
        pairs += [(compared.p, ks_2samp(before, after).pvalue), *zip(compared.delta, np.subtract(after, before))]
    return Agreement(
        sum(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in pairs),
        len(pairs),
        max(abs(a - b) for a, b in pairs),
    )


def _repeatability_limit(evidence: Any, effect: Any) -> float:
    """Return the difference within which two measurements of one model lie (ISO 5725); 0 for what is counted."""
    spreads = [model.repeatability.get(effect.form, {}) for model in evidence.models.values()]
    known = [spread[effect.property] for spread in spreads if effect.property in spread]
    return 1.96 * math.sqrt(2) * float(np.median(known)) if known else 0.0


def _mann_whitney(values: Any, others: Any) -> float:
    """Return the p value of the Mann-Whitney U test; exact unless there are ties."""
    distinct = len(set(values) | set(others))
    if distinct == 1:
        return 1.0
    has_ties = distinct < len(values) + len(others)
    return float(mannwhitneyu(values, others, method="asymptotic" if has_ties else "exact").pvalue)


def _signed_rank(differences: Any) -> float | None:
    """Return the exact p value of Wilcoxon's test, by permutations of all signs."""
    if not len(differences):
        return None
    ranks = rankdata(np.abs(differences))
    sums = np.zeros(1)
    for rank in ranks:
        sums = np.concatenate([sums - rank, sums + rank])
    return float((np.abs(sums) >= abs(ranks @ np.sign(differences)) - 1e-9).mean())


def _directions(evidence: Any, arm: str) -> Any:
    """Return, for each pair, the sign of the change of the hyperparameter; 0 where one of both models lacks it."""
    (name,) = evidence.arm(arm).fixed
    configs = [[evidence.models[trial].config for trial in pair] for pair in evidence.pairs[arm]]
    return np.array(
        [np.sign(one[name] - other[name]) if name in one and name in other else 0 for one, other in configs]
    )


def _brown_forsythe(values: Any, others: Any) -> float | None:
    groups = np.log(values), np.log(others)
    if min(map(len, groups)) < 3 or all(np.ptp(group) <= 1e-12 * np.abs(group).max() for group in groups):
        return None
    return float(levene(*groups, center="median").pvalue)


if __name__ == "__main__":
    main()
