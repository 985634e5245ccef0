"""Does `onefold impact` finish within half an hour on two cores, and are its tables exact for the trials it ran?

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
        began = time.monotonic()
        found = impact("digits" if quick else "fashion", options=options, home=home, on_event=_Progress(began))
        minutes = (time.monotonic() - began) / 60
        figures = json.loads(found.figures.read_text())
    print(f"\n{minutes:.1f} minutes\n", flush=True)
    for part in found.advice:
        print(part.question, *part.answers, sep="\n   ", flush=True)
    evidence = found.findings.evidence
    asked = sum(len(arm.members) for arm in evidence.arms)
    agree, cells, worst = recompute(found)
    table(
        [{"arm": arm.name, "trials": len(arm.members), "best": len(evidence.best[arm.name])} for arm in evidence.arms]
    )
    table(
        [
            {
                "trainings asked for": asked,
                "made": len(evidence.configs),
                "in full": len({one for best in evidence.best.values() for one in best}),
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
            f"{agree} of {cells}, apart by {worst:.1e} at most",
            agree == cells,
        ),
    ]
    kept = {name: figures[name] for name in ("advice", "effects", "deviations")}
    made = {"minutes": minutes, "asked": asked, "made": len(evidence.configs), "measured": len(evidence.models)}
    conclude("impact", claims, {**made, **kept}, quick=quick)


class _Progress:
    """Print an event from time to time."""

    def __init__(self, began: float) -> None:
        self._began = self._printed = began

    def __call__(self, event: Any) -> None:
        now = time.monotonic()
        if event.kind in ("measured", "failed", "ended") or now - self._printed > 20:
            self._printed = now
            text = event.facts().get("message") or f"{event.kind}, {event.progress().trials_started} trials started"
            print(f"{now - self._began:6.0f} s  {text}", flush=True)


def recompute(found: Any) -> tuple[int, int, float]:
    """Return how many cells agree with an independent computation, of how many, and the largest difference."""
    evidence, pairs = found.findings.evidence, []
    for form in found.findings.forms:
        base = evidence.best_models(form=form)
        mine = [one for one in found.findings.effects if one.form == form]
        ps = []
        for effect in mine:
            models = evidence.best_models(effect.arm, form)
            ours = np.array([model.form(form)[effect.property] for model in models])
            theirs = np.array([model.form(form)[effect.property] for model in base])
            first = [max(group, key=lambda model: model.score).form(form)[effect.property] for group in (models, base)]
            pairs.append((effect.best.relative, (first[0] - first[1]) / first[1]))
            tied = len(set(ours) | set(theirs)) < len(ours) + len(theirs)
            same = len(set(ours) | set(theirs)) == 1
            p = 1.0 if same else mannwhitneyu(ours, theirs, method="asymptotic" if tied else "exact").pvalue
            ps.append(p)
            pairs.append((effect.compared.p, p))
            pairs.append((effect.compared.delta, float(np.sign(ours[:, None] - theirs[None]).mean())))
        pairs += list(zip((one.p_adjusted for one in mine), false_discovery_control(ps)))
    for one in found.findings.deviations:
        higher = one.property == evidence.metric
        for form, value in (("plain", one.plain), ("compressed", one.compressed)):
            values = [model.form(form)[one.property] for model in evidence.best_models(form=form)]
            best, worst = (max(values), min(values)) if higher else (min(values), max(values))
            pairs.append((value, abs((best - worst) / worst)))
    for name, pair in found.findings.pairs.items():
        models = evidence.best_models(form="compressed")
        plain, small = ([model.form(form)[name] for model in models] for form in ("plain", "compressed"))
        before, after = ([(a - b) / b for a, b in itertools.combinations(values, 2)] for values in (plain, small))
        pairs += [(pair.p, ks_2samp(before, after).pvalue), *zip(pair.delta, np.subtract(after, before))]
    apart = [abs(a - b) for a, b in pairs]
    return sum(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in pairs), len(pairs), max(apart)


if __name__ == "__main__":
    main()
