"""The accuracy of models over their costs: the top-1 model, the advised one, and all others."""

from __future__ import annotations

from collections.abc import Iterator

from onefold.impact_analysis import TUNE_ALL, Findings, Form, MeasuredModel, Property
from onefold.impact_analysis.advice import advised_model
from onefold.report.impact.tables import TITLES, properties
from onefold.report.plots.marks import Plot
from onefold.report.plots.scatter import OTHER, ScatterAxis, ScatterPoint, scatter
from onefold.vocabulary import quantities

COSTS = ("latency_s", "encoded_bytes", "size_bytes")  # in the order of preference
PLOTS_PER_FORM = 2
BEST, TOP, ADVISED = "dot s4", "dot s7", "dot best"
LEGEND = (
    (TOP, "top-1: ranked first"),
    (ADVISED, "advised: as good, and clearly cheaper"),
    (BEST, "the other best models of tune all"),
    (OTHER, "models of other arms"),
)


def tradeoffs(findings: Findings) -> Iterator[Plot]:
    """Return the plots of each form over the first costs that were measured."""
    known = {prop.name: prop for prop in properties(findings)}
    if findings.evidence.metric not in known:
        return
    for form in findings.forms:
        for cost in [known[name] for name in COSTS if name in known][:PLOTS_PER_FORM]:
            yield tradeoff(findings, form, cost)


def tradeoff(findings: Findings, form: Form, cost: Property) -> Plot:
    """Return the plot of the metric over one cost, of the fully trained models of all arms."""
    evidence, best = findings.evidence, findings.evidence.best_models(form=form)
    advised = advised_model(findings, form)
    trials = dict.fromkeys(trial for arm in evidence.arms for trial in evidence.best.get(arm.name, ()))
    models = [evidence.models[trial] for trial in trials if trial in evidence.models]
    points = [_point(findings, model, form, cost, best, advised) for model in models if model.form(form)]
    device = evidence.server if form == "plain" and evidence.server else evidence.device
    direction = "higher is better" if evidence.higher_is_better else "lower is better"
    return scatter(
        f"tradeoff-{form}-{cost.name.replace('_', '-')}",
        f"{TITLES[form]}: {evidence.metric} over {cost.title}",
        f"The best models of every arm, on {device}.",
        points,
        (
            ScatterAxis(cost.name, cost.title, "lower is better"),
            ScatterAxis(evidence.metric, evidence.metric, direction),
        ),
        LEGEND,
    )


def _point(
    findings: Findings,
    model: MeasuredModel,
    form: Form,
    cost: Property,
    best: list[MeasuredModel],
    advised: MeasuredModel | None,
) -> ScatterPoint:
    metric, values = findings.evidence.metric, model.form(form)
    kind, name = OTHER, ""
    if model.trial in findings.evidence.best.get(TUNE_ALL, ()):
        kind = BEST
    if best and model.trial == best[0].trial:
        kind, name = TOP, f"top-1: trial {model.trial}"
    elif advised is not None and model.trial == advised.trial:
        kind, name = ADVISED, f"advised: trial {model.trial}"
    tooltip = (
        f"trial {model.trial}: {metric} {quantities.metric(metric, values[metric])}, {cost.title} "
        f"{quantities.metric(cost.name, values[cost.name])}"
    )
    return ScatterPoint(values[cost.name], values[metric], tooltip, model.trial, kind, name)
