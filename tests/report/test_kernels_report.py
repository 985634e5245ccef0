"""The report of a compilation as text, JSON and HTML, from a synthetic record."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_checks import checked

from onefold.report.kernels import facts, tables
from onefold.report.kernels.costs import Fate, fate_costs, fates, joules_per_ms_saved
from onefold.report.kernels.page import as_html
from onefold.report.kernels.plain import as_json
from onefold.report.kernels.scatter import most_time, scatter
from onefold.report.kernels.survey import apart, survey
from onefold.report.kernels.text import as_text
from onefold.report.table import Table
from onefold.vocabulary import quantities
from onefold.vocabulary.kernels import (
    PHASES,
    CandidateFailure,
    CandidateHistory,
    CompileCost,
    CompileResult,
    GraphLevelResult,
    Operator,
    OperatorState,
    RuntimeLatency,
    ScheduleCandidate,
    TuningRound,
)
from onefold.vocabulary.records import from_json

EVIL = "<script>alert('x')</script>&\"quoted\" </title></svg>"
# Of each operator: name, kind, weight, shapes, flops, microseconds at first and at last, candidates, recalled.
OPERATORS = (
    ("fused_conv2d_add_relu", "conv2d", 4, ("1x32x32x32", "3x3x32x32", "1x32x32x32"), 18.9e6, 940.0, 205.0, 128, 0),
    ("fused_conv2d1_add1_relu1", "conv2d", 4, ("1x16x16x64", "3x3x64x64", "1x16x16x64"), 18.9e6, 720.0, 168.0, 112, 40),
    ("fused_conv2d2_add2_relu2", "conv2d", 4, ("1x8x8x128", "3x3x128x128", "1x8x8x128"), 18.9e6, 810.0, 181.0, 96, 0),
    ("fused_conv2d3_add3", "conv2d", 1, ("1x32x32x3", "3x3x3x32", "1x32x32x32"), 1.77e6, 150.0, 62.0, 48, 0),
    ("fused_matmul_add", "matmul", 1, ("1x128", "128x10", "1x10"), 2.56e3, 9.0, 3.1, 32, 16),
    ("fused_mean_reshape", "mean", 1, ("1x8x8x128", "1x128"), 8.19e3, 21.0, 6.4, 32, 0),
    ("softmax", "softmax", 1, ("1x10", "1x10"), 50.0, 4.2, 2.9, 16, 0),
)
ROUNDS = 12
TAKES_S = 41.5  # a round
SHARES = {"search": 0.14, "build": 0.43, "run": 0.31, "update": 0.05, "whole": 0.07}


def operator(place: int) -> Operator:
    name, kind, weight, shapes, flops, *_ = OPERATORS[place]
    return Operator(f"{place:02}ab34cd", name, weight, kind, shapes, flops)


@cache
def history(place: int) -> CandidateHistory:
    """Noisy, decreasing latencies; some candidates fail."""
    *_, first, last, count, recalled = OPERATORS[place]
    drawn = random.Random(place)
    candidates, line = [], []
    for at in range(count):
        usual = (last + (first - last) * math.exp(-4 * at / count)) * 1.25e-6
        failed = drawn.random() < 0.09
        latency_s = (
            None if failed else max(usual * drawn.lognormvariate(0.0, 0.35), last * drawn.uniform(1.0, 1.2) * 1e-6)
        )
        failure = (
            drawn.choice([CandidateFailure.INVALID, CandidateFailure.CRASH, CandidateFailure.SLOW_RUN])
            if failed
            else None
        )
        candidates.append(
            ScheduleCandidate(
                operator=operator(place).key,
                target="llvm -mcpu=icelake-server",
                machine="a small board",
                threads=2,
                implementation=f"{place}-{at}",
                sketch=at % 3,
                decisions=(at % 8, 4),
                trace="[]",
                latency_s=latency_s,
                failure=failure,
                build_s=0.35 + 0.4 * drawn.random(),
                run_s=0.0 if failure is CandidateFailure.INVALID else 0.1 + 0.3 * drawn.random(),
                joules=9.0 + 3 * drawn.random(),
            )
        )
        line.append(None if failed else usual)
    return CandidateHistory(operator(place), tuple(candidates), tuple(line), recalled)


def states(share: float) -> tuple[OperatorState, ...]:
    """Return the states of the operators after this share of their candidates."""
    result = []
    for index in range(len(OPERATORS)):
        whole = history(index).candidates
        known = whole[: math.ceil(share * len(whole))]
        best = min((candidate.latency_s for candidate in known if candidate.latency_s is not None), default=None)
        failed = sum(candidate.failure is not None for candidate in known)
        suspended = share > 0.6 and index in (3, 6)
        result.append(OperatorState(operator(index), best, len(known), 3 * len(known), failed, suspended))
    return tuple(result)


def spent(share: float = 1.0, source: str = "rapl") -> CompileCost:
    total_s = ROUNDS * TAKES_S * share
    seconds = {name: total_s * SHARES[name] for name in PHASES}
    return CompileCost(seconds, {name: 21.0 * value for name, value in seconds.items()}, source)


@cache
def rounds() -> tuple[TuningRound, ...]:
    result = []
    for number in range(1, ROUNDS + 1):
        share = number / ROUNDS
        operators = states(share)
        latency_s = sum(operator.time_s for operator in operators) * 1.06 + 40e-6
        result.append(TuningRound(number, "resnet", latency_s, 5.0 + number * TAKES_S, operators, spent(share)))
    return tuple(result)


@cache
def usual() -> CompileResult:
    """A convolutional network whose seven operators were tuned in twelve rounds."""
    result = rounds()
    return CompileResult(
        model="resnet",
        device="a small board",
        target="llvm -mcpu=icelake-server",
        threads=2,
        level=3,
        strategy="onefold",
        rounds=result,
        histories=tuple(history(index) for index in range(len(OPERATORS))),
        runtimes=(
            RuntimeLatency("tvm", result[-1].latency_s * 1.01, 2),
            RuntimeLatency("onnxruntime", 3.91e-3, 2, "graph optimization level all"),
            RuntimeLatency(
                "onnxruntime int8", 4.02e-3, 2, "quantized; its outputs differ more than those of the others"
            ),
            RuntimeLatency("torch", 6.45e-3, 2, "eager"),
            RuntimeLatency("tvm untuned", 13.4e-3, 2),
        ),
        recommended="tvm",
        why_stopped="the gain per second fell by 31 %, more than the 25 % that the rate rule allows",
        error=3.1416e-7,
        spent=spent(),
        levels=(
            GraphLevelResult(0, 31.2e-3, 2.2, 61, 46.0),
            GraphLevelResult(1, 15.1e-3, 1.6, 22, 33.0),
            GraphLevelResult(2, 14.9e-3, 1.5, 21, 31.0),
            GraphLevelResult(3, 13.4e-3, 1.7, 7, 36.0),
        ),
        folder="deploy/kernels/llvm-2",
    )


def failed(one: CandidateHistory) -> CandidateHistory:
    """The same candidates, none of which works."""
    crashed = tuple(replace(each, latency_s=None, failure=CandidateFailure.CRASH) for each in one.candidates)
    return replace(one, candidates=crashed, line=(None,) * len(crashed))


def all_failed() -> CompileResult:
    compiled = usual()
    first = compiled.rounds[0]
    lost = tuple(replace(state, best_s=None, failed=state.tried) for state in first.operators)
    return replace(
        compiled,
        rounds=(replace(first, operators=lost),),
        histories=tuple(map(failed, compiled.histories)),
        runtimes=compiled.runtimes[1:],
        recommended="onnxruntime",
        folder="",
    )


def single() -> CompileResult:
    one = history(0)
    only = replace(one, candidates=one.candidates[:1], line=one.line[:1])
    return replace(usual(), rounds=usual().rounds[:1], histories=(only,), runtimes=usual().runtimes[:1], levels=())


def unmetered() -> CompileResult:
    """The energy is unknown."""
    compiled = usual()
    histories = tuple(
        replace(history, candidates=tuple(replace(each, joules=None) for each in history.candidates))
        for history in compiled.histories
    )
    levels = tuple(replace(level, joules=None) for level in compiled.levels)
    return replace(compiled, histories=histories, levels=levels, spent=CompileCost(compiled.spent.seconds))


def nothing() -> CompileResult:
    return CompileResult("resnet", "host", "llvm", 1, 3, "onefold", (), (), (), "", "", math.nan)


def hostile() -> CompileResult:
    """Every name given by a user attempts an injection."""
    evil = Operator("key", EVIL, 1, EVIL, (EVIL,), 1.0)
    one, last = history(0), usual().rounds[-1]
    state = replace(last.operators[0], operator=evil)
    named: dict[str, Any] = dict.fromkeys(("model", "device", "target", "strategy", "why_stopped", "folder"), EVIL)
    return replace(
        usual(),
        rounds=(replace(last, operators=(state,)),),
        histories=(replace(one, operator=evil),),
        runtimes=(RuntimeLatency(EVIL, 1.0, 1, EVIL), RuntimeLatency("torch", 2.0, 1)),
        recommended=EVIL,
        spent=replace(spent(), source=EVIL),
        **named,
    )


def odd() -> CompileResult:
    """Numbers that are not finite, latencies of zero, a fit that is too short, and control characters."""
    compiled, one = usual(), history(0)
    strange = tuple(
        replace(each, latency_s=latency_s)
        for each, latency_s in zip(one.candidates, (math.nan, math.inf, 0.0, -1.0, 1e-300, 1e3))
    )
    first, *rest = compiled.rounds
    return replace(
        compiled,
        rounds=(replace(first, latency_s=math.inf), *rest[:-1], replace(rest[-1], latency_s=0.0, ended_s=math.nan)),
        histories=(replace(one, candidates=strange, line=(1.0, math.nan), recalled=99), replace(one, candidates=())),
        runtimes=(
            RuntimeLatency("tvm", 0.0, 1),
            RuntimeLatency("torch", math.inf, 1),
            RuntimeLatency("onnxruntime", math.nan, 1),
        ),
        why_stopped="a\x1b[2J\nb",
        levels=(GraphLevelResult(3, math.nan, 0.0, 0),),
    )


def many() -> CompileResult:
    """More entries of each kind than the report shows."""
    compiled, one = usual(), history(0)
    crowd = replace(one, candidates=one.candidates * 12, line=one.line * 12)
    last = compiled.rounds[-1]
    operators = tuple(
        replace(
            state, operator=replace(state.operator, key=f"{copy}-{index}", name=f"an_operator_{'long_' * 12}{copy}")
        )
        for copy in range(12)
        for index, state in enumerate(last.operators)
    )
    rounds = tuple(replace(last, number=n, ended_s=3.0 * n, operators=operators) for n in range(1, 201))
    runtimes = tuple(
        RuntimeLatency(f"a runtime with a long name {n}", 1e-3 + 1e-6 * n, 2, "slow " * 30) for n in range(30)
    )
    return replace(compiled, rounds=rounds, histories=(crowd, *compiled.histories), runtimes=runtimes)


CASES: dict[str, Callable[[], CompileResult]] = {
    "usual": usual,
    "all failed": all_failed,
    "single": single,
    "unmetered": unmetered,
    "modelled": lambda: replace(usual(), spent=spent(source="modelled")),
    "no rounds": lambda: replace(usual(), rounds=()),
    "no levels": lambda: replace(usual(), levels=()),
    "no line": lambda: replace(usual(), histories=tuple(replace(history, line=()) for history in usual().histories)),
    "nothing": nothing,
    "hostile": hostile,
    "odd": odd,
    "many": many,
}


@pytest.mark.parametrize("case", CASES)
def test_every_compilation_has_a_valid_page_text_and_json(case: str) -> None:
    compiled = CASES[case]()
    html, lines = as_html([compiled]), as_text(compiled)
    checked(html)
    assert len(html) < 450_000
    assert all(line == line.rstrip() for line in lines.splitlines())
    assert all(character.isprintable() or character == "\n" for character in lines)
    data = as_json(compiled)
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_several_models_share_one_page() -> None:
    several = [replace(make(), model=name) for name, make in CASES.items()]
    shown = checked(as_html(several))
    assert f"Kernels of {', '.join(CASES)}" in shown.text
    places = [shown.text.index(f"\n{name}\n", shown.text.index("onnxruntime")) for name in CASES if name != "usual"]
    assert places == sorted(places)
    assert {"survey", "survey-2", "candidates-12", "model-12", "models"} <= set(shown.ids)
    assert "models" not in checked(as_html([usual()])).ids
    assert "No model was compiled." in checked(as_html([])).text


def test_the_same_operator_has_the_same_number_in_all_models() -> None:
    html = as_html([usual(), replace(usual(), model="another")])
    rows = re.findall(r'<tr data-t="(\d+)"><th scope="row">(\w+)', html)
    drawings = re.findall(r'<g [^>]*data-t="(\d+)"><title>(\w+)', html)
    assert len(rows) == 2 * len(OPERATORS)
    assert len(drawings) == 2 * 6
    assert len(set(rows)) == len(OPERATORS)
    assert set(drawings) < set(rows)


def test_names_are_escaped() -> None:
    html = as_html([hostile()])
    assert checked(html).text.count("<script>alert('x')</script>") > 10
    assert "<script>alert" not in html


def test_page_and_text_show_results_and_costs() -> None:
    for form in (checked(as_html([usual()])).text, as_text(usual())):
        expected = " ".join(form.split())
        for said in (
            "Kernels of resnet",
            "on a small board, for llvm -mcpu=icelake-server, 2 threads, graph optimization level 3, strategy onefold",
            "it is the fastest, 1.52× as fast as onnxruntime",
            "recommended: it is the fastest",
            "8.35 → 2.56 ms",
            "69 % less, 12 rounds, 464 candidates",
            "3.1e-7 of the largest output",
            "deploy/kernels/llvm-2",
            "the gain per second fell by 31 %",
            "8 min 18 s",
            "10.5 kJ",
            "measured by the processor's energy counters (RAPL)",
            "1.8 kJ per ms saved",
            "quantized; its outputs differ more than those of the others",
            "recalled from earlier compilations",
        ):
            assert said in expected, said


def test_every_table_is_as_wide_as_its_title_line() -> None:
    for case in CASES.values():
        for sheet in sheets(case()):
            assert all(len(row.cells) == len(sheet.columns) for row in sheet.rows)
        made = tables.models_table([case(), usual()])
        assert all(len(row.cells) == len(made.columns) for row in made.rows)


def sheets(compiled: CompileResult) -> list[Table]:
    made = (tables.runtimes_table, tables.phases_table, tables.fates_table, tables.operators_table, tables.levels_table)
    return [make(compiled) for make in made]


def rows(sheet: Table) -> list[tuple[str, ...]]:
    return [row.texts for row in sheet.rows]


def test_runtimes_are_compared_with_the_fastest() -> None:
    assert rows(tables.runtimes_table(usual())) == [
        ("tvm", "2.58 ms", "1.00×", "2", "recommended: it is the fastest"),
        ("onnxruntime", "3.91 ms", "1.52×", "2", "graph optimization level all"),
        ("onnxruntime int8", "4.02 ms", "1.56×", "2", "quantized; its outputs differ more than those of the others"),
        ("torch", "6.45 ms", "2.50×", "2", "eager"),
        ("tvm untuned", "13.4 ms", "5.19×", "2", ""),
    ]
    assert facts.reason(single()) == "it is the fastest"
    assert facts.reason(nothing()) == "no runtime was measured"
    assert facts.reason(replace(usual(), recommended="numpy")) == "it was not measured"


def test_a_slower_recommendation_is_not_called_the_fastest() -> None:
    compiled = replace(usual(), recommended="torch")
    assert facts.reason(compiled) == "another runtime is faster"
    assert "it is the fastest" not in as_text(compiled)


def test_phases_add_up_and_energy_has_its_source() -> None:
    sheet = tables.phases_table(usual())
    assert rows(sheet)[1] == ("build", "3 min 34 s", "43 %", "4.5 kJ", "43 %", "compiling them")
    assert rows(sheet)[-1] == ("all", "8 min 18 s", "", "10.5 kJ", "", "")
    assert sheet.notes == ("Energy: measured by the processor's energy counters (RAPL).",)
    modelled = tables.phases_table(CASES["modelled"]())
    assert rows(modelled)[1][3] == "≈ 4.5 kJ"
    assert "an estimate, not a measurement" in modelled.notes[0]
    assert [tile.badge for tile in facts.tiles(CASES["modelled"]())] == ["", "", "", "estimate"]
    unknown = tables.phases_table(unmetered())
    assert {row[3:5] for row in rows(unknown)[:-1]} == {("—", "—")}
    assert unknown.notes == ("Energy: not available on this machine.",)
    assert not tables.phases_table(nothing()).rows


def test_energy_is_reported_per_millisecond_saved() -> None:
    first, last = usual().rounds[0].latency_s, usual().rounds[-1].latency_s
    assert joules_per_ms_saved(usual()) == pytest.approx(sum(spent().joules.values()) / (first - last) / 1e3)
    backwards = replace(usual(), rounds=usual().rounds[::-1])
    for compiled in (backwards, single(), nothing()):
        assert joules_per_ms_saved(compiled) is None
        assert facts.price(compiled) == "nothing saved"
    assert facts.price(unmetered()) == "5.8 ms saved"
    assert facts.price(CASES["modelled"]()).startswith("≈ ")


def test_waste_leaves_out_recalled_candidates() -> None:
    def candidate(latency_s: float | None, build_s: float, joules: float | None) -> ScheduleCandidate:
        failure = CandidateFailure.WRONG if latency_s is None else None
        given = replace(history(0).candidates[0], latency_s=latency_s, failure=failure)
        return replace(given, build_s=build_s, run_s=1.0, joules=joules)

    given = (
        candidate(9.0, 50.0, 99.0),  # recalled
        candidate(1.0, 1.0, 10.0),
        candidate(3.0, 2.0, None),
        candidate(4.0, 2.0, 20.0),
        candidate(None, 0.0, 10.0),
    )
    compiled = replace(usual(), histories=(CandidateHistory(operator(0), given, (8.0, 2.0, 2.0, 2.0, None), 1),))
    hot, cold, lost = fate_costs(compiled.histories)
    assert (hot.candidates, cold.candidates, lost.candidates) == (1, 2, 1)
    assert (hot.time_s, cold.time_s, lost.time_s) == (2.0, 6.0, 1.0)
    assert cold.time_share == pytest.approx(6 / 9)
    assert lost.energy_share == pytest.approx(10 / 40)
    assert facts.waste(compiled) == (
        "67 % of the time for cold candidates, 11 % for failed ones; of the energy 50 % and 25 %"
    )
    assert "Without 1 candidate recalled" in tables.fates_table(compiled).notes[0]
    assert "failed: 1 wrong" in facts.savings(compiled)
    assert facts.waste(nothing()) == "no candidate was measured"
    assert "energy" not in facts.waste(unmetered())


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.none() | st.floats(1e-6, 1.0), st.floats(1e-6, 1.0), st.none() | st.floats(1e-3, 1e3)), max_size=12
    ),
    st.integers(0, 14),
)
def test_fates_share_all_that_was_measured(drawn: list[tuple[float | None, float, float | None]], known: int) -> None:
    first = history(0).candidates[0]
    candidates = tuple(
        replace(first, latency_s=proposal, failure=None, build_s=usual_s, joules=joules)
        for proposal, usual_s, joules in drawn
    )
    expected = CandidateHistory(operator(0), candidates, tuple(usual_s for _, usual_s, _ in drawn), known)
    costs = fate_costs([expected])
    measured = candidates[known:]
    assert sum(cost.candidates for cost in costs) == len(measured)
    assert sum(cost.time_s for cost in costs) == pytest.approx(
        sum(candidate.build_s + candidate.run_s for candidate in measured)
    )
    if measured:
        assert sum(cost.time_share or 0.0 for cost in costs) == pytest.approx(1.0)
    else:
        assert {cost.time_share for cost in costs} == {None}
    if any(candidate.joules is not None for candidate in measured):
        assert sum(cost.energy_share or 0.0 for cost in costs) == pytest.approx(1.0)
    else:
        assert {cost.energy_share for cost in costs} == {None}


def test_operators_are_sorted_by_share_of_the_latency() -> None:
    expected = rows(tables.operators_table(usual()))
    assert expected[0] == (
        "fused_conv2d_add_relu", "conv2d", "4", "213 µs", "851 µs", "33 %", "128", "384", "16", "tuning",
    )  # fmt: skip
    assert [row[0] for row in expected[3:5]] == ["fused_conv2d3_add3", "fused_mean_reshape"]
    assert expected[3][-1] == "suspended"
    assert expected[-2][:6] == ("all operators", "", "16", "", "2.37 ms", "93 %")
    assert expected[-1][:6] == ("whole model", "", "", "", "2.56 ms", "100 %")
    lost = rows(tables.operators_table(all_failed()))
    assert {row[3:6] for row in lost[:-2]} == {("—", "—", "—")}
    assert lost[-2][4:6] == ("—", "—")
    assert not tables.operators_table(CASES["no rounds"]()).rows
    assert "40 of 84 operators." in tables.operators_table(many()).notes[0]


def test_compared_levels_are_shown() -> None:
    assert rows(tables.levels_table(usual()))[-1] == ("3", "7", "13.4 ms", "1.70 s", "36 J", "used")
    assert "levels" in checked(as_html([usual()])).ids
    assert "levels" not in checked(as_html([CASES["no levels"]()])).ids
    assert "latency before tuning" not in as_text(CASES["no levels"]())
    unknown = tables.levels_table(unmetered())
    assert rows(unknown)[0][4] == "—"
    assert unknown.notes == ("Energy: not available on this machine.",)


def test_the_survey_has_a_dot_for_each_round_and_a_dashed_line_for_each_other_runtime() -> None:
    plot = survey(usual())
    drawing = str(plot.picture)
    assert drawing.count('class="dot best"') == 12
    assert drawing.count('class="line beside"') == 4
    third = quantities.duration(usual().rounds[2].latency_s)
    assert f"round 3, after 2 min 10 s: {third}\n116 candidates so far" in drawing
    assert ">464</text>" in drawing
    for label in ("onnxruntime 3.91 ms", "onnxruntime int8 4.02 ms", "torch 6.45 ms", "tvm untuned 13.4 ms", "2.56 ms"):
        assert f">{label}</text>" in drawing
    assert [label for _, label in plot.legend] == ["whole model, compiled", "other runtimes"]
    assert [label for _, label in survey(single()).legend] == ["whole model, compiled"]
    assert survey(CASES["no rounds"]()).caption == "No round has finished."


def test_runtimes_that_are_far_slower_make_the_survey_logarithmic() -> None:
    slow = replace(usual(), runtimes=(*usual().runtimes, RuntimeLatency("numpy", 2.0, 1)))
    assert "logarithmic" in str(survey(slow).picture)
    assert "logarithmic" not in str(survey(usual()).picture)


@given(st.lists(st.floats(0.0, 100.0), max_size=8), st.floats(1.0, 40.0))
def test_labels_are_kept_apart(places: list[float], gap: float) -> None:
    moved = apart(places, gap, 0.0, 100.0)
    ordered = sorted(moved)
    assert all(after - before >= gap - 1e-6 for before, after in pairwise(ordered))
    pairs = sorted(zip(places, moved))
    assert [index for _, index in pairs] == sorted(index for _, index in pairs) or len(set(places)) < len(places)
    assert all(index >= -1e-6 for index in moved)
    if gap * (len(places) - 1) <= 100.0:
        assert all(index <= 100.0 + 1e-6 for index in moved)
    if all(after - before >= gap for before, after in pairwise(sorted(places))):
        assert moved == pytest.approx(places)


def test_fates_have_distinct_marks_and_recalled_ones_are_pale() -> None:
    compiled = replace(usual(), histories=(history(1),))
    drawing = str(scatter(compiled, {}).picture)
    result = [fates(history(1)).count(fate) for fate in Fate]
    marks = [drawing.count(f'class="{kind}') for kind in ("dot s5", "dot plain hollow", "cross")]
    assert marks == [result[0] - 1, *result[1:]]  # the fastest is marked by itself
    assert drawing.count('class="dot best"') == 1
    assert len(re.findall(r'class="[^"]* pale"', drawing)) == drawing.count(", recalled</title>") == 40
    assert drawing.count('class="line best thin halved"') == 1
    (kinds, labels) = zip(*scatter(compiled, {}).legend)
    assert kinds == ("dot s5", "dot plain hollow", "cross", "dot s5 pale", "dot best", "line best thin")
    assert labels[3] == "pale: recalled from an earlier compilation"


def test_the_six_operators_with_the_most_time_are_drawn() -> None:
    assert [item.operator.name for item in most_time(usual())] == [
        row[0] for row in rows(tables.operators_table(usual()))[:6]
    ]
    assert [item.operator for item in most_time(CASES["no rounds"]())] == [operator(index) for index in range(6)]
    plot = scatter(usual(), {})
    assert str(plot.picture).count("<svg") == 6
    assert plot.caption.startswith("The 6 of 7 operators with the most time.")


def test_candidates_that_all_failed_are_drawn() -> None:
    plot = scatter(all_failed(), {})
    assert "no candidate has a latency" in str(plot.picture)
    assert [label for _, label in plot.legend] == ["failed", "pale: recalled from an earlier compilation"]
    assert "LOESS fit" not in [label for _, label in scatter(single(), {}).legend]
    assert scatter(nothing(), {}).caption == "No candidate was measured."


def test_an_even_selection_of_many_candidates_has_the_fastest() -> None:
    plot = scatter(many(), {})
    crowd = next(
        part for part in str(plot.picture).split("<svg") if "candidate 1533:" in part or "candidate 1:" in part
    )
    assert crowd.count("data-cell") <= 501
    assert "more than 500" in plot.caption
    assert all('class="dot best' in part for part in str(plot.picture).split("<svg")[1:])


def test_the_json_is_not_rounded_and_round_trips() -> None:
    data: dict[str, Any] = json.loads(json.dumps(as_json(usual()), allow_nan=False))
    assert from_json(CompileResult, data) == usual()
    assert data["saved_s"] == usual().rounds[0].latency_s - usual().rounds[-1].latency_s
    assert data["joules_per_ms_saved"] == joules_per_ms_saved(usual())
    assert data["rounds"][-1]["tried"] == 464
    assert data["rounds"][-1]["operators"][0]["time_s"] == 4 * data["rounds"][-1]["operators"][0]["best_s"]
    assert [item["fate"] for item in data["fates"]] == ["hot", "cold", "failed"]
    assert sum(data["failures"].values()) == data["fates"][2]["candidates"]
    assert data["histories"][0]["is_cold"] == list(history(0).is_cold)
    assert as_json(nothing())["error"] is None
    assert as_json(odd())["rounds"][0]["latency_s"] is None


@pytest.mark.parametrize("width", [60, 80, 110])
def test_the_text_stays_within_its_width(width: int) -> None:
    for make in (usual, unmetered, many, nothing):
        lines = as_text(make(), width)
        assert max(map(len, lines.splitlines())) <= width
