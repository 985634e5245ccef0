"""The tables of a study of impact, cell by cell in words, for the text and the page alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onefold.impact_analysis import TUNE_ALL, Arm, Effect, Findings, Form, MeasuredModel, Property
from onefold.impact_analysis.advice import STRONG_CORRELATION, WEAK_CORRELATION
from onefold.report.impact.phrases import BETTER, WORSE, chance, change, signed, spoken
from onefold.report.plots.boxes import box_of
from onefold.report.table import Cell, Column, ColumnKind, Row, RowKind, Table, Tone, columns
from onefold.vocabulary import quantities

TITLES: Mapping[Form, str] = {"plain": "Plain models", "compressed": "Compressed models"}
EMPTY = Cell(quantities.NOTHING, "quiet")
SAME = 5e-5  # a relative difference below it is none
FAILURES_SHOWN = 50


def properties(found: Findings) -> list[Property]:
    """Those that something is said about."""
    said = {one.property for one in found.deviations}
    return [one for one in found.evidence.properties if one.name in said]


def effects(found: Findings, form: Form) -> Table:
    """What holding something fixed changes, beside "tune all": the study's tables 3 and 6."""
    shown = properties(found)
    lines = [*_baseline(found, form, shown)]
    group: Arm | None = None
    for arm in found.evidence.arms if shown else ():
        if arm.name == TUNE_ALL:
            continue
        group = arm if arm.kind == "group" else group
        belongs = group is not None and set(arm.fixed) < set(group.fixed)
        kind: RowKind = "group" if arm.kind == "group" else "member" if belongs else ""
        cells = [cell for one in shown for cell in _effect_cells(found.effect(arm.name, one.name, form))]
        lines.append(Row.of(arm.name.removeprefix("fix "), *cells, kind=kind))
    count = len(found.evidence.best_models(form=form))
    notes = (
        f"{BETTER} better, {WORSE} worse than tune all. Best model: how the best model of the arm differs from that of "
        f"tune all. Effect: of the best models together ({count} of tune all), the word of Cliff's delta where the "
        "difference is more than chance, otherwise the p-value.",
        "P-values are of the two-sided Mann-Whitney test, corrected by Benjamini-Hochberg over the whole table. Arms "
        "are drawn together (common draws), which makes the test careful rather than bold.",
    )
    return Table(
        f"effects-{form}",
        TITLES[form],
        columns("held fixed", ("best model", "effect") * len(shown)),
        tuple(lines),
        (*notes, *_unmeasured(found, form)),
        tuple((one.title, 2) for one in shown),
    )


def spread(found: Findings) -> Table:
    """The figures behind the boxes: how far a property spreads, as multiples of the least."""
    names = list(dict.fromkeys(one.models for one in found.distributions))
    by_place = {(one.property, one.models): one.scaled for one in found.distributions}
    lines = []
    for one in properties(found):
        cells: list[Cell] = []
        for name in names:
            values = by_place[one.name, name]
            box = box_of(values)
            middle = f"{quantities.factor(box.lower)} to {quantities.factor(box.upper)}"
            cells += (Cell(quantities.factor(box.median)), Cell(middle), Cell(quantities.factor(max(values))))
        lines.append(Row.of(one.title, *cells))
    counts = {one.models: len(one.scaled) for one in found.distributions}
    heads = tuple((f"{name} ({counts[name]})", 3) for name in names)
    titles = ("median", "middle half", "most") * len(names)
    notes = ("As multiples of the least value among the same models; in brackets how many models there are.",)
    return Table("spread", "How far properties spread", columns("property", titles), tuple(lines), notes, heads)


def changes(found: Findings) -> Table:
    """What compression changes about each best model: figure 4 in numbers."""
    lines = []
    for one in properties(found):
        values = found.changes[one.name]
        box = box_of(values)
        figures = (box.median, box.lower, box.upper, min(values), max(values))
        lines.append(Row.of(one.title, *(Cell(change(figure)) for figure in figures)))
    titles = columns("property", ("median", "lower quartile", "upper quartile", "least", "most"))
    return Table("changes", "What compression changes", titles, tuple(lines))


def deviations(found: Findings) -> Table:
    """How far the best models lie apart: the study's table 4."""
    titles = {one.name: one.title for one in found.evidence.properties}
    both = "compressed" in found.forms
    lines = []
    for one in found.deviations:
        cells = [Cell(f"{one.plain:,.3f}")]
        if both:
            cells.append(EMPTY if one.compressed is None else Cell(f"{one.compressed:,.3f}"))
        lines.append(Row.of(titles[one.property], *cells))
    count = len(found.evidence.best_models())
    notes = (f"The best value less the worst, as a share of the worst, among the best {count} models of tune all.",)
    head = columns("property", ("plain", "compressed") if both else ("plain",))
    return Table("deviations", "Largest deviation (LARD)", head, tuple(lines), notes)


def pairs(found: Findings) -> Table:
    """Whether models differ as they did once they are compressed: the study's table 5."""
    lines = []
    for one in properties(found):
        pair = found.pairs[one.name]
        statistic = EMPTY if pair.statistic is None else Cell(f"{pair.statistic:.2f}")
        cells = (Cell(f"{len(pair.delta):,}"), statistic, Cell(chance(pair.p), "" if pair.p is not None else "quiet"))
        lines.append(Row.of(one.title, *cells))
    notes = (
        "Kolmogorov-Smirnov test between the relative differences of all pairs of models, before and after. It takes "
        "pairs for independent, while each model is in many of them: a small p says more than there is to know.",
    )
    return Table("pairs", "Models two by two", columns("property", ("pairs", "distance", "p")), tuple(lines), notes)


def correlated(found: Findings, form: Form) -> Table:
    """Spearman's rank correlation of each two properties."""
    known = found.correlations[form]
    titles = {one.name: one.title for one in found.evidence.properties}
    lines = []
    for name, row in zip(known.names, known.matrix()):
        cells = [_correlation(found, form, name, other, value) for other, value in zip(known.names, row)]
        lines.append(Row.of(titles[name], *cells))
    notes = [f"Over the best {quantities.count(known.n, 'model')} of tune all."]
    if known.constant:
        notes.append(f"The same for all of them: {', '.join(titles[name] for name in known.constant)}.")
    head = columns("rank correlation", (titles[name] for name in known.names))
    return Table(f"correlations-{form}", TITLES[form], head, tuple(lines), (" ".join(notes),))


def best_models(found: Findings) -> Table:
    """The best models of "tune all", plain and compressed."""
    evidence, models = found.evidence, found.evidence.best_models()
    varied = [name for name, parameter in evidence.space.parameters.items() if parameter.size > 1]
    places = quantities.decimals([model.score for model in models])
    lines = []
    for model in models:
        cells = [Cell(quantities.metric(evidence.metric, model.score, places))]
        cells += [Cell(_both(model, one, places)) for one in evidence.properties]
        cells += [Cell(quantities.setting(model.config[name])) if name in model.config else EMPTY for name in varied]
        lines.append(Row.of(str(model.trial), *cells, trial=model.trial))
    head = columns("trial", (f"{evidence.metric} (validation)", *(one.title for one in evidence.properties)))
    words_of = {name for name in varied for model in models if isinstance(model.config.get(name), (str, bool))}
    head += tuple(Column(name, ColumnKind.SETTING, numeric=name not in words_of) for name in varied)
    arrow = ("Plain → compressed; one value where both are the same.",) if "compressed" in found.forms else ()
    return Table("best", "The best models of tune all", head, tuple(lines), arrow)


def failures(found: Findings) -> Table:
    """The trials without a result."""
    failed = sorted(found.evidence.failures.items())
    lines = tuple(Row.of(str(trial), Cell(why), trial=trial) for trial, why in failed[:FAILURES_SHOWN])
    more = len(failed) - len(lines)
    notes = (f"And {more} more. The JSON form of this report has them all.",) if more else ()
    return Table("failures", "Failures", columns("trial", ("reason",), numeric=False), lines, notes)


def _baseline(found: Findings, form: Form, shown: list[Property]) -> Iterator[Row]:
    """What the best model of "tune all" is like, in units."""
    sign = 1 if found.evidence.higher_is_better else -1
    best = max(found.evidence.best_models(form=form), key=lambda model: sign * model.score, default=None)
    if best is not None and shown:
        cells = [
            cell for one in shown for cell in (Cell(quantities.metric(one.name, best.form(form)[one.name])), Cell(""))
        ]
        yield Row.of(f"{TUNE_ALL}: trial {best.trial}", *cells, kind="baseline")


def _effect_cells(effect: Effect | None) -> tuple[Cell, Cell]:
    if effect is None:
        return EMPTY, EMPTY
    more = spoken(effect)
    relative = effect.best.relative
    best = Cell(*_marked(change(relative), effect.best.better if abs(relative) >= SAME else None), tooltip=more)
    delta = effect.compared.delta
    if effect.is_significant and delta is not None:
        better = (delta > 0) == effect.best.higher_is_better
        return best, Cell(*_marked(str(effect.compared.magnitude), better), tooltip=more)
    told = quantities.NOTHING if effect.p_adjusted is None else f"p {chance(effect.p_adjusted)}"
    return best, Cell(told, "quiet", more)


def _marked(said: str, better: bool | None) -> tuple[str, Tone]:
    if better is None:
        return said, "quiet"
    return (f"{said} {BETTER}", "better") if better else (f"{said} {WORSE}", "worse")


def _unmeasured(found: Findings, form: Form) -> list[str]:
    empty = [arm.name for arm in found.evidence.arms if not found.evidence.best_models(arm.name, form)]
    return [f"No {form} model was measured of: {', '.join(empty)}."] if empty else []


def _correlation(found: Findings, form: Form, one: str, other: str, value: float | None) -> Cell:
    if value is None or one == other:
        return Cell(signed(value), "quiet")
    pair = found.correlations[form].between(one, other)
    more = f"Spearman {signed(pair.spearman)}, p {chance(pair.spearman_p)}\nPearson {signed(pair.pearson)}, p "
    tone: Tone = "strong" if abs(value) >= STRONG_CORRELATION else "some" if abs(value) >= WEAK_CORRELATION else ""
    return Cell(signed(value), tone, more + chance(pair.pearson_p))


def _both(model: MeasuredModel, one: Property, places: int | None) -> str:
    told = [quantities.metric(one.name, form[one.name], places) for form in (model.plain, model.compressed) if form]
    return " → ".join(dict.fromkeys(told))
