"""The tables of the retraining report, for text and HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onefold.report.retraining.facts import numbered, predicted_bytes
from onefold.report.table import Cell, Column, ColumnKind, Row, Table, columns
from onefold.vocabulary import quantities
from onefold.vocabulary.retraining import LayerCost, MicroWindow, PlanEstimate, RetrainingPlan, RetrainingSummary

PREDICTED = "predicted"
SHOWN = 30  # plans
WINDOWS_SHOWN = 100
LAYERS_SHOWN = 200


def plans_table(retrained: RetrainingSummary, shown: int = SHOWN) -> Table:
    """Return all plans with predictions and results; if there are many, those that were tried come first."""
    numbers = numbered(retrained)
    tried = {plan: [window for window in retrained.windows if window.plan == plan] for plan in numbers}
    first = sorted(numbers, key=lambda plan: (not tried[plan] and plan != retrained.chosen, numbers[plan]))[:shown]
    known = {estimate.plan: estimate for estimate in retrained.plans}
    lines = []
    for plan in sorted(first, key=lambda plan: numbers[plan]):
        cells = [*_settings(plan, list(numbers)), *_expected(known.get(plan), predicted_bytes(retrained, plan))]
        gain = next((window.gain_per_s for window in reversed(tried[plan])), None)
        before = known[plan].gain_per_s if plan in known else None
        cells += [_rate(before if gain is None else gain), str(len(tried[plan]))]
        cells.append("yes" if plan == retrained.chosen else "")
        lines.append(Row.of(str(numbers[plan]), *cells, trial=numbers[plan]))
    varied = _varied(list(numbers))
    head = (*_columns(varied), *(Column(title, ColumnKind.TRIAL) for title in ("gain/s", "micro-windows")))
    head += (Column("chosen", ColumnKind.TRIAL, numeric=False),)
    notes = [*_common(list(numbers)), "Gain: relative decrease of the loss per second, as last measured."]
    if len(numbers) > shown:
        notes.append(f"{shown} of {len(numbers)} plans. The JSON form of this report has them all.")
    heads = (*_heads(varied), ("measured", 1), ("", 1), ("", 1))
    return Table("plans", "Plans", head, tuple(lines), (" ".join(notes),), heads)


def feasible_table(plans: Sequence[PlanEstimate]) -> Table:
    """Return plans that were predicted but not tried."""
    every = [estimate.plan for estimate in plans]
    lines = []
    for index, estimate in enumerate(plans):
        cells = [
            *_settings(estimate.plan, every),
            *_expected(estimate, estimate.memory_bytes),
            _rate(estimate.gain_per_s),
        ]
        lines.append(Row.of(str(index + 1), *cells))
    varied = _varied(every)
    head = (*_columns(varied), Column("gain/s", ColumnKind.TRIAL))
    return Table("plans", "Plans", head, tuple(lines), tuple(_common(every)), (*_heads(varied), ("measured", 1)))


def windows_table(retrained: RetrainingSummary) -> Table:
    """Return the micro-windows in order."""
    numbers, shown = numbered(retrained), retrained.windows[:WINDOWS_SHOWN]
    scores = quantities.decimals([window.score for window in shown if window.score is not None])
    losses = quantities.decimals([window.loss for window in shown])
    lines = []
    for window in shown:
        number = numbers[window.plan]
        cells = (str(number), *_course(retrained.metric, window, scores, losses), *_memory(window))
        lines.append(Row.of(str(window.number), *cells, trial=number))
    titles = ("plan", "began", "time", "updates", "loss", retrained.metric, "gain/s", "merit", "memory", "memory")
    head = columns("micro-window", (*titles, "measured/predicted", "limit at its end"))
    notes = [
        f"Merit: alpha × gain + (1 - alpha) / time, both relative to the best plan, with alpha {retrained.alpha:g}."
    ]
    if len(retrained.windows) > len(shown):
        notes.append(f"The first {len(shown)} of {len(retrained.windows)}. The JSON form of this report has them all.")
    heads = (("", 8), (PREDICTED, 1), ("measured", 1), ("", 2))
    return Table("micro-windows", "Micro-windows", head, tuple(lines), (" ".join(notes),), heads)


def layers_table(layers: Sequence[LayerCost]) -> Table:
    """Return the profiled cost of each layer, and the total."""
    lines = [Row.of(layer.name, *_costs([layer])) for layer in layers[:LAYERS_SHOWN]]
    lines.append(Row.of("all", *_costs(layers), kind="baseline"))
    titles = ("weights", "saved activations", "forward", "backward")
    notes = ["Saved activations and times are per sample."]
    if len(layers) > LAYERS_SHOWN:
        notes.append(f"The first {LAYERS_SHOWN} of {len(layers)}. The JSON form of this report has them all.")
    return Table("layers", "Per-layer costs", columns("layer", titles), tuple(lines), (" ".join(notes),))


def _columns(varied: Sequence[str]) -> tuple[Column, ...]:
    titles = ("batch", "frozen", "segments", *varied, "memory", "time/update", "samples/s")
    words_of = ("plan", "optimizer")
    return tuple(Column(title, ColumnKind.TRIAL, numeric=title not in words_of) for title in ("plan", *titles))


def _heads(varied: Sequence[str]) -> tuple[tuple[str, int], ...]:
    return ("", 3 + len(varied)), (PREDICTED, 3)


def _varied(plans: Sequence[RetrainingPlan]) -> list[str]:
    """Return the minor settings that differ between plans."""
    return [name for name in ("epochs", "lr", "optimizer") if len({getattr(plan, name) for plan in plans}) > 1]


def _common(plans: Sequence[RetrainingPlan]) -> Iterator[str]:
    """State the minor settings that all plans share."""
    varied = _varied(plans)
    settings = {name: _setting(plan, name) for plan in plans[:1] for name in ("epochs", "lr", "optimizer")}
    shared = [f"{name} {value}" for name, value in settings.items() if name not in varied]
    if shared:
        yield f"The same for all: {', '.join(shared)}."


def _settings(plan: RetrainingPlan, plans: Sequence[RetrainingPlan]) -> Iterator[str]:
    yield f"{plan.batch_size} × {plan.accumulation}"
    yield quantities.share(plan.freeze_rate)
    yield str(plan.segments)
    yield from (_setting(plan, name) for name in _varied(plans))


def _setting(plan: RetrainingPlan, name: str) -> str:
    return quantities.setting(getattr(plan, name))


def _expected(estimate: PlanEstimate | None, memory_bytes: int | None) -> Iterator[str]:
    yield quantities.size(memory_bytes)
    yield quantities.MISSING if estimate is None else quantities.duration(estimate.update_s)
    yield quantities.MISSING if estimate is None else quantities.number(estimate.samples_per_s)


def _course(metric: str, window: MicroWindow, scores: int | None, losses: int | None) -> Iterator[str]:
    yield quantities.duration(window.began_s)
    yield quantities.duration(window.ended_s - window.began_s)
    yield f"{window.updates:,}"
    yield quantities.metric("", window.loss, losses)
    yield quantities.metric(metric, window.score, scores)
    yield _rate(window.gain_per_s)
    yield quantities.metric("", window.merit, 2)


def _memory(window: MicroWindow) -> Iterator[str]:
    yield quantities.size(window.predicted_bytes)
    measured, predicted = window.measured_bytes, window.predicted_bytes
    yield quantities.size(measured)
    yield quantities.MISSING if measured is None or predicted <= 0 else f"{measured / predicted:.2f}"
    yield quantities.size(window.limit_bytes)


def _rate(gain_per_s: float | None) -> str:
    if gain_per_s is None:
        return quantities.MISSING
    text = quantities.rounded(gain_per_s, 3)
    return f"−{text[1:]}" if text.startswith("-") else text


def _costs(layers: Sequence[LayerCost]) -> tuple[Cell, ...]:
    return (
        Cell(quantities.size(sum(layer.weight_bytes for layer in layers))),
        Cell(quantities.size(sum(layer.saved_bytes for layer in layers))),
        Cell(quantities.duration(sum(layer.forward_s for layer in layers))),
        Cell(quantities.duration(sum(layer.backward_s for layer in layers))),
    )
