"""Compression in the loop: dense trials as ever, and their forks as points of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from onefold import Budget, Float, ForkOptions, Objective, Recipe, Space, deploy
from onefold.compression import unpack
from onefold.compression.api import PACKED
from onefold.compression.onnx_weights import weight_sparsity
from onefold.report import FrontReport, StudyReport
from onefold.store.home import Home
from onefold.study import Result, Study
from onefold.study.summary import summary_of
from onefold.testing.toy import Lines, Spirals
from onefold.vocabulary.errors import InputError, ModelError, OnefoldError
from onefold.vocabulary.forks import fork_of
from onefold.vocabulary.ranking import front
from onefold.vocabulary.records import Config, StudyState, Trial
from small_studies import small_study

INT8, SPARSE = Recipe(precision="int8"), Recipe(sparsity=0.5, precision="int8")
BUDGET = Budget(trials=4, max_epochs=2)
GOALS = Objective(maximize="accuracy", minimize="encoded_bytes")
TIMED = ("train_time_s", "energy_j", "memory_bytes")


def untimed(trial: Trial) -> dict[str, float]:
    return {name: value for name, value in trial.metrics.items() if name not in (*TIMED, "encoded_bytes")}


class Wide(Spirals):
    """Networks so wide that int8 makes the file smaller."""

    space = Space(training=dict(lr=Float(1e-3, 1e-1, log=True)))

    def build(self, config: Config) -> nn.Module:
        return super().build(Config(config, width=96, layers=2))


@dataclass(frozen=True)
class Forked:
    """A study on this machine whose trials are forked, after its end."""

    study: Study
    result: Result

    @property
    def dense(self) -> list[Trial]:
        return [trial for trial in self.result.trials if fork_of(trial.config) is None]

    def forks(self, recipe: Recipe) -> dict[int, Trial]:
        """Return the forks with a recipe by parent."""
        forks = {trial.number: fork_of(trial.config) for trial in self.result.trials}
        return {
            fork.parent: self.result.trials[number]
            for number, fork in forks.items()
            if fork is not None and fork.recipe == recipe
        }


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory, calibrated: Path) -> Forked:
    home = tmp_path_factory.mktemp("forked")
    shutil.copytree(calibrated, home / "devices")
    study = small_study(
        Wide(),
        home,
        name="s",
        budget=BUDGET,
        device="host",
        objective=Objective(maximize="accuracy", minimize=("latency_s", "encoded_bytes")),
        compress=ForkOptions((INT8, SPARSE), epochs=1, distill=0.5),
    )
    return Forked(study, study.run())


def test_every_trial_is_scored_with_int8_and_the_best_are_forked(forked: Forked) -> None:
    int8, sparse = forked.forks(INT8), forked.forks(SPARSE)
    assert int8.keys() == {trial.number for trial in forked.dense}
    assert len(forked.dense) == BUDGET.trials
    assert sparse
    full = [trial.number for trial in forked.dense if trial.level == forked.study.spec.budget.top_level]
    assert sparse.keys() <= set(full)
    for trial in forked.dense:
        fork = int8[trial.number]
        assert [(rung.grant.level, rung.grant.epochs) for rung in fork.rungs] == [
            (trial.level, trial.rungs[-1].grant.epochs)
        ]
        assert fork.metrics["encoded_bytes"] < trial.metrics["encoded_bytes"]
        assert fork.metrics["latency_s"] > 0
    for parent, fork in sparse.items():
        assert fork.rungs[0].grant.epochs == BUDGET.max_epochs + 1
        assert fork.metrics["train_time_s"] > forked.result.trials[parent].metrics["train_time_s"]


def test_dense_trials_train_as_without_forks(tmp_path: Path) -> None:
    options: dict[str, Any] = {"budget": Budget(trials=1, max_epochs=2), "rungs": "none"}
    plain = small_study(Spirals(), tmp_path, name="plain", **options).run()
    forked = small_study(Spirals(), tmp_path, name="forked", compress=ForkOptions((INT8,)), **options).run()
    assert untimed(forked.trials[0]) == untimed(plain.trials[0])
    assert [fork_of(trial.config) is None for trial in forked.trials] == [True, False]


def test_dense_and_forked_points_are_ranked_together(forked: Forked) -> None:
    with closing(Home(forked.result.folder.parent.parent).store()) as store:
        summary = summary_of("s", store, folder=forked.result.folder)
    top = {trial.number for trial in forked.result.trials if trial.state.value == "done"}
    assert {trial.number for trial in forked.result.front} <= top
    expected = front(forked.result.trials, forked.study.spec.objective)
    assert {trial.number for trial in forked.result.front} == {trial.number for trial in expected}
    assert [(level.grant.level, level.grant.epochs, level.most_epochs) for level in summary.levels] == [
        (level, level, level) for level in (1, 2)
    ]
    assert sum(level.trials for level in summary.levels) == sum(len(trial.rungs) for trial in forked.dense)
    assert summary.forks[-1].most_epochs == max(trial.rungs[-1].grant.epochs for trial in forked.result.trials)
    data = StudyReport(summary).as_json()
    assert [level["trials"] for level in data["forks"]] == [level.trials for level in summary.forks]
    text, page = FrontReport(summary).as_text(), StudyReport(summary).as_html()
    assert "compress_of" not in page.partition(">Configurations<")[2].partition("</figure>")[0]
    drawn = page.count(f"recommended: trial {forked.result.best.number}<")
    assert drawn == page.count("Pareto front: not dominated") + page.count("Pareto front of these two") > 3
    assert page.count(" chosen") >= 2 * drawn, "in the legend and in the plot"
    for member in forked.result.front:
        fork = fork_of(member.config)
        assert fork is None or (str(fork) in text and str(fork) in page)


def test_any_point_can_be_exported_by_its_number(forked: Forked, tmp_path: Path) -> None:
    fork = next(iter(forked.forks(SPARSE).values()))
    folder = forked.study.export(tmp_path / "fork", fork.number)
    card, model = json.loads((folder / "model.json").read_text()), folder / deploy.MODEL
    assert (card["trial"], card["variant"], card["config"]) == (fork.number, str(SPARSE), dict(fork.config))
    assert card["metrics"]["encoded_bytes"] == card["compression"]["packed_bytes"] == fork.metrics["encoded_bytes"]
    assert unpack((folder / PACKED).read_bytes()) == model.read_bytes()
    assert weight_sparsity(model) > 0.4
    served, data = deploy.load(folder), Spirals().data()
    for part, metrics in ((data.train, None), (data.validation, card["metrics"]), (data.test, card["test"])):
        points, labels = part
        accuracy = float((np.asarray(served(points)).argmax(axis=1) == labels).mean())
        assert metrics is None or metrics["accuracy"] == pytest.approx(accuracy)
    parent = forked.study.export(tmp_path / "dense", fork_of(fork.config).parent)  # type: ignore[union-attr]
    assert (parent / "weights.safetensors").is_file()
    assert "variant" not in json.loads((parent / "model.json").read_text())


def test_a_fork_can_be_handed_over(tmp_path: Path) -> None:
    smallest = Objective(maximize="accuracy", minimize="encoded_bytes", prefer="encoded_bytes")
    options = ForkOptions((INT8, SPARSE), epochs=1)
    study = small_study(Wide(), tmp_path, budget=BUDGET, objective=smallest, compress=options)
    result = study.run()
    fork = fork_of(result.config)
    assert fork is not None
    saved = result.save(tmp_path / "model")
    assert (saved / deploy.MODEL).read_bytes() == (result.folder / "best" / deploy.MODEL).read_bytes()
    assert json.loads((saved / "model.json").read_text())["variant"] == str(fork.recipe)
    assert result.test["accuracy"] > 0
    with pytest.raises(OnefoldError, match="compressed"):
        result.model()
    again = study.run()  # nothing is left to do
    assert (again.best.number, again.test) == (result.best.number, result.test)
    more = study.extend(trials=2).run()
    assert sum(fork_of(trial.config) is None for trial in more.trials) == BUDGET.trials + 2
    warm = small_study(Wide(), tmp_path, budget=Budget(trials=1, max_epochs=1), warm_start=study.name)
    assert {fork_of(seen.config) for seen in warm.spec.learned} == {None}


class NotAClassifier(Lines):
    """A regression; forks of it cannot be distilled."""


def test_distillation_is_refused_for_other_outputs_than_class_scores(tmp_path: Path) -> None:
    study = small_study(NotAClassifier(), tmp_path, compress=ForkOptions(distill=0.5), name="s")
    with pytest.raises(ModelError, match="needs a classifier"):
        study.run()
    assert not Home(tmp_path).folder("s").exists()
    sparse = ForkOptions((Recipe(sparsity=0.3),), epochs=1)
    assert small_study(NotAClassifier(), tmp_path, compress=sparse, budget=BUDGET).run().metrics["rmse"] > 0


def test_a_recipe_that_a_network_does_not_support_fails_alone(tmp_path: Path) -> None:
    narrow = ForkOptions((Recipe(channels=0.5), INT8), epochs=1)
    result = small_study(Lines(), tmp_path, compress=narrow, budget=BUDGET).run()
    failed = [trial for trial in result.trials if trial.failure is not None]
    assert len(failed) <= 1
    assert all(fork_of(trial.config) is not None for trial in failed)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compress": ForkOptions((Recipe(precision="int9"),))}, "did you mean 'int8'"),
        ({"compress": "in-loop", "budget": Budget(kind="time")}, "divides epochs"),
    ],
)
def test_invalid_options_are_rejected(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        small_study(Spirals(), tmp_path, **options)


# Every epoch takes a turn from a pipe, so that the study can be killed while a fork trains.
PACED = """
import os
from onefold.testing.toy import Spirals

class Paced(Spirals):
    def train_epoch(self, *args):
        with open(os.environ["TURNS"], "r+b", buffering=0) as turns:
            turns.read(1)
        return super().train_epoch(*args)
"""


def events(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    return map(json.loads, iter(process.stdout.readline, b""))


def test_a_study_that_is_killed_while_a_fork_trains_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    workload, turns, killed = tmp_path / "paced.py", tmp_path / "turns", tmp_path / "killed"
    workload.write_text(PACED)
    os.mkfifo(turns)
    options = [
        "--trials",
        "2",
        "--max-epochs",
        "2",
        "--rungs",
        "none",
        "--knobs",
        "off",
        "--compress",
        "in-loop",
        "--fork-epochs",
        "1",
    ]
    options += ["--maximize", "accuracy", "--minimize", "encoded_bytes", "--parallel", "1", "--name", "s"]

    def onefold(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "onefold.cli", *words, "--home", str(killed), "--json"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "TURNS": str(turns)})

    with turns.open("r+b", buffering=0) as given:
        process = onefold("tune", f"{workload}:Paced", *options)
        for event in events(process):
            if event["kind"] == "fork" and "compress_sparsity" in event["config"]:
                break  # it waits for its first turn
            if event["kind"] == "trial":
                given.write(b"..")
        process.kill()
        process.communicate()
        given.write(b"." * 1000)
        process = onefold("resume", "s")
        process.communicate()
        assert process.returncode == 0
    quiet = small_study(
        Spirals(), tmp_path / "quiet", name="s", budget=Budget(trials=2, max_epochs=2), objective=GOALS, parallel=1,
        rungs="none", compress=ForkOptions(epochs=1),
    )  # fmt: skip
    quiet.run()
    with closing(Home(killed).store()) as store:
        assert store.study("s").state is StudyState.DONE
        trials = store.trials("s")
    expected = quiet.trials
    assert [(trial.number, trial.config, trial.state) for trial in trials] == [
        (trial.number, trial.config, trial.state) for trial in expected
    ]
    assert [untimed(trial) for trial in trials] == [untimed(trial) for trial in expected]
    assert [[rung.decision for rung in trial.rungs] for trial in trials] == [
        [rung.decision for rung in trial.rungs] for trial in expected
    ]
