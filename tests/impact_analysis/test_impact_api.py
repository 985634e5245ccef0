"""A whole study of impact on a small workload: trained once, measured, told, resumed, killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from onefold.impact_analysis import TUNE_ALL
from onefold.impact_analysis.api import Impact, impact_of
from onefold.report.impact import ImpactReport
from onefold.study import Home, StudyEvent
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import StudyState, Trial
from onefold.vocabulary.variants import Recipe

WORKLOAD = """
from onefold import Choice, Config, Space
from onefold.workloads.digits import Digits

class Small(Digits):
    space = Space(
        model=dict(filters=Choice(2, 4, default=2), hidden=Choice(8, 16, default=8)),
        training=dict(lr=Choice(0.001, 0.003, 0.01, default=0.003)),
    )
    def build(self, config):
        return super().build(Config(config, depth=1, kernel=3, activation="relu", dropout=0.0))
    def check(self, config):
        pass
"""
# With this seed an arm has a third trial that only another arm sends on, and a trial is measured for no arm.
OPTIONS: dict[str, Any] = dict(trials=3, best=2, max_epochs=2, seed=4, knobs="off", parallel=1, name="small")
INT8 = Recipe(precision="int8")
ARMS = [TUNE_ALL, "fix model", "fix filters", "fix hidden", "fix lr"]


class Ran:
    """A study of impact under way or over."""

    def __init__(self, here: Path, calibrated: Path) -> None:
        here.mkdir(exist_ok=True)
        self.home, self.file = here / "home", here / "small.py"
        self.file.write_text(WORKLOAD)
        shutil.copytree(calibrated, self.home / "devices")
        self.heard: list[StudyEvent] = []

    def run(self, **options: Any) -> Impact:
        self.heard.clear()
        return impact_of(
            str(self.file), **{"recipe": INT8, **OPTIONS, **options}, home=self.home, on_event=self.heard.append
        )

    def of(self, kind: str) -> list[StudyEvent]:
        return [event for event in self.heard if event.kind == kind]

    @property
    def trials(self) -> list[Trial]:
        with closing(Home(self.home).store()) as store:
            return store.trials("small")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, calibrated: Path) -> Ran:
    return Ran(tmp_path_factory.mktemp("impact"), calibrated)


@pytest.fixture(scope="module")
def found(ran: Ran) -> Impact:
    found = ran.run()
    said = [event.message for event in ran.of("stage")]
    assert said[0].startswith("15 trainings in 5 arms, of which ")
    assert any(line.startswith("compressing and measuring on host: ") for line in said)
    assert said[-1] == "comparing the arms"
    return found


def test_every_configuration_is_trained_once_however_many_arms_try_it(ran: Ran, found: Impact) -> None:
    evidence = found.findings.evidence
    assert [arm.name for arm in evidence.arms] == ARMS
    assert {place for arm in evidence.arms for place in arm.members} == set(evidence.configs)
    assert [trial.number for trial in ran.trials] == list(evidence.configs)
    configs = [trial.config for trial in ran.trials]
    assert len(set(configs)) == len(configs) < sum(len(arm.members) for arm in evidence.arms)
    assert all([rung.grant.epochs for rung in trial.rungs] in ([1], [1, 2]) for trial in ran.trials)
    assert evidence.failures == {}


def test_the_best_of_each_arm_were_trained_in_full_measured_and_compressed(ran: Ran, found: Impact) -> None:
    evidence = found.findings.evidence
    trials = {trial.number: trial for trial in ran.trials}
    assert list(evidence.best) == ARMS
    for arm in evidence.arms:
        best = evidence.best[arm.name]
        assert len(best) == 2
        assert set(best) <= set(arm.members)
        first = {number: trials[number].rungs[0].metrics["accuracy"] for number in arm.members}
        assert min(first[number] for number in best) >= sorted(first.values())[-2]
        reached = [trials[number].metrics["accuracy"] for number in best]
        assert reached == sorted(reached, reverse=True)
    chosen = {number for best in evidence.best.values() for number in best}
    assert {number for number, trial in trials.items() if len(trial.rungs) == 2} == chosen
    assert set(evidence.models) == chosen | set(evidence.arms[0].members)
    for number, model in evidence.models.items():
        assert model.score == trials[number].metrics["accuracy"]
        assert evidence.scores[number] == trials[number].rungs[0].metrics["accuracy"]
        assert bool(model.compressed) == (number in chosen)
        assert {"accuracy", "latency_s", "size_bytes", "encoded_bytes", "flops"} <= set(model.plain)
        if model.compressed:
            assert model.compressed["size_bytes"] < model.plain["size_bytes"]


def test_the_page_and_the_figures_are_written(found: Impact) -> None:
    assert found.report.read_text().startswith("<!")
    figures = json.loads(found.figures.read_text())
    assert figures == json.loads(json.dumps(ImpactReport(found.findings).as_json()))
    assert figures["evidence"]["recipe"] == "int8"
    assert set(found.findings.evidence.ways) >= {one.name for one in found.findings.evidence.properties}
    assert "What can be left at its default?" in [part.question for part in found.advice]
    assert found.findings.forms == ("plain", "compressed")


def test_only_what_was_measured_keeps_its_weights(ran: Ran, found: Impact) -> None:
    files = (ran.home / "studies" / "small" / "trials").iterdir()
    assert {int(file.name[:5]) for file in files} == set(found.findings.evidence.models)
    assert not list((ran.home / "studies" / "small" / "forms").glob("*/*.onnx"))


def test_under_its_name_it_is_told_again_and_nothing_is_trained(ran: Ran, found: Impact) -> None:
    before = ran.trials
    again = ran.run()
    assert {event.kind for event in ran.heard} == {"stage"}
    assert again == found
    assert ran.trials == before


def test_other_trials_under_the_same_name_are_refused(ran: Ran, found: Impact) -> None:
    with pytest.raises(InputError, match="there is a study 'small' already, with other arms"):
        ran.run(trials=2)
    with pytest.raises(InputError, match="there is a study 'small' already, with other arms"):
        ran.run(seed=1)


def plain_function(x: float) -> float:
    return x


@pytest.mark.parametrize(
    ("given", "options", "complaint"),
    [
        ("digits", dict(best=1), "2 of the best models at least, but got 1"),
        ("digits", dict(best=4), "an arm of 3 trials has no 4 best; let best be 3 or less"),
        ("digits", dict(recipe=Recipe()), "leaves models as they are"),
        ("digits", dict(recipe=Recipe(precision="int9")), "did you mean 'int8'"),
        ("digits", dict(device="rasberry-pi-4"), "did you mean 'raspberry-pi-4'"),
        (plain_function, {}, "a function has no model"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(
    tmp_path: Path, given: Any, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(Exception, match=complaint) as caught:
        impact_of(given, **{**OPTIONS, **options}, home=tmp_path)
    assert type(caught.value).__module__ == "onefold.vocabulary.errors"
    with closing(Home(tmp_path).store()) as store:
        assert store.studies() == []


KILLED = """
import sys
from onefold.impact_analysis.api import impact_of
from onefold.vocabulary.variants import Recipe
impact_of(
    sys.argv[1], home=sys.argv[2], trials=3, best=2, max_epochs=2, seed=4, knobs="off", parallel=1, name="small",
    recipe=Recipe(precision="int8"), on_event=lambda event: print(event.kind, event.facts().get("message"), flush=True),
)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("line", "count"), [("result", 4), ("stage compressing", 3)])
def test_killed_it_goes_on_where_it_stopped(
    ran: Ran, found: Impact, tmp_path: Path, calibrated: Path, line: str, count: int
) -> None:
    cut = Ran(tmp_path, calibrated)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(cut.file), str(cut.home)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        for _ in range(count):
            while not process.stdout.readline().startswith(line):
                assert process.poll() is None
        others = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(others, timeout=10)
    assert not alive, "whoever trains or serves outlives it"
    with closing(Home(cut.home).store()) as store:
        known = {(rung.trial, rung.rung): rung for trial in store.trials("small") for rung in trial.finished_rungs}
        assert (store.study("small").state is StudyState.DONE) == (line != "result")
    notes = {note: note.read_text() for note in (cut.home / "studies" / "small" / "forms").glob("*.json")}
    assert bool(notes) == (line != "result")
    again = cut.run()
    after = {(rung.trial, rung.rung): rung for trial in cut.trials for rung in trial.finished_rungs}
    assert known.items() <= after.items()
    assert len(after) == sum(len(trial.rungs) for trial in ran.trials)
    assert {note: note.read_text() for note in notes} == notes
    one, other = found.findings.evidence, again.findings.evidence
    assert (one.arms, one.best, one.configs, one.scores) == (other.arms, other.best, other.configs, other.scores)
    assert {n: m.plain["accuracy"] for n, m in one.models.items()} == {
        n: m.plain["accuracy"] for n, m in other.models.items()
    }


@pytest.mark.slow
def test_without_a_recipe_it_says_nothing_of_compression(ran: Ran, found: Impact, tmp_path: Path) -> None:
    """Its trials are there already: only the forms are made, from the weights that were kept."""
    copy = Ran(tmp_path / "copy", ran.home / "devices")
    shutil.copytree(ran.home, copy.home, dirs_exist_ok=True)
    plain = copy.run(recipe=None)
    assert {event.kind for event in copy.heard} == {"stage"}
    assert plain.findings.forms == ("plain",)
    one, other = found.findings.evidence, plain.findings.evidence
    assert (one.best, one.scores) == (other.best, other.scores)
    assert not any(model.compressed for model in other.models.values())
