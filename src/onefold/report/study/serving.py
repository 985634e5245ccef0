"""The serving section of a study report: the surface, recommended points, alternatives and Pareto fronts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from onefold.report.plots.heatmap import heatmap
from onefold.report.plots.marks import Plot
from onefold.report.plots.tradeoff import tradeoff
from onefold.report.study.summary import Summary
from onefold.report.table import Column, ColumnKind, Row, Table
from onefold.serving.ranked_trials import compared_costs, energy_source, source_label, surface_costs
from onefold.serving.recommendation import FRONT_METRICS, DeviceRecommendation, Recommendation
from onefold.vocabulary import quantities
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.ranking import is_rated
from onefold.vocabulary.records import RungState, Trial, to_json
from onefold.vocabulary.serving import Served, Surface

MAX_ALTERNATIVES = 12
SOURCES = {  # of numbers that were not measured on the device
    "emulated": "measured on this machine, confined to the device's cores and memory, and scaled by a roofline model",
    "predicted": "from other points, without a run; with the 95 % prediction interval",
    "cpu-time": "CPU time on the device, where other programs took too much of it to time batches by the clock",
    "modelled": "from a model of the device's power, not from a meter",
}
TITLES = {
    "latency_s": "latency",
    "latency_p99_s": "p99",
    "throughput_per_s": "samples/s",
    "energy_per_sample_j": "energy/sample",
    "size_bytes": "size",
    "serving_memory_bytes": "memory",
}
KNOBS = ("graph_level", "execution", "precision")


@dataclass(frozen=True, slots=True)
class DeviceSection:
    """The serving section of one device."""

    on: DeviceRecommendation
    surface: Plot | None  # of the recommended trial, if it is known
    points: Table  # one row per optimization target
    alternatives: Table
    remark: str  # on the alternatives


def serving_parts(summary: Summary) -> list[DeviceSection]:
    """Return one section per device; none if there is no recommendation."""
    recommendation = summary.recommendation
    if recommendation is None:
        return []
    return [_section(summary, recommendation, on, index) for index, on in enumerate(recommendation.devices)]


def _section(summary: Summary, recommendation: Recommendation, on: DeviceRecommendation, index: int) -> DeviceSection:
    surface = summary.servings.get((recommendation.trial, on.device))
    title = f"Serving surface on {on.device}"
    drawn = None if surface is None else heatmap(surface, on.points, f"surface-{index}", title)
    return DeviceSection(
        on,
        drawn,
        points_table(on, surface),
        alternatives_table(summary, recommendation, on),
        _remark(summary, recommendation, on),
    )


def format_cost(metric: str, value: float | None, source_label: str = "") -> str:
    """Format a serving cost; "≈" marks one that was not measured on the device."""
    if value is None:
        return quantities.MISSING
    text = quantities.rounded(value, 4) if metric == "throughput_per_s" else quantities.metric(metric, value)
    return f"≈ {text}" if source_label else text


def points_table(on: DeviceRecommendation, surface: Surface | None) -> Table:
    """Return the recommended points with their costs; knobs that were not varied are left out."""
    varied = [knob for knob in KNOBS if surface and len({getattr(s.point, knob) for s in surface.served}) > 1]
    titles = ("batch", "threads", *(knob.replace("_", " ") for knob in varied))
    columns = [Column("best for", ColumnKind.TRIAL, numeric=False)]
    columns += [Column(title, ColumnKind.SETTING, numeric=title in ("batch", "threads")) for title in titles]
    columns += [Column(f"batch {TITLES['latency_s']}", ColumnKind.GOAL)]
    columns += [Column(TITLES[m], ColumnKind.METRIC) for m in _POINT_METRICS[1:]]
    columns += [Column(title, ColumnKind.COST, numeric=False) for title in ("times are", "energy is")]
    rows = []
    for purpose, served in on.points.items():
        point = served.point
        settings = (point.batch_size, point.threads, *(getattr(point, knob) for knob in varied))
        costs = (
            format_cost(metric, value, source_label(served, metric)) for metric, value in _point_costs(served).items()
        )
        rows.append(Row.of(purpose, *map(str, settings), *costs, served.source.value, energy_source(served)))
    return Table("points", "Serving points", tuple(columns), tuple(rows))


_POINT_METRICS = ("latency_s", "latency_p99_s", "throughput_per_s", "energy_per_sample_j", "serving_memory_bytes")


def _point_costs(served: Served) -> Mapping[str, float | None]:
    figures = (served.latency_s, served.p99_s, served.throughput_per_s, served.energy_per_sample_j, served.memory_bytes)
    return dict(zip(_POINT_METRICS, figures))


def alternatives_table(summary: Summary, recommendation: Recommendation, on: DeviceRecommendation) -> Table:
    """Return the trials close to the top-1 in quality, with their costs relative to it; cheapest first."""
    metrics = [
        m for m in TITLES if m != "latency_p99_s" and any(m in alternative.costs for alternative in on.alternatives)
    ]
    labels = {metric: {c.labels.get(metric, "") for c in on.alternatives if metric in c.costs} for metric in metrics}
    shared = {metric: next(iter(sources)) if len(sources) == 1 else "" for metric, sources in labels.items()}
    columns = [Column("trial", ColumnKind.TRIAL), Column("", ColumnKind.TRIAL, numeric=False)]
    columns.append(Column(recommendation.quality.metric, ColumnKind.GOAL))
    columns += [
        Column(f"{TITLES[metric]} ({source})" if (source := shared[metric]) else TITLES[metric], ColumnKind.METRIC)
        for metric in metrics
    ]
    columns.append(Column("level", ColumnKind.COST))
    rows = []
    for alternative in on.alternatives[:MAX_ALTERNATIVES]:
        surface = summary.servings.get((alternative.trial, on.device))
        cells = [str(alternative.trial), _role(recommendation, on, alternative.trial, alternative.keeps)]
        cells.append(summary.format(recommendation.quality.metric, alternative.quality))
        costs = surface_costs(surface)[0] if surface and len(on.alternatives) == 1 else alternative.costs
        for metric in metrics:
            way = alternative.labels.get(metric, "")
            cell = format_cost(metric, costs.get(metric), way)
            if alternative.trial != on.top and metric in alternative.relative:
                cell += f" ({alternative.relative[metric]:.2f}×)"
            cells.append(f"{cell} {way}" if way and not shared[metric] else cell)
        rows.append(Row.of(*cells, str(alternative.level), trial=alternative.trial))
    return Table("alternatives", "Alternatives", tuple(columns), tuple(rows))


def _role(recommendation: Recommendation, on: DeviceRecommendation, trial: int, keeps: bool) -> str:
    roles = ["recommended"] * (trial == recommendation.trial) + ["top-1"] * (trial == on.top)
    return ", ".join(roles + ["misses a requirement"] * (not keeps))


def _remark(summary: Summary, recommendation: Recommendation, on: DeviceRecommendation) -> str:
    near = "within one point or one percent of it"
    others = sum(alternative.near and alternative.trial != on.top for alternative in on.alternatives)
    rivals = quantities.count(others, "other trial") if others else "no other trial"
    order = " Cheapest first; × is a cost as a multiple of its cost." if len(on.alternatives) > 1 else ""
    shown = (
        f" {MAX_ALTERNATIVES} of {len(on.alternatives)} are shown." if len(on.alternatives) > MAX_ALTERNATIVES else ""
    )
    again = f" {summary.remeasured}" if len(on.alternatives) > 1 and summary.remeasured else ""
    return f"Trial {on.top} has the {recommendation.quality}; {rivals} came {near}.{order}{shown}{again}"


def trade_offs(summary: Summary) -> list[Plot]:
    """Plot quality against latency, energy and size on each device, with the Pareto front of the two."""
    recommendation, plots = summary.recommendation, []
    for index, on in enumerate(recommendation.devices if recommendation else ()):
        for metric in FRONT_METRICS:
            # The file size is the same on every device.
            if (metric != "size_bytes" or index == 0) and (plot := _trade_off(summary, on, metric)) is not None:
                plots.append(replace(plot, name=f"{plot.name}-{index}"))
    return plots


def _trade_off(summary: Summary, on: DeviceRecommendation, metric: str) -> Plot | None:
    recommendation = summary.recommendation
    if recommendation is None or recommendation.quality.metric == metric:
        return None
    quality, require = recommendation.quality, summary.objective.require
    pair = (
        Objective(quality.metric, metric, require)
        if quality.maximize
        else Objective(minimize=(quality.metric, metric), require=require)
    )
    several = len(summary.devices) > 1
    seen = [
        _on_device(trial, summary.servings[trial.number, on.device], several=several)
        for trial in _compared(summary, on)
    ]
    seen = [trial for trial in seen if is_rated(trial.metrics, pair)]
    if len(seen) < 2:
        return None
    front = tuple(seen[index] for index in pair.front([trial.metrics for trial in seen]))
    sources = {surface_costs(summary.servings[trial.number, on.device])[1].get(metric, "") for trial in seen}
    labels = {metric: source} if (source := ", ".join(sorted(filter(None, sources)))) else {}
    view = replace(summary, objective=pair, ranking=tuple(seen), front=front, labels=labels)
    first, second = pair.goals
    title = f"{quality.metric.capitalize()} against {TITLES[metric].replace('/', ' per ')}"
    caption = f"Trials of the top levels on {on.device}" + (f"; {metric} is {source}." if source else ".")
    drawn = tradeoff(view, (first, second), front="Pareto front of these two, among the trials of this plot")
    return replace(drawn, name=f"tradeoff-{metric}", title=title, caption=caption)


def _compared(summary: Summary, on: DeviceRecommendation) -> Iterator[Trial]:
    numbers = set(on.compared)
    return (trial for trial in summary.trials if trial.number in numbers)


def _on_device(trial: Trial, surface: Surface, *, several: bool) -> Trial:
    """Return the trial with the metrics of this device under their unqualified names."""
    costs, _ = compared_costs(trial, surface, several=several)
    rungs = (
        replace(rung, metrics={**rung.metrics, **costs}) if rung.state is RungState.DONE else rung
        for rung in trial.rungs
    )
    return replace(trial, rungs=tuple(rungs))


def explained(summary: Summary) -> list[tuple[str, str]]:
    """Return the source labels that occur, with their meaning."""
    used = {source for labels in summary.labels.values() for source in labels.split(", ")}
    used |= {served.source.value for surface in summary.servings.values() for served in surface.served}
    return [(source, meaning) for source, meaning in SOURCES.items() if source in used]


def serving_json(summary: Summary) -> dict[str, Any]:
    """Return the serving section as JSON values; trials of one architecture share a surface."""
    shared: dict[tuple[str, str, tuple[Served, ...]], tuple[Surface, list[int]]] = {}
    for (trial, device), surface in summary.servings.items():
        shared.setdefault((surface.signature, device, surface.served), (surface, []))[1].append(trial)
    surfaces = [{"trials": trials, **to_json(surface)} for surface, trials in shared.values()]
    return {
        "devices": summary.devices,
        "labels": summary.labels,
        "recommendation": summary.recommendation,
        "surfaces": surfaces,
    }
