"""The report of a retraining as text, JSON and HTML, from a synthetic record."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_checks import checked

from onefold.report.plots.marks import Plot
from onefold.report.retraining import as_plans_json, as_plans_text, plots, tables
from onefold.report.retraining.facts import gained, is_over, memory_note, numbered, tiles
from onefold.report.retraining.page import as_html
from onefold.report.retraining.plain import as_json
from onefold.report.retraining.prediction_error import prediction_error
from onefold.report.retraining.text import as_text
from onefold.vocabulary.retraining import (
    LayerCost,
    MicroWindow,
    PlanEstimate,
    Reaction,
    RetrainingLimits,
    RetrainingPlan,
    RetrainingSummary,
)

EVIL = "<script>alert('x')</script>&\"quoted\" </title></svg>"
MIB = 2**20
WIDE, NARROW = RetrainingPlan(64, 4), RetrainingPlan(16, 16)
FROZEN, SEGMENTED = RetrainingPlan(32, 8, freeze_rate=0.5), RetrainingPlan(32, 8, freeze_rate=0.25, segments=3)
PLANS = (
    PlanEstimate(WIDE, 450 * MIB, 2.4, 0.0004),
    PlanEstimate(NARROW, 230 * MIB, 3.1, 0.00061),
    PlanEstimate(FROZEN, 215 * MIB, 1.2, 0.00085),
    PlanEstimate(SEGMENTED, 240 * MIB, 3.9),
)
# Of each micro-window: plan, seconds, updates, loss, score, gain, merit, predicted and measured MiB, limit MiB.
COURSE = (
    (WIDE, 30.0, 12, 1.21, 0.823, 0.0004, 0.71, 450, 462, 500),
    (NARROW, 31.0, 10, 1.02, 0.831, 0.00026, 0.52, 230, 221, 500),
    (FROZEN, 30.5, 25, 0.93, 0.846, 0.00049, 0.93, 215, 209, 500),
    (WIDE, 62.0, 26, 0.81, 0.855, 0.00015, 0.61, 458, 461, 250),
    (FROZEN, 30.0, 25, 0.78, 0.861, 0.0002, 1.0, 212, 210, 250),
    (NARROW, 60.0, 19, 0.75, None, -0.00003, 0.44, 226, 224, 250),
    (FROZEN, 120.0, 99, 0.69, 0.872, 0.0001, 1.0, 211, 210, 250),
    (FROZEN, 120.0, 99, 0.66, 0.8742, 0.00002, 1.0, 211, 212, 250),
)
LAYERS = (
    LayerCost("features.conv1", 7_168, 802_816.0, 0.0011, 0.0021),
    LayerCost("features.conv2", 295_168, 401_408.0, 0.0024, 0.0047),
    LayerCost("head.fc", 513_000, 2_048.0, 0.0001, 0.0002),
)


def course() -> tuple[MicroWindow, ...]:
    """Return consecutive micro-windows from the end of planning on."""
    began, windows = 4.0, []
    for number, row in enumerate(COURSE):
        plan, time_s, updates, loss, score, gain, merit, predicted, measured, limit = row
        samples = updates * plan.effective_batch
        sizes = (predicted * MIB, measured * MIB, limit * MIB)
        windows.append(
            MicroWindow(number + 1, plan, began, began + time_s, updates, samples, loss, score, gain, merit, *sizes)
        )
        began += time_s
    return tuple(windows)


def usual() -> RetrainingSummary:
    """The memory limit is halved in the fourth of eight micro-windows."""
    return RetrainingSummary(
        model="mobilenet",
        device="a small board",
        strategy="adaptive",
        limits=RetrainingLimits(500 * MIB, 600.0),
        metric="accuracy",
        before=0.812,
        after=0.8742,
        kept_new=True,
        why="Plan 3 gains most per second of those that fit into 250 MiB",
        chosen=FROZEN,
        plans=PLANS,
        windows=course(),
        reactions=(
            Reaction(157.5, "memory fell", "the limit is 250 MiB now; plan 1 was put away, since it needs 458 MiB"),
            Reaction(247.5, "no gain", "plan 2 lost accuracy; its turn goes to plan 3"),
        ),
        layers=LAYERS,
        planning_s=4.0,
        planning_bytes=3 * MIB,
        peak_bytes=462 * MIB,
        elapsed_s=489.5,
        notes=("the data was read from the disk once",),
    )


def unmeasured() -> RetrainingSummary:
    windows = tuple(replace(window, measured_bytes=None) for window in course())
    return replace(usual(), windows=windows, peak_bytes=None)


def stays() -> RetrainingSummary:
    why = "the best micro-window reached 0.809, which is not better than 0.812"
    return replace(usual(), after=0.812, kept_new=False, why=why, chosen=None)


def hostile() -> RetrainingSummary:
    """Every name given by a user attempts an injection."""
    reactions = (Reaction(1.0, EVIL, EVIL),)
    layers = (replace(LAYERS[0], name=EVIL),)
    named: dict[str, Any] = dict.fromkeys(("model", "device", "strategy", "metric", "why"), EVIL)
    plan = replace(FROZEN, optimizer=EVIL)
    return replace(usual(), reactions=reactions, layers=layers, notes=(EVIL,), chosen=plan, **named)


def odd() -> RetrainingSummary:
    """Numbers that are not finite, times and sizes of zero, and control characters."""
    first, second, *rest = course()
    strange = replace(first, loss=math.nan, score=math.inf, gain_per_s=-math.inf, merit=math.nan, measured_bytes=0)
    short = replace(second, ended_s=second.began_s, predicted_bytes=0, limit_bytes=0)
    return replace(
        usual(),
        before=math.nan,
        windows=(strange, short, *rest),
        elapsed_s=0.0,
        why="a\x1b[2J\nb",
        chosen=RetrainingPlan(1),
    )


def many() -> RetrainingSummary:
    """More entries of each kind than the report shows."""
    plans = tuple(PlanEstimate(RetrainingPlan(1 + n, 1, lr=0.001 * (n + 1)), n * MIB, 0.1) for n in range(60))
    first = course()[0]
    windows = tuple(
        replace(first, number=n + 1, plan=plans[n % 9].plan, began_s=2.0 * n, ended_s=2.0 * n + 2) for n in range(300)
    )
    reactions = tuple(Reaction(float(n), "memory fell", f"number {n}") for n in range(80))
    return replace(
        usual(), plans=plans, windows=windows, chosen=plans[50].plan, layers=LAYERS * 100, reactions=reactions
    )


CASES = {
    "usual": usual,
    "unmeasured": unmeasured,
    "stays": stays,
    "no score": lambda: replace(usual(), windows=tuple(replace(window, score=None) for window in course())),
    "no window": lambda: replace(stays(), windows=(), plans=(), reactions=(), layers=(), notes=(), peak_bytes=None),
    "one window": lambda: replace(usual(), windows=course()[:1], plans=()),
    "lower is better": lambda: replace(usual(), metric="error", before=0.188, after=0.1258, higher_is_better=False),
    "hostile": hostile,
    "odd": odd,
    "many": many,
}


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_valid_html_text_and_json(case: str) -> None:
    retrained = CASES[case]()
    html, text = as_html(retrained), as_text(retrained)
    checked(html)
    assert len(html) < 450_000
    assert all(line == line.rstrip() for line in text.splitlines())
    assert all(character.isprintable() or character == "\n" for character in text)
    data = as_json(retrained)
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_names_of_users_are_escaped() -> None:
    html = as_html(hostile())
    assert checked(html).text.count("<script>alert('x')</script>") > 10
    assert "<script>alert" not in html


def test_html_and_text_show_result_plan_memory_and_time() -> None:
    for form in (checked(as_html(usual())).text, as_text(usual())):
        for phrase in (
            "Retraining mobilenet",
            "on a small board, strategy adaptive",
            "0.8120 → 0.8742",
            "better by 0.0622",
            "Plan 3 gains most per second of those that fit into 250 MiB.",
            "462 MiB",
            "at most 92 % of the limit at the time (500 MiB, later 250 MiB)",
            "82 % of the window of 10 min 00 s",
            "8 micro-windows, 315 updates",
            "0.67 % of the window, 3 MiB added to the process",
            "plan 1 was put away, since it needs 458 MiB",
            "the data was read from the disk once",
        ):
            assert phrase in " ".join(form.split())


def test_the_page_has_all_sections() -> None:
    page = checked(as_html(usual()))
    assert set(page.ids) >= {"memory", "metric", "loss", "reactions", "plans", "micro-windows", "how"}
    assert page.tags["details"] == 1
    assert "features.conv2" in page.text
    fewer = checked(as_html(CASES["no window"]()))
    assert not set(fewer.ids) & {"plans", "micro-windows"}
    assert fewer.tags["details"] == 0
    for phrase in (
        "No plan was chosen",
        "No rule reacted.",
        "No micro-window was run",
        "no micro-window has measured",
    ):
        assert phrase in fewer.text


def test_every_table_is_as_wide_as_its_title_line() -> None:
    for case in CASES.values():
        retrained = case()
        made = (tables.plans_table(retrained), tables.windows_table(retrained), tables.layers_table(retrained.layers))
        for sheet in (*made, tables.feasible_table(retrained.plans)):
            assert all(len(row.cells) == len(sheet.columns) for row in sheet.rows)
            assert sum(span for _, span in sheet.groups) in (0, len(sheet.columns) - 1)


def test_plans_have_predictions_and_results() -> None:
    table = tables.plans_table(usual()).ungrouped()
    assert [column.title for column in table.columns] == [
        "plan", "batch", "frozen", "segments", "predicted memory", "predicted time/update", "predicted samples/s",
        "measured gain/s", "micro-windows", "chosen",
    ]  # fmt: skip
    assert [row.texts for row in table.rows] == [
        ("1", "64 × 4", "0 %", "1", "450 MiB", "2.40 s", "106.7", "0.00015", "2", ""),
        ("2", "16 × 16", "0 %", "1", "230 MiB", "3.10 s", "82.58", "−3e-5", "2", ""),
        ("3", "32 × 8", "50 %", "1", "215 MiB", "1.20 s", "213.3", "2e-5", "4", "yes"),
        ("4", "32 × 8", "25 %", "3", "240 MiB", "3.90 s", "65.64", "—", "0", ""),
    ]
    assert "The same for all: epochs 100, lr 0.001, optimizer adam." in tables.plans_table(usual()).notes[0]


def test_settings_that_differ_have_a_column() -> None:
    plans = (*PLANS[:1], replace(PLANS[1], plan=replace(NARROW, lr=0.01, optimizer="sgd")))
    table = tables.plans_table(replace(usual(), plans=plans, windows=(), chosen=None)).ungrouped()
    assert [column.title for column in table.columns][4:6] == ["lr", "optimizer"]
    assert table.rows[1].texts[4:6] == ("0.01", "sgd")


def test_later_plans_are_numbered_after_the_first_ones() -> None:
    made = RetrainingPlan(8, 8, freeze_rate=0.75)
    windows = (*course()[:-1], replace(course()[-1], plan=made))
    retrained = replace(usual(), windows=windows, chosen=made)
    assert numbered(retrained)[made] == 5
    row = tables.plans_table(retrained).ungrouped().rows[-1]
    assert row.texts == ("5", "8 × 8", "75 %", "1", "211 MiB", "—", "—", "2e-5", "1", "yes")
    assert "The chosen plan: 5" in checked(as_html(retrained)).text


def test_tried_and_chosen_plans_come_first_of_many() -> None:
    sheet = tables.plans_table(many(), 12)
    assert [row.name for row in sheet.rows] == [*map(str, range(1, 12)), "51"]
    assert "12 of 60 plans" in sheet.notes[0]
    text = as_text(many())
    assert "and 70 more" in text
    page = checked(as_html(many()))
    assert "The first 100 of 300." in page.text
    assert "72 more" in page.text
    assert "number 79" in page.text


def test_micro_windows_show_predicted_and_measured_memory() -> None:
    table = tables.windows_table(usual()).ungrouped()
    assert [column.title for column in table.columns][9:] == [
        "predicted memory", "measured memory", "measured/predicted", "limit at its end",
    ]  # fmt: skip
    assert table.rows[0].texts[:5] == ("1", "1", "4.00 s", "30.0 s", "12")
    assert table.rows[0].texts[5:9] == ("1.210", "0.8230", "0.0004", "0.71")
    assert table.rows[0].texts[9:] == ("450 MiB", "462 MiB", "1.03", "500 MiB")
    assert table.rows[5].texts[6] == "—"
    assert tables.windows_table(unmeasured()).ungrouped().rows[0].texts[-3:] == ("—", "—", "500 MiB")


def test_layers_end_with_the_total() -> None:
    table = tables.layers_table(LAYERS).ungrouped()
    assert table.rows[-1].texts == ("all", "796 KiB", "1.15 MiB", "3.6 ms", "7 ms")


def test_prediction_errors_are_shown() -> None:
    said = "median 0.92 %, worst 4.1 % (number 2: predicted 230 MiB, measured 221 MiB), too low in 3"
    result = prediction_error(course())
    assert result is not None
    assert (result.windows, result.too_low) == (8, 3)
    assert result.worst == pytest.approx(9 / 221)
    for form in (checked(as_html(usual())).text, as_text(usual())):
        assert said in " ".join(form.split())
    assert prediction_error(unmeasured().windows) is None
    assert as_json(unmeasured())["predictions"] is None


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 10**12), st.none() | st.integers(0, 10**12)), max_size=8))
def test_errors_are_relative_to_the_measurement(sizes: list[tuple[int, int | None]]) -> None:
    first = course()[0]
    windows = [replace(first, predicted_bytes=said, measured_bytes=seen) for said, seen in sizes]
    errors = [abs(said - seen) / seen for said, seen in sizes if seen]
    result = prediction_error(windows)
    assert (result is None) == (not errors)
    if result is not None:
        assert result.worst == pytest.approx(max(errors))
        assert min(errors) <= result.median <= result.worst
        assert result.too_low == sum(said < seen for said, seen in sizes if seen)


def test_keeping_the_given_model_has_a_reason() -> None:
    for form in (checked(as_html(stays())).text, as_text(stays())):
        assert "the given model is kept" in form
        assert "which is not better than 0.812" in " ".join(form.split())
        assert "→" not in form
    assert [tile.accent for tile in tiles(stays())] == [False] * 4


def test_gain_follows_the_direction_of_the_metric() -> None:
    assert gained(CASES["lower is better"]()) == "better by 0.0622"
    assert gained(replace(usual(), higher_is_better=False)) == "worse by 0.0622"
    assert gained(replace(usual(), after=0.812)) == "no better"


def test_exceeded_limits_are_flagged() -> None:
    assert not is_over(usual())
    assert not is_over(unmeasured())
    large = replace(course()[4], measured_bytes=251 * MIB)
    over = replace(usual(), windows=(*course()[:4], large), elapsed_s=700.0)
    badges = [tile.badge for tile in tiles(over)]
    assert badges == ["", "over the limit", "over the window", ""]
    assert "Time      over the window: 11 min 40 s, 117 % of the window" in as_text(over)
    assert "Memory    over the limit: 462 MiB" in as_text(over)
    assert is_over(replace(usual(), peak_bytes=501 * MIB))


def test_a_changed_limit_is_shown_if_it_is_visible() -> None:
    def note(*limits: int) -> str:
        windows = tuple(replace(window, limit_bytes=limit) for window, limit in zip(course(), limits))
        return memory_note(replace(usual(), windows=windows))

    assert note(500 * MIB, 250 * MIB, 250 * MIB).endswith("(500 MiB, later 250 MiB)")
    assert note(500 * MIB, 250 * MIB, 400 * MIB).endswith("(500 MiB, at the lowest 250 MiB)")
    assert note(500 * MIB, 500 * MIB - 1).endswith("of the limit of 500 MiB")


def test_unmeasured_memory_is_labeled_predicted() -> None:
    for form in (checked(as_html(unmeasured())).text, as_text(unmeasured())):
        assert "not measured; predicted 458 MiB at most; the limit is 500 MiB, later 250 MiB" in " ".join(form.split())
    assert "predicted 215 MiB, measured —" in as_text(unmeasured())
    drawing = plots.memory(unmeasured())
    assert "measured" not in re.sub("plan .*?<", "<", str(drawing.picture)).replace("predicted and measured", "")
    assert [label for _, label in drawing.legend] == ["predicted", "limit"]


def test_the_memory_plot_has_bars_rings_and_a_limit() -> None:
    drawing = plots.memory(usual())
    picture = str(drawing.picture)
    assert picture.count(": measured ") == picture.count(": predicted ") == 8
    (limit,) = re.findall(r'class="line cross" d="([^"]*)"', picture)
    heights = {float(height) for height in re.findall(r"V([\d.]+)", limit)}
    assert len(heights) == 2
    assert [label for _, label in drawing.legend] == ["plan 1", "plan 2", "plan 3, chosen", "predicted", "limit"]


def test_a_plan_has_one_color_and_one_number() -> None:
    kinds = [dict(re.findall(r'class="(?:cell|dot) (\w+)"[^>]*data-t="(\d+)"', str(plot.picture))) for plot in drawn()]
    assert kinds[0] == kinds[1] == kinds[2]
    assert kinds[0]["best"] == "3"
    assert len(kinds[0]) == 3


def drawn() -> list[Plot]:
    retrained = usual()
    return [plots.memory(retrained), plots.metric(retrained), plots.loss(retrained)]


def test_empty_plots_have_a_caption() -> None:
    nothing = CASES["no window"]()
    for make in (plots.memory, plots.metric, plots.loss):
        assert not make(nothing).picture
    assert plots.metric(CASES["no score"]()).caption == "No micro-window was evaluated for accuracy."


def test_many_plans_share_a_ramp_in_the_legend() -> None:
    assert plots.loss(many()).legend == (("ramp", "9 plans by number"),)


def test_the_json_is_not_rounded() -> None:
    data: dict[str, Any] = json.loads(json.dumps(as_json(usual()), allow_nan=False))
    assert data["gain"] == usual().gain
    assert data["plans"][2]["samples_per_s"] == 256 / 1.2
    assert data["plans"][3]["gain_per_s"] is None
    assert data["chosen"]["freeze_rate"] == 0.5
    assert data["windows"][5]["score"] is None
    assert data["predictions"]["too_low"] == 3
    assert as_json(odd())["windows"][0]["loss"] is None


def test_feasible_plans() -> None:
    limits = RetrainingLimits(500 * MIB, 600.0)
    text = as_plans_text(PLANS, limits)
    assert "4 plans fit into 500 MiB of memory and a window of 10 min 00 s." in text
    assert "Memory and time are predicted; nothing was trained." in " ".join(text.split())
    rows = [line.split("  ") for line in text.splitlines() if " × " in line]
    assert len(rows) == 4
    assert [row[-1].strip() for row in rows] == ["0.0004", "0.00061", "0.00085", "—"]
    assert "No plan fits into 500 MiB" in as_plans_text((), limits)
    assert as_plans_text(PLANS[:1], limits).startswith("1 plan fits")
    data = as_plans_json(PLANS, limits)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["limits"] == {"memory_bytes": 500 * MIB, "window_s": 600.0}
    assert data["plans"][0]["plan"]["batch_size"] == 64
    assert data["plans"] == as_json(usual())["plans"]


@pytest.mark.parametrize("width", [60, 80, 110])
def test_the_text_stays_within_its_width(width: int) -> None:
    for text in (as_text(usual(), width), as_plans_text(PLANS, usual().limits, width)):
        assert max(map(len, text.splitlines())) <= width
        assert all(str(item.plan.batch_size) in text for item in PLANS)
