"""The findings of an impact analysis as JSON. No number is rounded.

    format          2; incremented when a key changes its meaning
    evidence        workload, metric, higher_is_better, device, recipe, ways, space, properties (name, title,
                    higher_is_better), arms (name, kind, fixed, members), best (by arm: trials, best first), configs and
                    scores (by trial), models (by trial: config, score, plain, compressed, control, repeatability),
                    pairs (by arm: trials compared with those of tune all from the same draw), failures (by trial)
    advice          question, answers
    effects         arm, property, form, best (arm, baseline, relative, better, …), compared (n, u, p, delta, magnitude,
                    …), p_adjusted, medians (value, low, high, level), paired (n, differing, w, p, delta, magnitude, …),
                    paired_p_adjusted, change (value, low, high, level), trend (as paired: models with the larger value
                    of an ordered hyperparameter against the others; or null), trend_p_adjusted, spread (ratio,
                    statistic, p), spread_p_adjusted, is_significant (of the pairs or their trend)
    deviations      property, plain, compressed, spread, spread_p_adjusted, is_significant (of the spread)
    distributions   property, models ("all", "best", "best compressed"), scaled
    changes         by property: relative change of each best model by compression, against its control
    pairs           by property: plain, compressed, delta, statistic, p
    correlations    by form: names, n, pairs, constant
    importance      by form and property: singles, pairs, explained, n
    skipped         properties that were left out, and why

A number that is not finite is null.
"""

from __future__ import annotations

from typing import Any

from onefold.impact_analysis import Findings, advice
from onefold.report.json_values import finite
from onefold.vocabulary.records import to_json

FORMAT = 2


def as_json(findings: Findings) -> dict[str, Any]:
    """Return the findings as values that `json.dumps(..., allow_nan=False)` accepts."""
    evidence = findings.evidence
    plain: dict[str, Any] = to_json(findings)
    plain["evidence"] |= {"space": evidence.space.to_json(), "properties": to_json(evidence.properties)}
    for effect, values in zip(findings.effects, plain["effects"]):
        values["best"]["better"] = effect.best.better
    content: dict[str, Any] = finite({"format": FORMAT, **plain, "advice": to_json(advice(findings))})
    return content
