"""The report of an impact analysis as text, JSON and HTML, from synthetic measurements."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from page_checks import checked

from onefold import Choice, Float, Space
from onefold.impact_analysis import TUNE_ALL, Arm, Findings, ImpactMeasurements, MeasuredModel, findings
from onefold.impact_analysis.advice import advised_model
from onefold.report.impact import SideBySideReport, tables
from onefold.report.impact.page import as_html
from onefold.report.impact.phrases import change, p_value
from onefold.report.impact.plain import as_json
from onefold.report.impact.shares import shares
from onefold.report.impact.text import as_text
from onefold.report.impact.tradeoffs import tradeoffs
from onefold.report.plots.boxes import box_of, boxes
from onefold.report.plots.density import bandwidth, curve_of, density
from onefold.report.table import Table
from onefold.vocabulary import quantities
from onefold.vocabulary.records import Config

EVIL = "<script>alert('x')</script>&\"quoted\" </title></svg>"
SPACE = Space(model={"width": Choice(8, 16, 32, default=16), "depth": Choice(1, 2, default=1)}, lr=Float(1e-3, 1e-1))


def model(trial: int, *, compressed: bool = True) -> MeasuredModel:
    """A model whose costs grow with its width; all numbers are synthetic."""
    width, depth = (8, 16, 32)[trial % 3] if trial < 12 else 16, 1 + trial % 2
    accuracy, cost = 0.9 - 0.01 * trial + 0.001 * width, width * width * depth * (1 + 0.01 * trial)
    plain = {"accuracy": accuracy, "latency_s": 1e-5 * cost, "size_bytes": 400.0 * cost, "flops": 2000.0}
    smaller = {"accuracy": accuracy - 0.002 * (trial % 4), "latency_s": 6e-6 * cost * (1 + 0.3 * (trial % 4))}
    smaller |= {"size_bytes": 90.0 * cost + 9000, "flops": 2000.0}
    config = Config(width=width, depth=depth, lr=0.001 * (trial + 1))
    return MeasuredModel(trial, config, accuracy + 0.001, plain, smaller if compressed else {})


def evidence(count: int = 12, *, compressed: bool = True) -> ImpactMeasurements:
    """Three arms that share models: all tuned, the group held fixed, the width held fixed."""
    models = {trial: model(trial, compressed=compressed) for trial in range(count)}
    narrow = tuple(trial for trial in models if trial % 3 == 1)
    arms = (
        Arm(TUNE_ALL, "all", (), tuple(models)),
        Arm("fix model", "group", ("width", "depth"), narrow[::2]),
        Arm("fix width", "hyperparameter", ("width",), narrow),
    )
    best = {TUNE_ALL: tuple(models)[:6], "fix model": narrow[::2], "fix width": narrow}
    pairs = {"fix model": tuple((trial, trial - 1) for trial in narrow[::2])}
    pairs["fix width"] = tuple((trial, trial - 1) for trial in narrow)
    return ImpactMeasurements(
        "digits",
        "accuracy",
        True,
        SPACE,
        arms,
        best,
        {trial: item.config for trial, item in models.items()},
        {trial: item.score for trial, item in models.items()},
        models,
        "this machine",
        "half of the weights set to zero",
        {"latency_s": "median of 30 runs", "size_bytes": "of the file"},
        pairs=pairs,
    )


@cache
def findings_of(case: str) -> Findings:
    return findings(CASES[case]())


def lost() -> ImpactMeasurements:
    """The last arm has no model, and the message of a failure has control characters."""
    usual = evidence()
    return replace(usual, best={**usual.best, "fix width": ()}, failures={4: "out of\x1b[2J memory\n", 10: "diverged"})


def hostile() -> ImpactMeasurements:
    """Every name given by a user attempts an injection."""
    usual = evidence()
    arms = tuple(replace(arm, name=arm.name if arm.kind == "all" else f"{arm.name}{EVIL}") for arm in usual.arms)
    renamed = {old.name: new.name for old, new in zip(usual.arms, arms)}
    models = {
        trial: replace(
            item,
            config=Config({**item.config, "kind": EVIL}),
            plain={**item.plain, EVIL: item.plain["accuracy"]},
            compressed={**item.compressed, EVIL: item.compressed["accuracy"]},
        )
        for trial, item in usual.models.items()
    }
    return replace(
        usual,
        workload=EVIL,
        metric=EVIL,
        device=EVIL,
        recipe=EVIL,
        ways={EVIL: EVIL},
        failures={4: EVIL},
        space=Space(**SPACE.groups, other={"kind": Choice(EVIL, "plain")}),
        arms=arms,
        best={renamed[name]: trials for name, trials in usual.best.items()},
        pairs={renamed[name]: pairs for name, pairs in usual.pairs.items()},
        configs={trial: item.config for trial, item in models.items()},
        models=models,
    )


def odd() -> ImpactMeasurements:
    """The metric of one model is 0, and an unused number is not finite."""
    usual = evidence()
    model = usual.models[3]
    return replace(
        usual, models={**usual.models, 3: replace(model, plain={**model.plain, "accuracy": 0.0, "loss": math.nan})}
    )


CASES = {
    "usual": evidence,
    "plain only": lambda: evidence(compressed=False),
    "two models": lambda: evidence(2),
    "no models": lambda: evidence(0),
    "one model": lambda: replace(evidence(1), best={TUNE_ALL: (0,), "fix model": (), "fix width": ()}),
    "an arm lost": lost,
    "hostile": hostile,
    "odd": odd,
}


def sheets(result: Findings) -> list[Table]:
    both = [tables.changes, tables.pairs] if result.changes else []
    each = [
        make(result, form) for make in (tables.effects, tables.unpaired, tables.correlated) for form in result.forms
    ]
    alone = (tables.spread, tables.deviations, tables.best_models, tables.failures, *both)
    return [*each, *(make(result) for make in alone)]


@pytest.mark.parametrize("case", CASES)
def test_every_study_has_a_valid_page_text_and_json(case: str) -> None:
    html, text = as_html(findings_of(case)), as_text(findings_of(case))
    checked(html)
    assert len(html) < 150_000
    assert all(line == line.rstrip() for line in text.splitlines())
    assert all(character.isprintable() or character == "\n" for character in text)
    data = as_json(findings_of(case))
    assert json.loads(json.dumps(data, allow_nan=False)) == data


@pytest.mark.parametrize("case", ["usual", "plain only", "two models", "an arm lost"])
@pytest.mark.parametrize("width", [60, 100, 400])
def test_the_text_has_every_cell_of_every_table(case: str, width: int) -> None:
    text = as_text(findings_of(case), width)
    for sheet in sheets(findings_of(case)):
        if not sheet.rows:
            continue
        assert all(column.title in text for column in sheet.columns)
        for line in sheet.rows:
            assert line.name in text
            assert all(" ".join(cell.text.split()).replace("\x1b", " ") in text for cell in line.cells)
    assert max(len(line) for line in text.splitlines() if "→" not in line and "\x1b" not in line) <= max(width, 75)


def test_page_and_text_show_shared_and_failed_trials() -> None:
    page = checked(as_html(findings_of("an arm lost"))).text
    for form in (page, as_text(findings_of("an arm lost"))):
        assert "Impact analysis: digits" in form
        assert "of 18: configurations that arms share" in form
        assert "2 failed" in form
        assert "diverged" in form
        assert "half of the weights set to zero" in form
        assert "Arms without a measured plain model: fix width." in form
        assert "median of 30 runs" in form


def test_the_page_has_all_its_parts() -> None:
    ids = set(checked(as_html(findings_of("usual"))).ids)
    plots = {"spread-all", "spread-best", "spread-best-compressed", "changes", "densities"}
    named = {
        "effects-plain",
        "effects-compressed",
        "unpaired-plain",
        "deviations",
        "pairs",
        "correlations-plain",
        "best",
    }
    assert ids >= plots | named
    fewer = set(checked(as_html(findings_of("plain only"))).ids)
    assert not fewer & {"effects-compressed", "changes", "densities", "pairs", "spread-best-compressed"}


def test_names_given_by_users_are_escaped() -> None:
    html = as_html(findings_of("hostile"))
    assert checked(html).text.count("<script>alert('x')</script>") > 20
    assert "<script>alert" not in html


def test_effects_name_the_baseline_first_and_put_members_below_their_group() -> None:
    sheet = tables.effects(findings_of("usual"), "plain")
    assert [(line.name, line.kind) for line in sheet.rows] == [
        ("tune all: trial 2", "baseline"),
        ("model", "group"),
        ("width", "member"),
    ]
    accuracy, _, latency, *_ = sheet.rows[0].cells[1:]
    assert (accuracy.text, latency.text) == ("0.912", "10.4 ms")
    best = sheet.rows[1].cells[3]  # the best of the arm is trial 1: 16 wide and 2 deep instead of 32 and 1
    assert (best.text, best.tone) == ("−50.5 % ▴", "better")
    for said in (
        "2 pairs, of which 2 differ: W 3",
        "paired Cliff's delta",
        "U 7.5",
        "n 2 and 6",
        "adjusted p",
        "Cliff's delta",
        "95 % interval",
    ):
        assert said in best.tooltip


def test_significant_effects_show_their_magnitude_and_others_their_p_value() -> None:
    usual = findings_of("usual")
    small = {f"{kind}p_adjusted": 0.01 for kind in ("", "paired_", "spread_")}
    certain = tuple(replace(effect, **small, is_significant=True) for effect in usual.effects)  # type: ignore[arg-type]
    mine = [effect for effect in usual.effects if (effect.arm, effect.form) == ("fix model", "plain")]
    some = tables.effects(replace(usual, effects=certain), "plain").rows[1].cells[2::2]
    assert [cell.text.split()[0] for cell in some] == [str(effect.paired.magnitude) for effect in mine]
    unpaired = tables.unpaired(replace(usual, effects=certain), "plain").rows[0].cells[1:]
    assert [cell.text.split()[0] for cell in unpaired[::2]] == [str(effect.compared.magnitude) for effect in mine]
    assert all(cell.text.endswith("×") or cell.text == "varies only here" for cell in unpaired[1::2])
    *others, flops = tables.effects(usual, "plain").rows[1].cells[2::2]
    assert all(cell.text.startswith("p ") for cell in others)
    assert flops.text == "="


def test_marks_show_what_is_better_and_not_what_is_higher() -> None:
    usual = findings_of("usual")
    turned = [replace(item, best=replace(item.best, higher_is_better=False)) for item in usual.effects]
    tones = [
        tables.effects(each, "plain").rows[1].cells[1].tone for each in (usual, replace(usual, effects=tuple(turned)))
    ]
    assert tones == ["worse", "better"]


def test_a_constant_property_is_listed_and_not_plotted() -> None:
    page = checked(as_html(findings_of("usual"))).text
    assert "Constant: FLOPs." in page
    assert "nothing varies" in page
    assert "all equal: ±0 %" in page


def test_shares_that_are_noise_are_marked() -> None:
    usual = findings_of("usual")
    noise = {
        form: {name: replace(candidate, explained=0.1) for name, candidate in known.items()}
        for form, known in usual.importance.items()
    }
    assert not any(item.trusted for item in shares(replace(usual, importance=noise), "plain"))
    assert "not trusted" in as_html(replace(usual, importance=noise))
    assert "In brackets" in as_text(replace(usual, importance=noise))


def test_a_property_without_shares_is_left_out_with_a_note() -> None:
    for form in (checked(as_html(findings_of("odd"))).text, as_text(findings_of("odd"))):
        assert "accuracy is not above 0 for every model" in form
    nothing = checked(as_html(findings_of("no models"))).text
    assert "No measured model." in nothing
    assert "Wilcoxon" not in as_text(findings_of("no models"))
    assert "accuracy" not in [title for title, _ in tables.effects(findings_of("odd"), "plain").groups]


def test_the_json_is_not_rounded_and_flags_significant_effects() -> None:
    usual = findings_of("usual")
    data: dict[str, Any] = json.loads(json.dumps(as_json(usual), allow_nan=False))
    assert data["evidence"]["models"]["3"]["plain"]["latency_s"] == usual.evidence.models[3].plain["latency_s"]
    assert data["pairs"]["latency_s"]["delta"] == list(usual.pairs["latency_s"].delta)
    assert [effect["is_significant"] for effect in data["effects"]] == [item.is_significant for item in usual.effects]
    assert Space.from_json(data["evidence"]["space"]) == SPACE
    assert as_json(findings_of("odd"))["evidence"]["models"]["3"]["plain"]["loss"] is None


def test_numbers_are_formatted() -> None:
    assert [change(share) for share in (0.123, -0.003, 44.8, 0.0, -0.0002, 0.9999)] == [
        "+12.3 %", "−0.3 %", "+4,480 %", "±0 %", "−0.02 %", "+100 %",
    ]  # fmt: skip
    assert [p_value(p) for p in (None, 1e-9, 0.0123, 0.5)] == ["—", "<0.001", "0.012", "0.50"]
    assert [quantities.factor(value) for value in (1.0, 12.34, 1234.5)] == ["1.00×", "12.3×", "1,234×"]
    assert [quantities.metric("flops", value) for value in (12, 999_900, 1.84e9)] == ["12", "1 M", "1.84 G"]


def test_whiskers_end_at_the_last_value_within_reach() -> None:
    box = box_of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (box.low, box.lower, box.median, box.upper, box.high) == (1.0, 2.0, 3.0, 4.0, 4.0)
    assert box.outliers == (100.0,)
    assert box_of([7.0]).outliers == ()
    assert box_of([0.0, 10.0, 10.0, 10.0]).low == 7.5


@pytest.mark.parametrize("values", [[1.0], [1.0, 1.0], [1.0, 1.2, 1.1], [1.0, 5.0, 400.0], [-0.5, 0.0, 3.0], []])
def test_boxes_and_densities_accept_any_values(values: list[float]) -> None:
    for plot in (
        boxes("a", "A", "Some.", {"one": values, "two words": [1.0, 2.0]}, axis="times", base=1.0),
        density("b", "B", "Some.", {"one": values, "two": [1.0, 2.0]}, axis="points", noun="pair"),
    ):
        assert plot.picture
        assert "nan" not in plot.picture
    assert ("logarithmic" in boxes("a", "A", "", {"one": values}, axis="", base=1.0).picture) == (400.0 in values)


def test_empty_plots_have_a_caption() -> None:
    assert not boxes("a", "A", "", {}, axis="", base=1.0).picture
    assert density("a", "A", "", {"one": []}, axis="", noun="pair").caption == "There is no pair to show."


def test_a_density_integrates_to_one() -> None:
    values = [0.0, 0.1, 0.2, 0.25, 0.9]
    width = bandwidth(values)
    spread = 0.9 * min(np.std(values, ddof=1), 0.15 / 1.34) * 5**-0.2
    assert width == pytest.approx(spread)
    assert np.trapezoid(*reversed(curve_of(values, width))) == pytest.approx(1.0, abs=0.01)
    assert bandwidth([3.0, 3.0]) == bandwidth([1.0]) == 0.0
    assert bandwidth([0.0, 0.0, 0.0, 0.0, 1.0]) > 0  # though the middle half is all the same
    far = {"x": [*values * 3, 50.0, 60.0, 70.0]}
    assert "3 further out" in density("a", "A", "", far, axis="", noun="pair").picture


def test_trends_are_shown_where_no_difference_is() -> None:
    usual = findings_of("usual")
    effect = usual.effect("fix width", "latency_s")
    assert effect is not None
    assert effect.trend is not None
    rising = replace(effect, trend_p_adjusted=0.01, is_significant=True)
    assert tables.effect_cell(rising, "").text == "rises"
    falling = replace(rising, trend=replace(effect.trend, delta=-0.8))
    assert tables.effect_cell(falling, "").text == "falls"


def test_tradeoffs_mark_the_top_model_and_the_advised_one() -> None:
    usual = findings_of("usual")
    plots = {plot.name: plot for plot in tradeoffs(usual)}
    assert list(plots) == [f"tradeoff-{form}-{cost}" for form in usual.forms for cost in ("latency-s", "size-bytes")]
    for form in usual.forms:
        plot, advised = plots[f"tradeoff-{form}-latency-s"], advised_model(usual, form)
        assert f"top-1: trial {usual.evidence.best[TUNE_ALL][0]}" in plot.picture
        assert ("advised: trial" in plot.picture) == (advised is not None)
        if advised is not None:
            assert f"advised: trial {advised.trial}" in plot.picture
        shown = {trial for trials in usual.evidence.best.values() for trial in trials}
        assert all(f'data-t="{trial}"' in plot.picture for trial in shown)


def test_repeatability_and_devices_are_shown() -> None:
    usual = evidence()
    models = {
        trial: replace(item, control=item.plain, repeatability={"plain": {"latency_s": 0.01 * (1 + trial % 3)}})
        for trial, item in usual.models.items()
    }
    result = findings(replace(usual, models=models, server="a server"))
    for form in (checked(as_html(result)).text, as_text(result)):
        assert "2.0 %" in form
        assert "at most 3.0 %" in " ".join(form.split())
        assert "on this machine; plain models on a server" in form
        assert "after as much further training" in " ".join(form.split())
        assert "those of plain models on a server and of compressed ones on this machine" in " ".join(form.split())
    assert "Repeatability" not in as_text(findings_of("usual"))


def test_several_subjects_are_shown_side_by_side() -> None:
    one = findings(replace(evidence(), workload="first"))
    affected = tuple(replace(effect, is_significant=True) for effect in one.effects)
    subjects = [replace(one, effects=affected), findings(replace(evidence(), workload="second"))]
    report = SideBySideReport(subjects)
    page = checked(report.as_html())
    for form in (page.text, report.as_text()):
        assert all(name in form for name in ("first", "second", "Largest deviation (LARD)"))
        assert "latency is affected in some of them by model (first; not second)" in " ".join(form.split())
    assert {"plain-latency-s", "compressed-accuracy"} <= set(re.findall(r'class="sheet ([a-z-]+)"', report.as_html()))
    assert json.loads(json.dumps(report.as_json(), allow_nan=False)) == report.as_json()
    assert [subject["evidence"]["workload"] for subject in report.as_json()] == ["first", "second"]
    again = SideBySideReport([one, replace(one, evidence=replace(one.evidence, device="another"))])
    assert "first on this machine" in again.as_text()
    assert "first on another" in again.as_text()
