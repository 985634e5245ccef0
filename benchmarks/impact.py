"""Run time of `onefold impact` on two cores, and its tables against an independent computation.

LeNet on Fashion-MNIST: ten hyperparameters in two groups, thirteen arms of thirty trials, the ten best of each fully
trained, pruned to 80 % sparsity, quantized and served. Every cell of its tables is computed again from the recorded
values, with numpy and scipy alone.
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
from scipy.stats import false_discovery_control, ks_2samp, mannwhitneyu

from onefold import impact
from onefold.impact_analysis.api import ImpactOptions

MINUTES = 30


def main() -> None:
    quick = arguments(__doc__).quick
    options = ImpactOptions(trials=6, best=3, max_epochs=2) if quick else ImpactOptions(trials=30, best=10)
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
    table(
        [{"arm": arm.name, "trials": len(arm.members), "best": len(evidence.best[arm.name])} for arm in evidence.arms]
    )
    table(
        [
            {
                "trainings requested": requested,
                "run": len(evidence.configs),
                "fully trained": len({trial for best in evidence.best.values() for trial in best}),
                "measured": len(evidence.models),
                "failed": len(evidence.failures),
                "minutes": minutes,
            }
        ]
    )
    claims = [
        Claim("onefold impact, 30 trials an arm", f"<= {MINUTES} minutes", f"{minutes:.1f}", minutes <= MINUTES),
        Claim(
            "cells of its tables that agree with an independent computation",
            "all of them",
            f"{agreement.equal} of {agreement.cells}, apart by {agreement.max_difference:.1e} at most",
            agreement.equal == agreement.cells,
        ),
    ]
    counts = {"requested": requested, "run": len(evidence.configs), "measured": len(evidence.models)}
    tables = {name: figures[name] for name in ("advice", "effects", "deviations")}
    conclude("impact", claims, {"minutes": minutes, **counts, **tables}, quick=quick)


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
    for form in result.findings.forms:
        effects = [effect for effect in result.findings.effects if effect.form == form]
        baseline = evidence.best_models(form=form)
        p_values = []
        for effect in effects:
            models = evidence.best_models(effect.arm, form)
            values, baseline_values = (
                np.array([model.form(form)[effect.property] for model in group]) for group in (models, baseline)
            )
            best, baseline_best = (
                max(group, key=lambda model: model.score).form(form)[effect.property] for group in (models, baseline)
            )
            p_values.append(_mann_whitney(values, baseline_values))
            pairs += [
                (effect.best.relative, (best - baseline_best) / baseline_best),
                (effect.compared.p, p_values[-1]),
                (effect.compared.delta, float(np.sign(values[:, None] - baseline_values[None]).mean())),
            ]
        pairs += zip((effect.p_adjusted for effect in effects), false_discovery_control(p_values))
    for deviation in result.findings.deviations:
        is_metric = deviation.property == evidence.metric
        for form, value in (("plain", deviation.plain), ("compressed", deviation.compressed)):
            recorded = [model.form(form)[deviation.property] for model in evidence.best_models(form=form)]
            best, worst = (max(recorded), min(recorded)) if is_metric else (min(recorded), max(recorded))
            pairs.append((value, abs((best - worst) / worst)))
    for name, compared in result.findings.pairs.items():
        models = evidence.best_models(form="compressed")
        before, after = (
            [(a - b) / b for a, b in itertools.combinations([model.form(form)[name] for model in models], 2)]
            for form in ("plain", "compressed")
        )
        pairs += [(compared.p, ks_2samp(before, after).pvalue), *zip(compared.delta, np.subtract(after, before))]
    return Agreement(
        sum(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in pairs),
        len(pairs),
        max(abs(a - b) for a, b in pairs),
    )


def _mann_whitney(values: Any, others: Any) -> float:
    """Return the p value of the Mann-Whitney U test; exact unless there are ties."""
    distinct = len(set(values) | set(others))
    if distinct == 1:
        return 1.0
    has_ties = distinct < len(values) + len(others)
    return float(mannwhitneyu(values, others, method="asymptotic" if has_ties else "exact").pvalue)


if __name__ == "__main__":
    main()
