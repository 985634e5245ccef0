"""The serving section of a report, in every form, from synthetic surfaces."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from page_checks import checked
from simulated_study import Simulated, simulate

from onefold import Objective, at_least, at_most
from onefold.report import FrontReport
from onefold.report.study.page import as_html
from onefold.report.study.plain import as_json
from onefold.report.study.serving import explained, format_cost, serving_parts, trade_offs
from onefold.report.study.summary import Summary, summarize
from onefold.report.study.text import as_text
from onefold.vocabulary.objective import Goal
from onefold.vocabulary.records import Energy, RungState, StudyState, Trial, TrialState
from onefold.vocabulary.serving import LatencySource, Served, ServingPoint, Surface, metrics_on

FAST_ENOUGH = Objective(minimize="latency_s", require={"accuracy": at_least(0.8)})
EVIL = "<script>alert('x')</script>&\"quoted\" </title></svg>"
BOARD, LAPTOP = "raspberry-pi-4", "host"


def served(
    batch: int, threads: int, work_s: float, source: LatencySource, energy: str, precision: str = "fp32"
) -> Served:
    latency_s = 2e-4 + work_s * batch / threads**0.8 * (1 + (batch / 90) ** 2)
    joules = None if energy == "unavailable" else latency_s * (2.7 + 1.2 * threads)
    runs = 0 if source is LatencySource.PREDICTED else 30
    memory_bytes = 90_000_000 + batch * 400_000
    point = ServingPoint(batch, threads, precision=precision)
    interval = (latency_s * 0.98, latency_s * 1.02)
    times = (latency_s, latency_s * 1.1, latency_s * 1.3, *interval)
    return Served(point, *times, runs, Energy(joules, energy), memory_bytes, source)


def surface(
    trial: Trial, device: str, source: LatencySource = LatencySource.EMULATED, energy: str = "modelled"
) -> Surface:
    width, depth = int(str(trial.config["width"])), int(str(trial.config["depth"]))
    work_s = 1e-5 * width * depth * (1.0 if device == BOARD else 0.1)
    known = [
        served(batch, threads, work_s, LatencySource.PREDICTED if batch in (2, 100) else source, energy)
        for batch in (1, 2, 4, 8, 16, 32, 64, 100)
        for threads in (1, 2, 3, 4)
        if (batch, threads) not in ((100, 1), (64, 1))
    ]
    return Surface(f"{width}x{depth}", device, tuple(known), size_bytes=4 * width * width * depth, parameters=width)


def reporting(trial: Trial, surfaces: Mapping[str, Surface]) -> Trial:
    """Return the trial with its serving metrics, as a study reports them."""
    result = metrics_on(list(surfaces), trial.number, {(trial.number, name): known for name, known in surfaces.items()})
    rungs = (
        replace(rung, metrics={**rung.metrics, **result}) if rung.state is RungState.DONE else rung
        for rung in trial.rungs
    )
    return replace(trial, rungs=tuple(rungs))


def serving(
    simulated: Simulated,
    devices: Mapping[str, tuple[LatencySource, str]],
    objective: Objective | None = None,
    **more: Any,
) -> Summary:
    """Return the summary of a study whose trials were served on these devices, under this objective."""
    servings, trials = {}, []
    wanted = {"objective": objective.to_json()} if objective else {}
    study = replace(simulated.study, spec={**simulated.study.spec, **wanted})
    for trial in simulated.trials:
        surfaces = {device: surface(trial, device, *how) for device, how in devices.items()}
        trials.append(reporting(trial, surfaces))
        servings |= {(trial.number, device): known for device, known in surfaces.items()}
    return summarize(study, trials, simulated.epochs, servings=servings, **more)


EMULATED = {BOARD: (LatencySource.EMULATED, "modelled")}
MEASURED = {LAPTOP: (LatencySource.MEASURED, "rapl")}
CASES: dict[str, Callable[[], Summary]] = {
    "one device": lambda: serving(simulate(rungs="none"), EMULATED, FAST_ENOUGH),
    "two devices": lambda: serving(simulate(), EMULATED | MEASURED, FAST_ENOUGH),
    "measured": lambda: serving(simulate(source="rapl"), MEASURED, FAST_ENOUGH),
    "highest accuracy": lambda: serving(simulate(), EMULATED),
    "lowest loss": lambda: serving(simulate(objective=Objective(minimize="loss")), EMULATED),
    "no energy": lambda: serving(simulate(), {BOARD: (LatencySource.EMULATED, "unavailable")}),
    "a front": lambda: serving(simulate(), EMULATED, Objective("accuracy", ("latency_s", "size_bytes"))),
    "most samples": lambda: serving(simulate(), EMULATED, Objective("throughput_per_s")),
    "out of reach": lambda: serving(simulate(), EMULATED, Objective("accuracy", require={"latency_s": at_most(1e-9)})),
    "one trial": lambda: serving(simulate(1, failing=0), EMULATED),
    "hostile": lambda: serving(simulate(6, name=EVIL), {EVIL: (LatencySource.EMULATED, "modelled")}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_study_with_servings_has_a_valid_report(case: str) -> None:
    summary = CASES[case]()
    html = as_html(summary)
    page = checked(html)
    assert len(html) < 500_000
    assert "serving" in page.ids
    assert "<script>alert" not in html
    assert json.loads(json.dumps(as_json(summary), allow_nan=False))["serving"]["recommendation"]["devices"]
    text = as_text(summary)
    assert summary.recommendation is not None
    for said in (*summary.recommendation.reasons, *summary.recommendation.shortfalls):
        assert said in page.text
        assert said in text


def test_without_servings_there_is_no_serving_section() -> None:
    summary = simulate().summary
    assert (summary.recommendation, summary.devices, dict(summary.labels)) == (None, (), {})
    assert (serving_parts(summary), trade_offs(summary), explained(summary)) == ([], [], [])
    assert "serving" not in as_json(summary)
    assert "serving" not in checked(as_html(summary)).ids
    assert "Serving" not in as_text(summary)
    assert summarize(summary.study, summary.trials, summary.epochs, servings={}) == summary


def test_before_the_first_result_there_is_nothing_to_recommend() -> None:
    simulated = simulate(3, failing=99)
    servings = {(trial.number, BOARD): surface(trial, BOARD) for trial in simulated.trials}
    summary = summarize(simulated.study, simulated.trials, [], servings=servings)
    assert summary.recommendation is None
    assert as_json(summary)["serving"]["recommendation"] is None
    assert "serving" not in checked(as_html(summary)).ids
    assert as_text(summary)


def in_the_first_rung() -> Simulated:
    """Return a study for the lowest latency while all of its trials are in their first rung."""
    simulated = simulate(4, failing=0)
    spec = {**simulated.study.spec, "objective": FAST_ENOUGH.to_json()}
    running = ((trial, trial.rungs[0].undecided) for trial in simulated.trials)
    return Simulated(
        replace(simulated.study, spec=spec, state=StudyState.RUNNING),
        [replace(trial, state=TrialState.RUNNING, rungs=(rung,)) for trial, rung in running],
        [epoch for epoch in simulated.epochs if epoch.rung == 0],
    )


def test_in_the_first_rung_trials_have_the_serving_costs_that_are_known() -> None:
    simulated = in_the_first_rung()
    study, trials, epochs = simulated.study, simulated.trials, simulated.epochs
    servings = {(trial.number, BOARD): surface(trial, BOARD) for trial in trials[:2]}
    own = Objective(maximize="accuracy")
    summary = summarize(study, trials, epochs, devices=[BOARD], servings=servings, epoch_objective=own)
    assert {trial.number for trial in summary.ranking} == {0, 1}
    assert summary.best is not None
    assert summary.best.metrics["latency_s"] == servings[summary.best.number, BOARD].metrics()["latency_s"]
    assert summary.recommendation is not None
    assert summary.recommendation.trial == summary.best.number
    assert f"trial {summary.best.number}: latency_s" in as_text(summary)
    assert as_json(summary)["best"] == summary.best.number
    assert checked(as_html(summary)).text


def test_in_the_first_rung_before_any_serving_cost_is_known_no_trial_is_best() -> None:
    simulated, own = in_the_first_rung(), Objective(maximize="accuracy")
    summary = summarize(simulated.study, simulated.trials, simulated.epochs, devices=[BOARD], epoch_objective=own)
    assert summary.best is None
    assert "none yet" in as_text(summary)
    assert checked(as_html(summary)).text


def test_the_forms_agree_on_points_and_alternatives() -> None:
    summary = CASES["one device"]()
    data, text, page = as_json(summary)["serving"], as_text(summary), checked(as_html(summary)).text
    result = data["recommendation"]
    assert result["trial"] == as_json(summary)["best"]
    (on,) = result["devices"]
    assert set(on["points"]) == {"latency", "throughput", "energy"}
    for form in (text, page):
        for point in on["points"].values():
            assert format_cost("latency_s", point["latency_s"], "emulated") in form
            assert (
                format_cost("throughput_per_s", point["point"]["batch_size"] / point["latency_s"], "emulated") in form
            )
        for candidate in on["alternatives"][:12]:
            assert format_cost("size_bytes", candidate["costs"]["size_bytes"]) in form
            if candidate["trial"] != on["top"]:
                assert f"({candidate['relative']['latency_s']:.2f}×)" in form
        for reason in on["reasons"]:
            assert reason in form


def test_an_estimate_is_marked_at_the_number_and_explained() -> None:
    emulated, measured = CASES["one device"](), CASES["measured"]()
    assert emulated.format("latency_s", 0.002) == "≈ 2 ms"
    assert emulated.format("throughput_per_s", 840.4) == "≈ 840.4/s"
    assert emulated.format("size_bytes", 2048.0) == "2 KiB"
    assert measured.format("latency_s", 0.002) == "2 ms"
    assert measured.format("energy_per_sample_j", 0.002) == "2 mJ"
    assert [way for way, _ in explained(emulated)] == ["emulated", "predicted", "modelled"]
    assert [way for way, _ in explained(measured)] == ["predicted"]
    for form in (as_text(emulated), checked(as_html(emulated)).text):
        assert "latency (emulated)" in form
        assert "energy/sample (modelled)" in form
        assert "measured on this machine, confined to the device" in form
    assert "(emulated)" not in as_text(measured)


def test_each_device_has_its_own_figures() -> None:
    summary = CASES["two devices"]()
    assert summary.devices == (BOARD, LAPTOP)
    assert summary.format(f"latency_s@{BOARD}", 0.002) == "≈ 2 ms"
    assert summary.format(f"latency_s@{LAPTOP}", 0.002) == "2 ms"
    page = checked(as_html(summary))
    assert {"surface-0", "surface-1"} <= set(page.ids)
    assert f"latency_s@{LAPTOP}" not in page.text
    assert [plot.name for plot in trade_offs(summary)] == [
        "tradeoff-latency_s-0", "tradeoff-energy_per_sample_j-0", "tradeoff-size_bytes-0",
        "tradeoff-latency_s-1", "tradeoff-energy_per_sample_j-1",
    ]  # fmt: skip
    surfaces = as_json(summary)["serving"]["surfaces"]
    assert len(surfaces) == len({(known["signature"], known["device"]) for known in surfaces})
    assert sum(len(known["trials"]) for known in surfaces) == len(summary.servings) == 2 * len(summary.trials)


def test_tables_compare_all_trials_by_figures_that_were_measured_alike() -> None:
    goals, simulated = Objective("accuracy", ("latency_s", "size_bytes")), simulate()
    summary = serving(simulated, EMULATED, goals)
    assert summary.remeasured == ""
    compared = summary.ranking[0]
    again = {**compared.metrics, "latency_s": 123.0}
    simulated.study = replace(simulated.study, result={"trial": compared.number, "metrics": again})
    summary = serving(simulated, EMULATED, goals)
    assert summary.best is not None
    assert summary.best.metrics == again
    front = FrontReport(summary)
    assert {trial["number"]: trial["metrics"] for trial in front.as_json()["front"]} == {
        trial.number: trial.metrics for trial in summary.front
    }
    sentence = f"the model of trial {compared.number} was measured again, more precisely, to be handed over: latency_s"
    for text in (front.as_text(), as_text(summary), checked(as_html(summary)).text):
        assert sentence in text


def test_trade_offs_show_the_compared_trials_and_their_front() -> None:
    summary = CASES["one device"]()
    assert summary.recommendation is not None
    (on,) = summary.recommendation.devices
    plot = trade_offs(summary)[0]
    assert plot.picture.count("<circle") == len(on.compared)
    assert "latency_s is emulated" in plot.caption
    assert "accuracy against latency" in plot.title.lower()


@pytest.mark.parametrize(
    ("objective", "quality"),
    [
        (Objective("accuracy"), Goal("accuracy", True)),
        (Objective(minimize="loss"), Goal("loss", False)),
        (FAST_ENOUGH, Goal("accuracy", True)),
        (Objective(minimize="latency_s", require={"loss": at_most(9.0)}), Goal("loss", False)),
        (Objective(minimize=("latency_s", "loss")), Goal("loss", False)),
        (Objective("throughput_per_s"), Goal("accuracy", True)),
    ],
)
def test_the_quality_is_derived_from_the_objective(objective: Objective, quality: Goal) -> None:
    summary = serving(simulate(8, failing=0), EMULATED, objective)
    assert summary.recommendation is not None
    assert summary.recommendation.quality == quality
    summary = serving(simulate(8, failing=0), EMULATED, objective, quality=Goal("train_loss", False))
    assert summary.recommendation is not None
    assert summary.recommendation.quality.metric == "train_loss"


def test_the_nearest_trial_is_shown_if_none_is_feasible() -> None:
    page = checked(as_html(CASES["out of reach"]())).text
    assert "no trial meets latency_s<=1e-09; the closest, trial" in page
    assert "too much, emulated)" in page
