from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from page_checks import checked
from simulated_study import Simulated, simulate

from onefold import Budget, Choice, Float, Objective, Space, at_least, at_most
from onefold.report.study.page import as_html
from onefold.report.study.plain import as_json
from onefold.report.study.summary import summarize
from onefold.report.study.text import as_text
from onefold.vocabulary.records import FailureKind, Measurement, RungState, StudyState, TrialState

EVIL = "<script>alert('x')</script>&\"quoted\" </title></svg>"


def scaled(factor: float) -> Simulated:
    """Return a study with very large or very small losses."""
    simulated = simulate(objective=Objective(minimize="loss"))
    trials = [
        replace(
            trial,
            rungs=tuple(
                replace(rung, metrics={name: value * factor for name, value in rung.metrics.items()})
                for rung in trial.rungs
            ),
        )
        for trial in simulated.trials
    ]
    epochs = [
        replace(epoch, metrics={name: value * factor for name, value in epoch.metrics.items()})
        for epoch in simulated.epochs
    ]
    return Simulated(simulated.study, trials, epochs)


def half_done() -> Simulated:
    """Return a study that is still running."""
    simulated = simulate(12, seed=4)
    trials = list(simulated.trials)
    for index in (5, 6, 7):
        waiting = replace(
            trials[index].rungs[0],
            state=RungState.DECIDED,
            metrics={},
            failure=None,
            ended_s=None,
            measurement=Measurement.nothing(),
        )
        trials[index] = replace(trials[index], rungs=(waiting,), state=TrialState.RUNNING)
    return Simulated(replace(simulated.study, state=StudyState.RUNNING, reason=""), trials, simulated.epochs)


def hostile() -> Simulated:
    """Return a study in which every name given by a user attempts an injection."""
    space = Space(model={"kind": Choice(EVIL, "plain"), "lr": Float(1e-4, 1.0, log=True), "a" * 90: Float(0, 1)})
    simulated = simulate(space=space, name=EVIL * 4)
    trials = []
    for trial in simulated.trials:
        rungs = []
        for rung in trial.rungs:
            failure = rung.failure and replace(rung.failure, reason=EVIL, traceback=EVIL)
            rungs.append(replace(rung, metrics={**rung.metrics, EVIL: 1.0} if rung.metrics else {}, failure=failure))
        refusals = tuple(replace(refusal, reason=EVIL) for refusal in trial.refusals)
        trials.append(replace(trial, rungs=tuple(rungs), refusals=refusals))
    spec = {**simulated.study.spec, "workload": EVIL, "search": {EVIL: EVIL}, EVIL: [EVIL]}
    study = replace(simulated.study, reason=EVIL, created=EVIL, spec=spec)
    return Simulated(study, trials, simulated.epochs)


TWO_GOALS = Objective(maximize="accuracy", minimize="train_time_s")
CASES: dict[str, Callable[[], Simulated]] = {
    "halving": simulate,
    "no trials": lambda: simulate(0),
    "one trial": lambda: simulate(1, failing=0),
    "two trials": lambda: simulate(2, failing=0),
    "all failed": lambda: simulate(6, failing=99),
    "minimized": lambda: simulate(objective=Objective(minimize="loss")),
    "nothing keeps": lambda: simulate(objective=Objective(maximize="accuracy", require={"loss": at_most(0)})),
    "two goals": lambda: simulate(objective=TWO_GOALS),
    "two goals, none keeps": lambda: simulate(
        objective=Objective(maximize="accuracy", minimize="loss", require={"accuracy": at_least(2)})
    ),
    "two goals, all failed": lambda: simulate(6, failing=99, objective=TWO_GOALS),
    "three goals": lambda: simulate(60, objective=Objective("accuracy", ("train_time_s", "parameters"))),
    "no rungs": lambda: simulate(rungs="none"),
    "many levels": lambda: simulate(30, budget=Budget(trials=30, growth="linear", max_epochs=20)),
    "by time": lambda: simulate(budget=Budget(kind="time")),
    "huge": lambda: scaled(1e300),
    "tiny": lambda: scaled(1e-300),
    "negative": lambda: scaled(-1.0),
    "zero": lambda: scaled(0.0),
    "running": half_done,
    "no energy": lambda: simulate(source="unavailable"),
    "hostile": hostile,
    "no space": lambda: replace(simulate(), study=replace(simulate().study, spec={})),
    "no epochs": lambda: replace(simulate(), epochs=[]),
    "nothing varies": lambda: simulate(3, space=Space(lr=0.1), failing=0),
}


@pytest.mark.parametrize("case", CASES)
def test_every_study_has_a_valid_page(case: str) -> None:
    summary = CASES[case]().summary
    html = as_html(summary)
    checked(html)
    assert len(html) < 250_000
    assert as_text(summary)
    assert as_json(summary)


def test_names_given_by_users_are_escaped() -> None:
    html = as_html(hostile().summary)
    page = checked(html)
    assert page.text.count("<script>alert('x')</script>") > 20
    assert "<script>alert" not in html


def test_only_our_own_script_may_run() -> None:
    html = as_html(simulate(3).summary)
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert f"script-src 'sha256-{digest.replace('+', '&#43;')}'".replace("&#43;", "+") in policy[1].replace(
        "&#43;", "+"
    )


def test_a_page_of_two_hundred_trials_is_small() -> None:
    summary = simulate(200, budget=Budget(trials=200, max_epochs=27), seed=3).summary
    html = as_html(summary)
    checked(html)
    assert len(html.encode()) < 400_000


def test_a_page_of_long_training_is_small() -> None:
    simulated = simulate(200, budget=Budget(trials=200, max_epochs=300, min_epochs=100), seed=3)
    assert len(simulated.epochs) > 10_000
    assert len(as_html(simulated.summary).encode()) < 500_000


def test_the_page_has_all_its_parts() -> None:
    page = checked(as_html(simulate().summary))
    assert set(page.ids) >= {"best", "plots", "progress", "curves", "parallel", "rungs", "trials", "failures", "how"}
    for wanted in ("seed", "halving", "tpe", "Copy", "optimizer is sgd", "Traceback", "rejected by the workload"):
        assert wanted in page.text
    assert "front" not in page.ids
    assert "front" in checked(as_html(simulate(objective=TWO_GOALS).summary)).ids


def test_a_study_without_a_result_has_a_note() -> None:
    failed = checked(as_html(simulate(6, failing=99).summary)).text
    assert "No trial finished a rung. The failures below say why." in failed
    assert FailureKind.OUT_OF_MEMORY.value in failed
    assert (
        "No trial has a result yet."
        in checked(as_html(summarize(replace(simulate(0).study, state=StudyState.RUNNING), [], []))).text
    )
    missed = simulate(objective=Objective(maximize="accuracy", require={"accuracy": at_least(2)})).summary
    assert "No trial meets the requirements." in as_html(missed)
