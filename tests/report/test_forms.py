"""Text, JSON and HTML agree."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from page_checks import checked
from simulated_study import Simulated, simulate

from onefold import Objective, at_least
from onefold.report.study.page import as_html
from onefold.report.study.plain import as_json
from onefold.report.study.summary import Summary
from onefold.report.study.text import as_text
from onefold.vocabulary import quantities

SEVERAL = Objective(maximize="accuracy", minimize="train_time_s", require={"accuracy": at_least(0.5)})


@pytest.fixture(params=["one goal", "minimized", "several goals", "measured"])
def simulated(request: pytest.FixtureRequest) -> Simulated:
    return {
        "one goal": lambda: simulate(),
        "minimized": lambda: simulate(objective=Objective(minimize="loss"), seed=1),
        "several goals": lambda: simulate(objective=SEVERAL, seed=2),
        "measured": lambda: simulate(source="rapl", seed=3),
    }[request.param]()


def plain(summary: Summary) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(as_json(summary), allow_nan=False))
    return data


def test_the_numbers_agree(simulated: Simulated) -> None:
    summary = simulated.summary
    data, text, page = plain(summary), as_text(summary), checked(as_html(summary)).text
    best = next(trial for trial in data["trials"] if trial["number"] == data["best"])
    for metric in summary.objective.metrics:
        written = summary.format(metric, best["metrics"][metric])
        assert written in text
        assert written in page
    for form in (text, page):
        assert f"trial {data['best']}" in form.replace("trial: ", "trial ")
        assert quantities.duration(data["study"]["elapsed_s"]) in form
        assert quantities.duration(data["cost"]["time_s"]) in form
        assert quantities.duration(data["cost"]["cpu_s"]) in form
        assert quantities.joules(data["cost"]["energy_j"]) in form
        assert data["study"]["reason"] in form
        for state, count in data["counts"].items():
            assert state == "all" or f"{count} {state}" in form
        for failure in data["failures"]:
            assert failure["reason"] in form
        for level in data["levels"]:
            assert level["best"] is None or summary.format(summary.goal_metric, level["best"]) in form


def test_an_estimate_is_called_one_in_every_form() -> None:
    estimated, measured = simulate().summary, simulate(source="rapl").summary
    assert not plain(estimated)["cost"]["energy_measured"]
    assert plain(estimated)["cost"]["energy_source"] == "modelled"
    assert plain(measured)["cost"]["energy_measured"]
    for form in (as_text, as_html):
        assert "estimate" in form(estimated)
        assert "≈" in form(estimated)
        assert "estimate" not in form(measured).replace("/* estimate */", "")
        assert "≈" not in form(measured)


def test_the_json_has_the_documented_keys_and_loses_nothing(simulated: Simulated) -> None:
    data = plain(simulated.summary)
    assert set(data) == {
        "format", "study", "best", "ranking", "front", "reasons", "counts", "cost", "trials", "levels", "epochs",
        "progress", "curves", "failures",
    }  # fmt: skip
    assert len(data["trials"]) == data["counts"]["all"] == len(simulated.trials)
    assert len(data["epochs"]) == len(simulated.epochs)
    assert sum(len(trial["rungs"]) for trial in data["trials"]) == sum(len(trial.rungs) for trial in simulated.trials)
    assert data["trials"][0]["config"] == dict(simulated.trials[0].config)
    assert data["study"]["spec"] == json.loads(json.dumps(simulated.study.spec))
    assert data["best"] == (data["ranking"] or [None])[0]
    assert data["trials"][0]["refusals"][0]["reason"]


def test_numbers_that_are_not_finite_become_null() -> None:
    simulated = simulate(3, failing=0)
    odd = replace(simulated.trials[0].rungs[0], metrics={"accuracy": 0.5, "loss": math.inf, "train_loss": math.nan})
    trials = [replace(simulated.trials[0], rungs=(odd,)), *simulated.trials[1:]]
    summary = Simulated(simulated.study, trials, simulated.epochs).summary
    assert plain(summary)["trials"][0]["metrics"] == {"accuracy": 0.5, "loss": None, "train_loss": None}
    checked(as_html(summary))


def test_the_test_metrics_are_in_every_form() -> None:
    simulated = simulate()
    best = simulated.summary.best
    assert best is not None
    study = replace(simulated.study, result={"trial": best.number, "test": {"accuracy": 0.4321}})
    summary = replace(simulated, study=study).summary
    assert plain(summary)["study"]["result"]["test"]["accuracy"] == 0.4321
    for form in (as_text(summary), as_html(summary)):
        assert "0.4321" in form
        assert "on test data" in form


def test_the_text_is_plain_and_brief() -> None:
    for summary in (simulate(200).summary, simulate(0).summary, simulate(5, failing=99).summary):
        text = as_text(summary)
        assert text.endswith("\n")
        assert len(text.splitlines()) < 60
        assert all(line == line.rstrip() for line in text.splitlines())


def test_control_characters_do_not_reach_the_terminal() -> None:
    simulated = simulate(5)
    study = replace(simulated.study, name="evil\x1b[2Jname\nsecond", reason="a\r\nb\x07")
    text = as_text(replace(simulated, study=study).summary)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.splitlines()[0].startswith("evil")
