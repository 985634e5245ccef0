"""The tables of an impact analysis, shared by the text and the HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from onefold.impact_analysis import TUNE_ALL, Arm, Effect, Findings, Form, MeasuredModel, Property
from onefold.impact_analysis.advice import STRONG_CORRELATION, WEAK_CORRELATION
from onefold.impact_analysis.findings import is_significant
from onefold.report.impact.phrases import BETTER, WORSE, change, coefficient, effect_details, p_value
from onefold.report.plots.boxes import box_of
from onefold.report.table import Cell, Column, ColumnKind, Row, RowKind, Table, Tone, columns
from onefold.vocabulary import quantities

TITLES: Mapping[Form, str] = {"plain": "Plain models", "compressed": "Compressed models"}
EMPTY = Cell(quantities.MISSING, "quiet")
NEGLIGIBLE = 5e-5  # relative differences below it are shown without a mark
FAILURES_SHOWN = 50


def properties(findings: Findings) -> list[Property]:
    """Return the properties that were analyzed."""
    analyzed = {deviation.property for deviation in findings.deviations}
    return [prop for prop in findings.evidence.properties if prop.name in analyzed]


def effects(findings: Findings, form: Form) -> Table:
    """Return the differences of each arm to "tune all", over pairs from the same draw."""
    shown = properties(findings)
    lines = [*_baseline(findings, form, shown), *_effect_rows(findings, form, shown, _effect_cells)]
    pairs = [effect.paired.n for effect in findings.effects if effect.form == form]
    notes = (
        f"{BETTER} better, {WORSE} worse than tune all. Best model: relative difference between the best models of the "
        f"arm and of tune all. Effect: over pairs of models from the same draw ({_range(pairs)} per arm), the "
        "magnitude of the paired Cliff's delta if the difference is significant, or whether the property rises or "
        "falls with the hyperparameter if that is, or else the p-value; = if no pair differs.",
        "P-values of two-sided Wilcoxon signed-rank tests, with the Benjamini-Hochberg correction over the tests of "
        "plain and compressed models.",
    )
    return Table(
        f"effects-{form}",
        TITLES[form],
        columns("held fixed", ("best model", "effect") * len(shown)),
        tuple(lines),
        (*notes, *_unmeasured(findings, form)),
        tuple((prop.title, 2) for prop in shown),
    )


def unpaired(findings: Findings, form: Form) -> Table:
    """Return the tests of the best models of each arm and of "tune all", as in the paper's tables 3 and 6."""
    shown = properties(findings)
    count = len(findings.evidence.best_models(form=form))
    notes = (
        f"Of the best models of the arm and of tune all ({count}). Mann-Whitney: the magnitude of Cliff's delta if the "
        "test is significant, or else the p-value. Arms share draws, which makes this test conservative.",
        "Spread: how many times wider the logarithms of the arm's models lie around their median, if the "
        "Brown-Forsythe test is significant, or else the p-value. Both with the Benjamini-Hochberg correction over the "
        "tests of plain and compressed models.",
    )
    return Table(
        f"unpaired-{form}",
        f"{TITLES[form]}, unpaired",
        columns("held fixed", ("Mann-Whitney", "spread") * len(shown)),
        tuple(_effect_rows(findings, form, shown, _unpaired_cells)),
        notes,
        tuple((prop.title, 2) for prop in shown),
    )


def _effect_rows(
    findings: Findings, form: Form, shown: list[Property], cells_of: Callable[[Effect | None], tuple[Cell, Cell]]
) -> Iterator[Row]:
    """Return one row per arm, members of a group below it."""
    group: Arm | None = None
    for arm in findings.evidence.arms if shown else ():
        if arm.name == TUNE_ALL:
            continue
        group = arm if arm.kind == "group" else group
        belongs = group is not None and set(arm.fixed) < set(group.fixed)
        kind: RowKind = "group" if arm.kind == "group" else "member" if belongs else ""
        cells = [cell for prop in shown for cell in cells_of(findings.effect(arm.name, prop.name, form))]
        yield Row.of(arm.name.removeprefix("fix "), *cells, kind=kind)


def spread(findings: Findings) -> Table:
    """Return the spread of each property, as multiples of the smallest value: the data of the box plots."""
    names = list(dict.fromkeys(distribution.models for distribution in findings.distributions))
    by_property = {
        (distribution.property, distribution.models): distribution.scaled for distribution in findings.distributions
    }
    lines = []
    for prop in properties(findings):
        cells: list[Cell] = []
        for name in names:
            values = by_property[prop.name, name]
            box = box_of(values)
            middle = f"{quantities.factor(box.lower)} to {quantities.factor(box.upper)}"
            cells += (Cell(quantities.factor(box.median)), Cell(middle), Cell(quantities.factor(max(values))))
        lines.append(Row.of(prop.title, *cells))
    counts = {distribution.models: len(distribution.scaled) for distribution in findings.distributions}
    heads = tuple((f"{name} ({counts[name]})", 3) for name in names)
    titles = ("median", "interquartile", "largest") * len(names)
    notes = ("As multiples of the smallest value among the same models; in brackets the number of models.",)
    return Table("spread", "Spread of properties", columns("property", titles), tuple(lines), notes, heads)


def changes(findings: Findings) -> Table:
    """Return the relative change of the best models by compression: the data of figure 4."""
    lines = []
    for prop in properties(findings):
        values = findings.changes[prop.name]
        box = box_of(values)
        figures = (box.median, box.lower, box.upper, min(values), max(values))
        lines.append(Row.of(prop.title, *(Cell(change(figure)) for figure in figures)))
    titles = columns("property", ("median", "lower quartile", "upper quartile", "smallest", "largest"))
    return Table("changes", "What compression changes", titles, tuple(lines))


def deviations(findings: Findings) -> Table:
    """Return the largest deviation among the best models: the paper's table 4."""
    titles = {prop.name: prop.title for prop in findings.evidence.properties}
    both = "compressed" in findings.forms
    lines = []
    for deviation in findings.deviations:
        cells = [Cell(f"{deviation.plain:,.3f}")]
        if both:
            cells.append(EMPTY if deviation.compressed is None else Cell(f"{deviation.compressed:,.3f}"))
            tone: Tone = "some" if deviation.is_significant else "quiet"
            cells.append(Cell(_p_text(deviation.spread_p_adjusted), tone))
        lines.append(Row.of(titles[deviation.property], *cells))
    count = len(findings.evidence.best_models())
    notes = [f"|best - worst| / worst, among the best {count} models of tune all."]
    if both:
        notes.append(
            "Spread: Brown-Forsythe test between compressed and plain models, with the Benjamini-Hochberg correction."
        )
    head = columns("property", ("plain", "compressed", "spread") if both else ("plain",))
    return Table("deviations", "Largest deviation (LARD)", head, tuple(lines), tuple(notes))


def pairs(findings: Findings) -> Table:
    """Return the differences between models before and after compression: the paper's table 5."""
    lines = []
    for prop in properties(findings):
        pair = findings.pairs[prop.name]
        statistic = EMPTY if pair.statistic is None else Cell(f"{pair.statistic:.2f}")
        cells = (Cell(f"{len(pair.delta):,}"), statistic, Cell(p_value(pair.p), "" if pair.p is not None else "quiet"))
        lines.append(Row.of(prop.title, *cells))
    notes = (
        "Kolmogorov-Smirnov test between the relative differences of all pairs of models, before and after "
        "compression. The test assumes independent pairs, but each model is in many of them: the p-value is too small.",
    )
    return Table("pairs", "Pairs of models", columns("property", ("pairs", "statistic", "p")), tuple(lines), notes)


def correlated(findings: Findings, form: Form) -> Table:
    """Return Spearman's rank correlation between properties."""
    correlations = findings.correlations[form]
    titles = {prop.name: prop.title for prop in findings.evidence.properties}
    lines = []
    for name, row in zip(correlations.names, correlations.matrix()):
        cells = [_correlation(findings, form, name, other, value) for other, value in zip(correlations.names, row)]
        lines.append(Row.of(titles[name], *cells))
    notes = [f"Over the best {quantities.count(correlations.n, 'model')} of tune all."]
    if correlations.constant:
        notes.append(f"Constant: {', '.join(titles[name] for name in correlations.constant)}.")
    head = columns("rank correlation", (titles[name] for name in correlations.names))
    return Table(f"correlations-{form}", TITLES[form], head, tuple(lines), (" ".join(notes),))


def best_models(findings: Findings) -> Table:
    """Return the properties and settings of the best models of "tune all"."""
    evidence, models = findings.evidence, findings.evidence.best_models()
    varied = [name for name, parameter in evidence.space.parameters.items() if parameter.size > 1]
    places = quantities.decimals([model.score for model in models])
    lines = []
    for model in models:
        cells = [Cell(quantities.metric(evidence.metric, model.score, places))]
        cells += [Cell(_both(model, prop, places)) for prop in evidence.properties]
        cells += [Cell(quantities.setting(model.config[name])) if name in model.config else EMPTY for name in varied]
        lines.append(Row.of(str(model.trial), *cells, trial=model.trial))
    head = columns("trial", (f"{evidence.metric} (validation)", *(prop.title for prop in evidence.properties)))
    non_numeric = {name for name in varied for model in models if isinstance(model.config.get(name), (str, bool))}
    head += tuple(Column(name, ColumnKind.SETTING, numeric=name not in non_numeric) for name in varied)
    arrow = ("Plain → compressed; one value if both are equal.",) if "compressed" in findings.forms else ()
    return Table("best", "The best models of tune all", head, tuple(lines), arrow)


def failures(findings: Findings) -> Table:
    """Return the failed trials and their reasons."""
    failed = sorted(findings.evidence.failures.items())
    lines = tuple(Row.of(str(trial), Cell(why), trial=trial) for trial, why in failed[:FAILURES_SHOWN])
    more = len(failed) - len(lines)
    notes = (f"And {more} more; the JSON report has all of them.",) if more else ()
    return Table("failures", "Failures", columns("trial", ("reason",), numeric=False), lines, notes)


def _baseline(findings: Findings, form: Form, shown: list[Property]) -> Iterator[Row]:
    """Return the row of the best model of "tune all", in units."""
    sign = 1 if findings.evidence.higher_is_better else -1
    best = max(findings.evidence.best_models(form=form), key=lambda model: sign * model.score, default=None)
    if best is not None and shown:
        cells = [
            cell
            for prop in shown
            for cell in (Cell(quantities.metric(prop.name, best.form(form)[prop.name])), Cell(""))
        ]
        yield Row.of(f"{TUNE_ALL}: trial {best.trial}", *cells, kind="baseline")


def _effect_cells(effect: Effect | None) -> tuple[Cell, Cell]:
    if effect is None:
        return EMPTY, EMPTY
    tooltip = effect_details(effect)
    relative = effect.best.relative
    best = Cell(
        *_marked(change(relative), effect.best.better if abs(relative) >= NEGLIGIBLE else None), tooltip=tooltip
    )
    return best, effect_cell(effect, tooltip)


def effect_cell(effect: Effect, tooltip: str) -> Cell:
    """Return the magnitude of a significant paired difference, the direction of a trend, or else the p-value."""
    paired = effect.paired
    if is_significant(effect.paired_p_adjusted) and paired.delta is not None:
        better = (paired.delta > 0) == effect.best.higher_is_better
        return Cell(*_marked(str(paired.magnitude), better), tooltip=tooltip)
    if effect.is_significant:
        return Cell("rises" if effect.trend is not None and (effect.trend.delta or 0) > 0 else "falls", "some", tooltip)
    if paired.n and not paired.differing:
        return Cell("=", "quiet", tooltip)
    return Cell(_p_text(effect.paired_p_adjusted), "quiet", tooltip)


def _unpaired_cells(effect: Effect | None) -> tuple[Cell, Cell]:
    if effect is None:
        return EMPTY, EMPTY
    tooltip = effect_details(effect)
    test, spread = effect.compared, effect.spread
    cells = [Cell(_p_text(p), "quiet", tooltip) for p in (effect.p_adjusted, effect.spread_p_adjusted)]
    if is_significant(effect.p_adjusted) and test.delta is not None:
        better = (test.delta > 0) == effect.best.higher_is_better
        cells[0] = Cell(*_marked(str(test.magnitude), better), tooltip=tooltip)
    if is_significant(effect.spread_p_adjusted):
        text = "varies only here" if spread.ratio is None else quantities.factor(spread.ratio)
        cells[1] = Cell(text, "some", tooltip)
    return cells[0], cells[1]


def _p_text(p: float | None) -> str:
    return quantities.MISSING if p is None else f"p {p_value(p)}"


def _range(counts: list[int]) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _marked(text: str, better: bool | None) -> tuple[str, Tone]:
    if better is None:
        return text, "quiet"
    return (f"{text} {BETTER}", "better") if better else (f"{text} {WORSE}", "worse")


def _unmeasured(findings: Findings, form: Form) -> list[str]:
    empty = [arm.name for arm in findings.evidence.arms if not findings.evidence.best_models(arm.name, form)]
    return [f"Arms without a measured {form} model: {', '.join(empty)}."] if empty else []


def _correlation(findings: Findings, form: Form, first: str, other: str, value: float | None) -> Cell:
    if value is None or first == other:
        return Cell(coefficient(value), "quiet")
    pair = findings.correlations[form].between(first, other)
    more = (
        f"Spearman {coefficient(pair.spearman)}, p {p_value(pair.spearman_p)}\nPearson {coefficient(pair.pearson)}, p "
    )
    tone: Tone = "strong" if abs(value) >= STRONG_CORRELATION else "some" if abs(value) >= WEAK_CORRELATION else ""
    return Cell(coefficient(value), tone, more + p_value(pair.pearson_p))


def _both(model: MeasuredModel, prop: Property, places: int | None) -> str:
    values = [quantities.metric(prop.name, form[prop.name], places) for form in (model.plain, model.compressed) if form]
    return " → ".join(dict.fromkeys(values))
