"""A whole impact analysis of a small workload: trained once, measured, reported, resumed, killed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

from onefold import ParallelismOptions
from onefold.compression import trial_variants
from onefold.impact_analysis import TUNE_ALL, compared_pairs, importance, plan_arms
from onefold.impact_analysis.api import ImpactOptions, ImpactResult, impact
from onefold.report.impact import ImpactReport
from onefold.study import Home, StudyEvent
from onefold.study.tunable import Tunable
from onefold.vocabulary.errors import InputError, Rejected
from onefold.vocabulary.records import Config, StudyState, Trial
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
# With this seed an arm has a third trial that only another arm promotes, and one trial is measured for no arm.
OPTIONS = ImpactOptions(trials=3, best=2, max_epochs=2)
ARGUMENTS: dict[str, Any] = dict(
    options=OPTIONS, seed=4, knobs="off", parallelism=ParallelismOptions(engine="inline"), name="small"
)
PRUNED = Recipe(sparsity=0.5, precision="int8")
ARMS = [TUNE_ALL, "fix model", "fix filters", "fix hidden", "fix lr"]


class Analysis:
    """An impact analysis that can be run again."""

    def __init__(self, here: Path, calibrated: Path) -> None:
        here.mkdir(exist_ok=True)
        self.home, self.file = here / "home", here / "small.py"
        self.file.write_text(WORKLOAD)
        shutil.copytree(calibrated, self.home / "devices")
        self.events: list[StudyEvent] = []

    def run(self, **arguments: Any) -> ImpactResult:
        self.events.clear()
        return impact(
            str(self.file), **{"recipe": PRUNED, **ARGUMENTS, **arguments}, home=self.home, on_event=self.events.append
        )

    def of(self, kind: str) -> list[StudyEvent]:
        return [event for event in self.events if event.kind == kind]

    @property
    def trials(self) -> list[Trial]:
        with closing(Home(self.home).store()) as store:
            return store.trials("small")


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """Few trees and timing rounds: both have their own tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("onefold.impact_analysis.findings"), "importance", partial(importance, trees=8))
        patch.setattr(trial_variants, "TIMING_ROUNDS", 2)
        yield


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, calibrated: Path) -> Analysis:
    return Analysis(tmp_path_factory.mktemp("impact"), calibrated)


@pytest.fixture(scope="module")
def result(ran: Analysis) -> ImpactResult:
    result = ran.run()
    messages = [event.message for event in ran.of("stage")]  # type: ignore[attr-defined]
    assert messages[0].startswith("15 trials in 5 arms; ")
    assert any(message.startswith("compressing and measuring on host: ") for message in messages)
    assert messages[-1] == "comparing the arms"
    return result


def test_shared_configurations_are_trained_once(ran: Analysis, result: ImpactResult) -> None:
    evidence = result.findings.evidence
    assert [arm.name for arm in evidence.arms] == ARMS
    assert {trial for arm in evidence.arms for trial in arm.members} == set(evidence.configs)
    assert [trial.number for trial in ran.trials] == list(evidence.configs)
    configs = [trial.config for trial in ran.trials]
    assert len(set(configs)) == len(configs) < sum(len(arm.members) for arm in evidence.arms)
    assert all([rung.grant.epochs for rung in trial.rungs] in ([1], [1, 2]) for trial in ran.trials)
    assert evidence.failures == {}


def test_the_best_of_each_arm_are_fully_trained_measured_and_compressed(ran: Analysis, result: ImpactResult) -> None:
    evidence = result.findings.evidence
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
    ranking = sorted(trials, key=lambda number: (-evidence.scores[number], number))
    for arm in evidence.arms:
        assert evidence.pairs[arm.name] == compared_pairs(arm, ranking, 2)
        chosen |= {number for pair in evidence.pairs[arm.name] for number in pair}
    assert {number for number, trial in trials.items() if len(trial.rungs) == 2} == chosen
    assert set(evidence.models) == chosen | set(evidence.arms[0].members)
    for number, model in evidence.models.items():
        assert model.score == trials[number].metrics["accuracy"]
        assert evidence.scores[number] == trials[number].rungs[0].metrics["accuracy"]
        assert bool(model.compressed) == (number in chosen)
        assert {"accuracy", "latency_s", "size_bytes", "encoded_bytes", "flops"} <= set(model.plain)
        if model.compressed:
            assert model.compressed["size_bytes"] < model.plain["size_bytes"]


def test_the_best_of_tune_all_have_a_control(result: ImpactResult) -> None:
    evidence = result.findings.evidence
    for trial, model in evidence.models.items():
        if trial not in evidence.best[TUNE_ALL]:
            assert model.control == {}
            continue
        assert set(model.control) == set(model.plain)
        assert {name for name in model.control if model.control[name] != model.plain[name]} <= {"accuracy"}
    assert any(
        model.control["accuracy"] != model.plain["accuracy"] for model in evidence.models.values() if model.control
    )


def test_the_repeatability_of_measurements_is_recorded(result: ImpactResult) -> None:
    for model in result.findings.evidence.models.values():
        assert set(model.repeatability) == ({"plain", "compressed"} if model.compressed else {"plain"})
        assert all(0 <= rsd["latency_s"] < 5 for rsd in model.repeatability.values())


def test_models_of_one_architecture_differ_in_no_cost_of_serving(result: ImpactResult) -> None:
    evidence = result.findings.evidence
    by_architecture: dict[tuple[Any, Any], list[Any]] = {}
    for model in evidence.models.values():
        by_architecture.setdefault((model.config.filters, model.config.hidden), []).append(model)
    assert any(len(models) > 1 for models in by_architecture.values())
    for name in ("latency_s", "energy_j", "memory_bytes", "size_bytes"):
        for models in by_architecture.values():
            for form in ("plain", "compressed"):
                assert len({model.form(form)[name] for model in models if model.form(form)}) <= 1  # type: ignore[arg-type]
        effects = [effect for effect in result.findings.effects if (effect.arm, effect.property) == ("fix lr", name)]
        assert effects
        assert all(effect.paired.n and not effect.paired.differing for effect in effects)
    pruned = [model.compressed["encoded_bytes"] for model in evidence.models.values() if model.compressed]
    assert len(set(pruned)) > len(by_architecture)  # zeros lie elsewhere in each


def test_the_report_is_written(result: ImpactResult) -> None:
    assert result.report.read_text().startswith("<!")
    figures = json.loads(result.figures.read_text())
    assert figures == json.loads(json.dumps(ImpactReport(result.findings).as_json()))
    assert figures["evidence"]["recipe"] == "50% sparsity, int8"
    assert set(result.findings.evidence.ways) >= {prop.name for prop in result.findings.evidence.properties}
    assert "What can be left at its default?" in [part.question for part in result.advice]
    assert result.findings.forms == ("plain", "compressed")


def test_only_measured_models_keep_their_weights(ran: Analysis, result: ImpactResult) -> None:
    files = (ran.home / "studies" / "small" / "trials").iterdir()
    assert {int(file.name[:5]) for file in files} == set(result.findings.evidence.models)
    assert not list((ran.home / "studies" / "small" / "forms").glob("*/*.onnx"))


def test_a_finished_analysis_is_reported_again_without_training(ran: Analysis, result: ImpactResult) -> None:
    before = ran.trials
    again = ran.run()
    assert {event.kind for event in ran.events} == {"stage"}
    assert again == result
    assert ran.trials == before


def test_other_options_under_the_same_name_are_rejected(ran: Analysis, result: ImpactResult) -> None:
    with pytest.raises(InputError, match="there is a study 'small' already, with other arms"):
        ran.run(options=replace(OPTIONS, trials=2))
    with pytest.raises(InputError, match="there is a study 'small' already, with other arms"):
        ran.run(seed=1)


TUNED_EPOCHS = """
from onefold import Choice, Int, Space
from onefold.workloads.digits import Digits

class Tuned(Digits):
    space = Space(lr=Choice(0.001, 0.01), epochs=EPOCHS)
"""


@pytest.mark.parametrize("epochs", ["Int(1, 10)", "Choice(2, 10)", "10"])
def test_the_full_training_covers_the_hyperparameter_epochs(tmp_path: Path, epochs: str) -> None:
    (tmp_path / "tuned.py").write_text(TUNED_EPOCHS.replace("EPOCHS", epochs))
    space = Tunable(str(tmp_path / "tuned.py")).space
    assert ImpactOptions().full_epochs(space) == ImpactOptions(max_epochs=10).full_epochs(space) == 10
    assert ImpactOptions(max_epochs=12).full_epochs(space) == 12
    with pytest.raises(InputError, match="max_epochs must be at least 10, the largest value of the hyperparameter"):
        ImpactOptions(max_epochs=9).full_epochs(space)
    assert ImpactOptions().full_epochs(Tunable("digits").space) == 4


UNBUILDABLE = """
import torch
from onefold import Choice, Data, Float, Space, Workload
from onefold.testing.toy import spirals

class Mine(Workload):
    space = Space(
        model=dict(width=Choice(4, 7, 8, default=8), heads=Choice(1, 2)),
        lr=Float(0.01, 0.1, log=True), other=dict(momentum=Float(0.0, 0.9)),
    )
    def build(self, config):
        attention = torch.nn.MultiheadAttention(config.width, config.heads)  # an error if heads do not divide the width
        weight = float(attention.out_proj.weight.detach().abs().sum())
        return torch.nn.Sequential(torch.nn.Linear(2, config.width), torch.nn.Linear(config.width, 2 + 0 * int(weight)))
    def data(self):
        return Data(train=spirals(200, 0), test=spirals(50, 1))
"""


def test_configurations_that_cannot_be_built_are_drawn_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(UNBUILDABLE)
    tunable = Tunable(str(tmp_path / "mine.py"))
    loose, plan = (plan_arms(tunable.space, 8, check=check) for check in (tunable.check, tunable.check_build))
    assert {(config.width, config.heads) for config in loose.configs} > {(7, 2)}
    assert (7, 2) not in {(config.width, config.heads) for config in plan.configs}
    assert {len(arm.members) for arm in plan.arms} == {8}
    assert loose.rejections == ""
    assert re.fullmatch(r"the workload rejects \d+% of the draws, most often: build\(\) failed: .*", plan.rejections)
    with pytest.raises(Rejected, match=r"build\(\) failed: .*embed_dim must be divisible by num_heads"):
        tunable.check_build(Config(width=7, heads=2, lr=0.01, momentum=0.5))


def plain_function(x: float) -> float:
    return x


@pytest.mark.parametrize(
    ("workload", "arguments", "message"),
    [
        ("digits", dict(options=replace(OPTIONS, best=1)), "best must be at least 2"),
        ("digits", dict(options=replace(OPTIONS, best=4)), "best must be at most trials"),
        ("digits", dict(recipe=Recipe()), "leaves models unchanged"),
        ("digits", dict(recipe=Recipe(precision="int9")), "did you mean 'int8'"),
        ("digits", dict(device="rasberry-pi-4"), "did you mean 'raspberry-pi-4'"),
        ("digits", dict(recipe=None, server="host", device="raspberry-pi-4"), "leave server out, or give device="),
        ("digits", dict(recipe=None, options=replace(OPTIONS, fine_tuning_epochs=2)), "leave fine_tuning_epochs out"),
        (plain_function, {}, "a function has no model"),
        ("digits", dict(sede=4), "did you mean 'seed'"),
    ],
)
def test_invalid_arguments_are_rejected_before_training(
    tmp_path: Path, workload: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message) as caught:
        impact(workload, **{**ARGUMENTS, **arguments}, home=tmp_path)
    assert type(caught.value).__module__ == "onefold.vocabulary.errors"
    with closing(Home(tmp_path).store()) as store:
        assert store.studies() == []


KILLED = """
import sys
from onefold import ParallelismOptions, Recipe, impact
from onefold.impact_analysis.api import ImpactOptions
impact(
    sys.argv[1], home=sys.argv[2], options=ImpactOptions(trials=3, best=2, max_epochs=2), seed=4, knobs="off",
    parallelism=ParallelismOptions(engine="inline"), name="small",
    recipe=Recipe(sparsity=0.5, precision="int8"),
    on_event=lambda event: print(event.kind, event.facts().get("message"), flush=True),
)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("line", "count"), [("result", 4), ("stage compressing", 3)])
def test_a_killed_analysis_continues_where_it_stopped(
    ran: Analysis, result: ImpactResult, tmp_path: Path, calibrated: Path, line: str, count: int
) -> None:
    cut = Analysis(tmp_path, calibrated)
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
    _, alive = psutil.wait_procs(others, timeout=60)
    assert not alive, "serving processes outlive it"
    with closing(Home(cut.home).store()) as store:
        known = {(rung.trial, rung.rung): rung for trial in store.trials("small") for rung in trial.finished_rungs}
        assert (store.study("small").state is StudyState.DONE) == (line != "result")
    records = {record: record.read_text() for record in (cut.home / "studies" / "small" / "forms").glob("*.json")}
    assert bool(records) == (line != "result")
    again = cut.run()
    after = {(rung.trial, rung.rung): rung for trial in cut.trials for rung in trial.finished_rungs}
    assert known.items() <= after.items()
    assert len(after) == sum(len(trial.rungs) for trial in ran.trials)
    assert {record: record.read_text() for record in records} == records
    one, other = result.findings.evidence, again.findings.evidence
    assert (one.arms, one.best, one.configs, one.scores) == (other.arms, other.best, other.configs, other.scores)
    assert {n: m.plain["accuracy"] for n, m in one.models.items()} == {
        n: m.plain["accuracy"] for n, m in other.models.items()
    }


@pytest.mark.slow
def test_without_a_recipe_only_plain_models_are_analyzed(ran: Analysis, result: ImpactResult, tmp_path: Path) -> None:
    """The trials exist already: only the models are exported and measured."""
    copy = Analysis(tmp_path / "copy", ran.home / "devices")
    shutil.copytree(ran.home, copy.home, dirs_exist_ok=True)
    plain = copy.run(recipe=None)
    assert {event.kind for event in copy.events} == {"stage"}
    assert plain.findings.forms == ("plain",)
    one, other = result.findings.evidence, plain.findings.evidence
    assert (one.best, one.scores) == (other.best, other.scores)
    assert not any(model.compressed for model in other.models.values())


def test_fewer_trials_than_the_default_best_are_all_compared() -> None:
    few = ImpactOptions(trials=4)
    few.check()
    assert (few.best_per_arm, ImpactOptions().best_per_arm, ImpactOptions(trials=4, best=3).best_per_arm) == (4, 10, 3)
