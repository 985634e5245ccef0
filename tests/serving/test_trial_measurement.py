"""Studies that measure how their trials are served, with real exports, sessions and processes."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from onefold import Budget, Choice, Config, Float, Objective, Space, Study, at_least, at_most, deploy
from onefold.device import PRECISE, QUICK, Device
from onefold.device.catalog import device, save_device
from onefold.processes import available_cores
from onefold.report import StudyReport
from onefold.serving.options import ServingOptions
from onefold.serving.space import ServingSpace
from onefold.serving.trial_measurement import memo_key
from onefold.serving.tuner import PointSearchOptions
from onefold.study import Home, Result, StudyEvent
from onefold.study.spec import Spec
from onefold.study.summary import summary_of
from onefold.testing.toy import Spirals
from onefold.vocabulary.errors import DeviceError, InputError, ObjectiveError, StudyFailed
from onefold.vocabulary.records import FailureKind, StudyState, Trial
from onefold.vocabulary.serving import SERVING_METRICS, Disturbance, LatencySource, OptimizeFor, Surface
from small_studies import small_study

TINY = Budget(trials=4, max_epochs=2, min_data=0.5)
TRAINING = dict(batch_size=32, optimizer="adam", lr=Float(1e-3, 1e-1, log=True))
ONE = Space(model=dict(width=8, layers=1), training=TRAINING)
TWO = Space(model=dict(width=Choice(4, 16), layers=1), training=TRAINING)


class Heard(list[StudyEvent]):
    """The events of a study."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event.facts() for event in self if event.kind == kind]

    @property
    def measured(self) -> list[dict[str, Any]]:
        return [facts for facts in self.of("served") if not facts["recalled"]]


FEW_POINTS = ServingOptions(space=ServingSpace((1, 8), graph_levels=("all",), executions=("sequential",)))


def small(home: Path, heard: Heard | None = None, subject: Any = None, **options: Any) -> Study:
    wanted = {"budget": TINY, "space": TWO, "device": "host", **options}
    if wanted["device"]:
        wanted.setdefault("serving", FEW_POINTS)
    on_event = heard.append if heard is not None else lambda _: None
    return small_study(subject or Spirals(), home, **wanted, on_event=on_event)


def slow(home: Path, name: str = "slow", **figures: Any) -> Device:
    """Add a user's device: this machine, slower, with one core so that no point is predicted."""
    from onefold.device.host import host

    here = host(home / "devices")
    board = replace(here, name=name, cores=1, gflops=here.gflops / 8, overhead_us=here.overhead_us * 8, **figures)
    save_device(board, home / "devices")
    return board


def disturb(monkeypatch: pytest.MonkeyPatch, number: signal.Signals, times: int) -> set[int]:
    """Send a signal to the first `times` processes that are asked to time a model; return the ids of all of them."""
    from onefold.device.measuring_process import MeasuringProcess

    exchange, processes = MeasuringProcess._exchange, set[int]()

    def send_signal(self: MeasuringProcess, message: Any, timeout_s: float) -> Any:
        if message["do"] == "time" and self.pid is not None and self.pid not in processes:
            processes.add(self.pid)
            if len(processes) <= times:
                os.kill(self.pid, number)
        return exchange(self, message, timeout_s)

    monkeypatch.setattr(MeasuringProcess, "_exchange", send_signal)
    return processes


def fastest(trials: Iterable[Trial]) -> set[int]:
    """Return the trials with the lowest latency, as measured to compare them."""
    latencies = {trial.number: trial.metrics["latency_s"] for trial in trials}
    return {number for number, latency in latencies.items() if latency == min(latencies.values())}


def history(home: Path) -> dict[str, Surface]:
    with closing(Home(home).store()) as store:
        return store.surfaces()


def set_disturbance(home: Path, disturbance: Disturbance) -> None:
    """Make the history of this home as good or bad as a test needs it, whatever runs beside the test."""
    with closing(Home(home).store()) as store:
        for key, surface in store.surfaces().items():
            served = (
                replace(each, disturbance=disturbance, low_s=each.latency_s, high_s=each.latency_s)
                for each in surface.served
            )
            store.save_surface(key, replace(surface, served=tuple(served)))


class TestMemo:
    def test_architecture_is_measured_once(self, home: Path) -> None:
        heard = Heard()
        study = small(home, heard)
        result = study.run()
        first = [facts for facts in heard.measured if heard.of("served").index(facts) < len(heard.of("served")) - 1]
        widths = {trial.number: trial.config.width for trial in result.trials}
        assert Counter(widths[facts["trial"]] for facts in first) == Counter(set(widths.values()))
        assert len(heard.measured) == len(set(widths.values())) + 1  # and the winner precisely
        with closing(Home(home).store()) as store:
            stored = store.trial_surfaces(study.name)
        assert set(stored) == {(trial.number, "host") for trial in result.trials}
        by_width = {}
        for (trial, _), surface in stored.items():
            if trial != result.best.number:
                assert by_width.setdefault(widths[trial], surface.served) == surface.served

    def test_training_hyperparameters_need_no_measurement(self, home: Path) -> None:
        heard = Heard()
        small(home, heard, space=ONE).run()
        assert [facts["trial"] for facts in heard.measured][:1] == [0]
        assert len(heard.measured) == 2  # the architecture, and the winner precisely
        assert {facts["recalled"] for facts in heard.of("served")} == {True, False}

    @pytest.mark.parametrize("space", [ONE, TWO], ids=["one", "two"])
    def test_second_study_over_known_architectures_measures_nothing(self, space: Space, home: Path) -> None:
        small(home, space=space, seed=3).run()
        set_disturbance(home, Disturbance())
        heard = Heard()
        again = small(home, heard, space=space, seed=3 if space is TWO else 4)
        result = again.run()
        assert heard.of("served")
        assert heard.measured == []
        with closing(Home(home).store()) as store:
            assert all(surface.recalled for surface in store.trial_surfaces(again.name).values())
        assert all(set(trial.metrics) >= {"latency_s", "throughput_per_s"} for trial in result.trials)

    def test_disturbed_architecture_is_measured_again_where_that_is_quiet(self, home: Path) -> None:
        """Boards need no quiet here; this machine stands for one, since it cannot be made quiet for a test."""
        first = small(home, space=ONE, seed=3)
        first.run()
        set_disturbance(home, Disturbance(0.9))
        before = history(home)
        heard = Heard()
        again = small(home, heard, space=ONE, seed=4)
        again.run()
        quick, winner = heard.of("served")[0], heard.of("served")[-1]
        for facts in (quick, winner):
            if facts["recalled"]:
                assert facts["doubts"] == ["other programs took 90 % of the CPU time"], (
                    "was it busy? then with a warning"
                )
            else:
                assert "90 %" not in str(facts["doubts"])
        assert len(heard.measured) <= 2, "once in a study"
        assert set(history(home)) == set(before)
        with closing(Home(home).store()) as store:
            kept = store.trial_surfaces(first.name)
        served = [surface.served for surface in before.values()]
        assert all(surface.served in served for surface in kept.values()), "studies keep their own figures"

    def test_running_a_finished_study_again_measures_nothing(self, home: Path) -> None:
        study = small(home)
        first = study.run()
        heard = Heard()
        study.on_event = heard.append
        again = study.run()
        assert heard.measured == []
        assert again.best.metrics == first.best.metrics

    def test_memo_key_covers_figures_spaces_and_efforts(self, this_host: Device) -> None:
        other = replace(this_host, gflops=1.0)
        space, serving = ServingSpace((1,)), PointSearchOptions()
        keys = {
            memo_key("a", this_host, this_host, space, serving, QUICK),
            memo_key("b", this_host, this_host, space, serving, QUICK),
            memo_key("a", other, this_host, space, serving, QUICK),
            memo_key("a", this_host, other, space, serving, QUICK),  # scaled from another machine
            memo_key("a", this_host, this_host, replace(space, batch_sizes=(1, 2)), serving, QUICK),
            memo_key("a", this_host, this_host, space, replace(serving, optimize_for=OptimizeFor.ENERGY), QUICK),
            memo_key("a", this_host, this_host, space, replace(serving, algorithm="grid"), QUICK),
            memo_key("a", this_host, this_host, space, serving, replace(QUICK, max_seconds=1.0)),
            memo_key("a", this_host, this_host, space, serving, QUICK, PRECISE),
        }
        assert len(keys) == 9
        assert memo_key("a", replace(this_host, note="x", title="y"), this_host, space, serving, QUICK) in keys


class TestObjectives:
    def test_fastest_feasible_trial_wins(self, home: Path) -> None:
        objective = Objective(minimize="latency_s", require={"accuracy": at_least(0.4)})
        result = small(home, objective=objective, rungs="none").run()
        assert result.is_feasible
        keeping = [trial for trial in result.trials if trial.metrics["accuracy"] >= 0.4]
        assert result.best.number in fastest(keeping)

    def test_infeasible_requirement_gives_the_closest_trial(self, home: Path) -> None:
        objective = Objective(maximize="accuracy", require={"latency_s": at_most(1e-12)})
        result = small(home, objective=objective, rungs="none").run()
        assert not result.is_feasible
        assert result.best.number in fastest(result.trials)

    @pytest.mark.parametrize("text", ["energy_ratio", "loss + 100 * latency_s"])
    def test_ratios_and_expressions_are_computed(self, text: str, home: Path) -> None:
        result = small(home, objective=Objective(minimize=text), budget=replace(TINY, trials=2)).run()
        m = result.metrics
        wanted = {
            "energy_ratio": lambda: (m["energy_j"] + m["served_samples"] * m["energy_per_sample_j"]) / m["accuracy"],
            "loss + 100 * latency_s": lambda: m["loss"] + 100 * m["latency_s"],
        }[text]()
        assert m[text] == pytest.approx(wanted)
        assert m.get("served_samples", 100) == 100

    def test_ratios_count_the_stated_samples(self, home: Path) -> None:
        serving = replace(FEW_POINTS, served_samples=1e6)
        options = {"budget": replace(TINY, trials=2), "serving": serving}
        m = small(home, objective=Objective(minimize="time_ratio"), **options).run().metrics
        assert m["served_samples"] == 1e6
        assert m["time_ratio"] == pytest.approx((m["train_time_s"] + 1e6 * m["latency_s"]) / m["accuracy"])

    def test_response_times_and_rates_of_scenarios_are_metrics(self, home: Path) -> None:
        goal, bound = "multi_stream_8_20_response_s", "sustained_per_s / needed_per_s"
        objective = Objective(minimize=goal, require={bound: at_least(1), "response_p99_s": at_most(10)})
        serving = replace(FEW_POINTS, scenarios=("server:10", "multi-stream:8@20"))
        result = small(home, objective=objective, serving=serving, budget=replace(TINY, trials=2)).run()
        assert result.is_feasible
        m = result.metrics
        assert m["needed_per_s"] == 10
        assert m["response_p99_s"] > 0
        assert 0 < m["latency_s"] < m[goal] < 10
        assert m[bound] == m["sustained_per_s"] / 10 > 1
        chosen = deploy.read(result.folder / "best").on("host").choices
        assert m[goal] == chosen[1].predicted.mean_s, "the deployment promises what the study reports"

    def test_response_time_is_infinite_where_no_point_sustains_the_scenario(self, home: Path) -> None:
        serving = replace(FEW_POINTS, scenarios=("server:1e9",))
        objective = Objective(maximize="accuracy", require={"response_s": at_most(1)})
        result = small(home, objective=objective, serving=serving, budget=replace(TINY, trials=1)).run()
        assert result.metrics["response_s"] == math.inf
        assert not result.is_feasible

    def test_several_goals_give_a_front(self, home: Path) -> None:
        objective = Objective(maximize="accuracy", minimize=("latency_s", "size_bytes"))
        result = small(home, objective=objective).run()
        assert result.best.number in {trial.number for trial in result.front}

    def test_every_serving_metric_is_recorded(self, home: Path) -> None:
        slow(home)
        result = small(home, device="slow", budget=replace(TINY, trials=2)).run()
        assert set(result.metrics) >= set(SERVING_METRICS)
        assert {served.source for served in result.surfaces["slow"].served} == {LatencySource.EMULATED}

    def test_epochs_are_judged_by_the_workload_objective(self, home: Path) -> None:
        study = small(home, objective=Objective(minimize="latency_s"), rungs="none")
        assert study.spec.epoch_objective == Spirals.objective
        result = study.run()
        with closing(Home(home).store()) as store:
            epochs = store.epochs(study.name, result.best.number)
        assert result.metrics["accuracy"] == max(epoch.metrics["accuracy"] for epoch in epochs)


class TestDevices:
    def test_several_devices_have_metrics_by_name(self, home: Path) -> None:
        slow(home)
        objective = Objective(maximize="accuracy", require={"latency_s@slow": at_most(10.0)})
        result = small(home, device=["host", "slow"], objective=objective, budget=replace(TINY, trials=3)).run()
        for metric in ("latency_s", "throughput_per_s", "energy_per_sample_j"):
            assert result.metrics[metric] == result.metrics[f"{metric}@host"]
            assert f"{metric}@slow" in result.metrics
        assert result.is_feasible
        assert list(result.surfaces) == ["host", "slow"]
        folder = deploy.read(result.folder / "best")
        self.assert_one_figure_for_each_thing(result, home)
        assert [on.device.name for on in folder.devices] == ["host", "slow"]

    def assert_one_figure_for_each_thing(self, result: Result, home: Path) -> None:
        with closing(Home(home).store()) as store:
            summary = summary_of(result.study, store, folder=result.folder)
            listed = store.study(result.study).result["metrics"]
        card = json.loads((result.folder / "best" / "model.json").read_text())
        assert summary.best is not None
        described = StudyReport(summary).as_json()
        compared = next(trial for trial in described["trials"] if trial["number"] == described["best"])
        assert compared["metrics"] == result.ranking[0].metrics == summary.ranking[0].metrics, "alike for all trials"
        for metrics in (
            result.metrics, card["metrics"], listed, summary.best.metrics,
            deploy.read(result.folder / "best").model["metrics"],
        ):  # fmt: skip
            for name, surface in result.surfaces.items():
                for metric, value in surface.metrics(name).items():
                    assert metrics[metric] == value
            assert metrics["accuracy"] == result.metrics["accuracy"]

    def test_trials_fail_if_the_device_is_too_small(self, home: Path) -> None:
        slow(home, "thimble", memory_bytes=20_000_000)
        heard = Heard()
        study = small(home, heard, device="thimble")
        with pytest.raises(StudyFailed, match=r"all 4 trials failed.*of memory of thimble"):
            study.run()
        assert study.record.state is StudyState.FAILED
        assert all("thimble" in facts["reason"] for facts in heard.of("failed"))

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
    def test_measuring_process_that_is_killed_or_suspended_fails_no_trial(
        self, number: signal.Signals, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        processes = disturb(monkeypatch, number, times=1)
        result = small(home, rungs="none").run()
        assert [trial.failure for trial in result.trials] == [None] * 4
        assert len(processes) == 2

    def test_trial_whose_measuring_process_is_always_killed_fails_with_the_true_reason(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disturb(monkeypatch, signal.SIGKILL, times=3)
        result = small(home, rungs="none").run()
        failures = [trial.failure for trial in result.trials if trial.failure is not None]
        assert [failure.kind for failure in failures] == [FailureKind.KILLED]
        assert "was killed by signal 9 (SIGKILL), 3 times" in failures[0].reason
        assert "memory" not in failures[0].reason

    def test_deployment_folder_serves_the_trained_model(self, home: Path, tmp_path: Path) -> None:
        result = small(home, serving=replace(FEW_POINTS, scenarios=("single-stream", "multi-stream:6@20"))).run()
        result.save(tmp_path / "out")
        points, _ = Spirals().data().test
        with torch.no_grad():
            wanted = result.model()(torch.as_tensor(points)).numpy()
        assert deploy.load(tmp_path / "out")(points) == pytest.approx(wanted, abs=1e-4)
        stored = deploy.read(tmp_path / "out")
        assert [choice.scenario for choice in stored.on("host").choices] == ["single-stream", "multi-stream:6@20"]
        single, asked = stored.on("host").choices
        assert single.expected is not None
        assert single.expected.memory_bytes is not None
        assert single.throughput_per_s == single.expected.throughput_per_s
        assert single.confirmed is None
        assert asked.confirmed is not None  # by a load test
        assert asked.confirmed.queries > 0
        assert deploy.load(tmp_path / "out", scenario="multi-stream:6@20").choice == asked
        text = (tmp_path / "out" / "README.md").read_text()
        assert "| accuracy |" in text
        assert "| latency_s |" not in text  # the device's table shows it with its source
        assert "in a load test" in text
        assert stored.model["trial"] == result.best.number
        assert {name: stored.model["config"][name] for name in ("width", "layers")} == {
            name: result.config[name] for name in ("width", "layers")
        }
        assert not (result.folder / "models").exists()


class TestStrategies:
    def test_extended_study_compares_at_equal_effort(self, home: Path) -> None:
        """The precise measurement of the winner is not compared with the quick ones of other trials."""
        study = small(home)
        first = study.run()
        study.extend(trials=2)
        again = {trial.number: trial for trial in study.run().trials}
        top = again[first.best.number]
        before = next(trial for trial in first.trials if trial.number == top.number)
        assert top.metrics["latency_s"] == before.metrics["latency_s"]
        alternatives = first.recommendation.devices[0].alternatives if first.recommendation else ()
        mine = next(candidate for candidate in alternatives if candidate.trial == top.number)
        assert mine.costs["latency_s"] == before.metrics["latency_s"]

    def test_serving_space_is_respected(self, home: Path) -> None:
        space = ServingSpace(batch_sizes=(1, 3), graph_levels=("all",), executions=("sequential",))
        result = small(home, serving=ServingOptions(space=space, scenarios=("server:50",), scenario_goal="p99")).run()
        sizes = {served.point.batch_size for surface in result.surfaces.values() for served in surface.served}
        assert sizes == {1, 3}

    def test_measure_only_the_winner(self, home: Path) -> None:
        heard = Heard()
        result = small(home, heard, serving=replace(FEW_POINTS, measure="winner")).run()
        assert [facts["trial"] for facts in heard.measured] == [result.best.number]
        assert not any("latency_s" in trial.metrics for trial in result.trials)
        assert result.metrics["latency_s"] == result.surfaces["host"].metrics()["latency_s"]

    def test_measuring_the_winner_does_not_change_decisions(self, home: Path, tmp_path: Path) -> None:
        first_result = small(home, serving=replace(FEW_POINTS, measure="winner"), seed=5).run()
        other = small(tmp_path / "plain", device=(), seed=5).run()
        assert [dict(trial.config) for trial in first_result.trials] == [dict(trial.config) for trial in other.trials]
        assert first_result.best.number == other.best.number


class Unexportable(Spirals):
    """A workload some of whose models use an operator without ONNX equivalent."""

    space = Space(model=dict(exotic=Choice(False, True)), training=dict(lr=0.02))

    def build(self, config: Config) -> nn.Module:
        plain = super().build(Config(config, width=4, layers=1))
        return Exotic(plain) if config.exotic else plain


class Irregular(Spirals):
    """A workload some of whose models answer single samples otherwise than batches."""

    space = Space(model=dict(branches=Choice(False, True)), training=dict(lr=0.02))

    def build(self, config: Config) -> nn.Module:
        plain = super().build(Config(config, width=4, layers=1))
        return Branching(plain) if config.branches else plain


class Branching(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) if len(x) > 1 else 2 * self.inner(x)


class Exotic(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Without a gradient, but part of the exported graph.
        return self.inner(x) + 0 * torch.linalg.svdvals(x.detach()[:, :, None])


class TestModels:
    def test_export_failure_fails_the_trial(self, home: Path) -> None:
        heard = Heard()
        budget = Budget(trials=2, max_epochs=1)
        study = small(home, heard, Irregular(), space=Irregular.space, search="grid", rungs="none", budget=budget)
        result = study.run()
        failures = {trial.config.branches: trial.failure for trial in result.trials}
        assert failures[False] is None
        assert failures[True] is not None
        assert failures[True].kind is FailureKind.RAISED
        assert "outputs of the exported model differ from PyTorch's" in failures[True].reason
        assert [facts["reason"] for facts in heard.of("failed")] == [failures[True].reason]

    def test_study_fails_if_no_model_can_be_exported(self, home: Path) -> None:
        space = Space(model=dict(branches=True), training=dict(lr=Float(0.01, 0.1)))
        study = small(home, subject=Irregular(), space=space, budget=Budget(trials=1, max_epochs=1))
        with pytest.raises(StudyFailed, match="outputs of the exported model differ from PyTorch's"):
            study.run()

    def test_network_that_cannot_be_exported_is_served_by_pytorch(self, home: Path, tmp_path: Path) -> None:
        space = Space(model=dict(exotic=True), training=dict(lr=Float(0.01, 0.1)))
        result = small(home, subject=Unexportable(), space=space, budget=Budget(trials=1, max_epochs=1)).run()
        (surface,) = result.surfaces.values()
        assert {served.point.runtime for served in surface.served} == {"pytorch"}
        assert "served by PyTorch itself: the model cannot be exported to ONNX: " in surface.notes[0]
        assert "aten::linalg_svdvals" in surface.notes[0]
        result.save(tmp_path / "deploy")
        served = deploy.load(tmp_path / "deploy", home=home)
        assert served.point.runtime == "pytorch"
        inputs = torch.randn(9, 2)
        with torch.no_grad():
            expected = result.model().eval()(inputs).numpy()
        assert served(inputs.numpy()) == pytest.approx(expected, abs=1e-5)


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "kind", "complaint"),
        [
            ({"device": "rasberry-pi-4"}, DeviceError, "did you mean 'raspberry-pi-4'"),
            (
                {"device": (), "objective": Objective(minimize="latency_s")},
                ObjectiveError,
                "needs a device; add device",
            ),
            ({"device": (), "objective": Objective(minimize="time_ratio")}, ObjectiveError, "needs a device"),
            ({"device": (), "objective": Objective(minimize="response_s")}, ObjectiveError, "needs a device"),
            ({"objective": Objective(maximize="sustained_per_s")}, ObjectiveError, "a scenario with a rate"),
            ({"serving": ServingOptions(measure_cores=-1)}, InputError, "measure_cores must be 0 or more"),
            ({"serving": ServingOptions(measure_cores=1)}, InputError, "would be ignored by engine"),
            (
                {"serving": ServingOptions(measure_cores=1, measure="winner"), "engine": "processes"},
                InputError,
                "measure_cores=1 would be ignored: no trial is measured",
            ),
            (
                {"serving": ServingOptions(measure_cores=10_000), "engine": "processes"},
                InputError,
                "must leave a core for training",
            ),
            ({"serving": ServingOptions(served_samples=0)}, InputError, "served_samples must be above 0"),
            ({"objective": Objective(minimize="latency_s@host")}, ObjectiveError, "write latency_s"),
            (
                {"device": ["host", "raspberry-pi-4"], "objective": Objective(minimize="latency_s@raspberry-pi-5")},
                ObjectiveError,
                "names a device that the study lacks; did you mean 'raspberry-pi-4'",
            ),
            (
                {"serving": ServingOptions(optimize_for="beauty")},
                InputError,
                "unknown optimize_for 'beauty'; known: energy, latency, throughput",
            ),
            ({"serving": ServingOptions(search="grib")}, InputError, "did you mean 'grid'"),
            (
                {"serving": ServingOptions(measure="looser")},
                InputError,
                "unknown measure 'looser'",
            ),
            (
                {"serving": ServingOptions(measure="winner"), "objective": Objective(minimize="latency_s")},
                ObjectiveError,
                "unknown for trials that are not measured",
            ),
            ({"serving": ServingOptions(scenarios=("serve:8",))}, InputError, "server"),
            ({"serving": ServingOptions(scenario_goal="p90")}, InputError, "unknown scenario_goal 'p90'"),
            ({"device": (), "serving": ServingOptions(scenarios=("offline",))}, InputError, "options need a device"),
        ],
    )
    def test_invalid_options_are_refused_before_writing(
        self, options: dict[str, Any], kind: type[Exception], complaint: str, home: Path
    ) -> None:
        with pytest.raises(kind, match=complaint):
            small(home, **options)
        with closing(Home(home).store()) as store:
            assert store.studies() == []

    def test_function_cannot_be_served(self, home: Path) -> None:
        with pytest.raises(InputError, match="a function has none; give a workload"):
            small(home, subject=lambda config: config.x, space=Space(x=Float(0, 1)))


def test_spec_round_trips_through_the_store(home: Path) -> None:
    study = small(
        home,
        device=["host", "raspberry-pi-4"],
        serving=ServingOptions("energy", space=ServingSpace((1, 2)), scenarios=("offline:50",)),
    )
    spec = study.spec
    assert Spec.from_json(spec.to_json()) == spec
    assert spec.devices[1] == device("raspberry-pi-4")
    assert spec.serving_metrics[-2:] == ("response_p99_s@raspberry-pi-4", "served_samples")


def test_measurements_pause_workers_without_losing_trials(home: Path) -> None:
    """With two real worker processes."""
    heard = Heard()
    space = Space(model=dict(width=Choice(4, 8, 16), layers=1), training=TRAINING)
    study = small(home, heard, engine="processes", parallel=2, space=space)
    result = study.run()
    assert len(result.trials) == 4
    assert all(trial.failure is None for trial in result.trials)
    assert all("latency_s" in trial.metrics for trial in result.trials)
    assert len(heard.measured) == len({trial.config.width for trial in result.trials}) + 1


class Pinned(Spirals):
    """Records the cores that its training may use, as a file for each set of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def loss(self, outputs: Any, targets: Any, config: Config) -> Any:
        (self.folder / "-".join(map(str, sorted(os.sched_getaffinity(0))))).touch()
        return super().loss(outputs, targets, config)


@pytest.mark.skipif(len(available_cores()) < 2, reason="needs two cores")
def test_trials_are_measured_on_reserved_cores_while_others_train(home: Path, tmp_path: Path) -> None:
    (tmp_path / "cores").mkdir()
    serving = replace(FEW_POINTS, measure_cores=1)
    options = {"engine": "processes", "parallel": 1, "space": ONE, "serving": serving}
    study = small(home, subject=Pinned(tmp_path / "cores"), budget=replace(TINY, trials=2), **options)
    result = study.run()
    used = {int(core) for file in (tmp_path / "cores").iterdir() for core in file.name.split("-")}
    assert len(used) < len(available_cores()), "one core is left to measurements"
    assert all("latency_s" in trial.metrics for trial in result.trials)
    threads = {s.point.threads for s in result.surfaces["host"].served if s.source.is_from_device}
    assert max(threads, default=0) <= len(available_cores()), "the winner is measured with all cores"
    assert len(history(home)) == 2
    heard = Heard()
    small(home, heard, space=ONE, budget=replace(TINY, trials=1)).run()
    assert heard.of("served")[0]["recalled"] is False, "fewer threads could be measured on reserved cores"


# Real kills with SIGKILL.

OPTIONS = [
    "--trials", "6", "--max-epochs", "4", "--parallel", "2", "--seed", "11", "--name", "s", "--device", "host",
    "--knobs", "off",  # which change the order of additions
]  # fmt: skip
TIMED = ("train_time_s", "energy_j", "memory_bytes", *SERVING_METRICS)


def onefold(home: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "onefold.cli", *words, "--home", str(home), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def decisions(home: Path) -> list[Any]:
    """Return all decisions and results except those that depend on timing."""
    with closing(Home(home).store()) as store:
        assert store.study("s").state is StudyState.DONE
        trials = store.trials("s")
        assert set(store.trial_surfaces("s")) == {(trial.number, "host") for trial in trials}
    return sorted(
        (rung.decision, trial.number, dict(trial.config), rung.rung, rung.grant, rung.state.value,
         {name: value for name, value in rung.metrics.items() if name not in TIMED})
        for trial in trials
        for rung in trial.rungs
    )  # fmt: skip


def killed_at(home: Path, kind: str, times: int, *, held: bool) -> None:
    """Run the study, kill its coordinator after some events of a kind, and check that no process is left."""
    process = onefold(home, "tune", "onefold.testing.toy:Spirals", *OPTIONS)
    assert process.stdout is not None
    for line in process.stdout:
        times -= f'"kind": "{kind}"' in line
        if not times:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    if held:  # as during a measurement
        for child in children:
            if "onefold.engine.worker" in child.cmdline():
                child.suspend()
    process.kill()
    process.wait()
    process.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive, [child.cmdline() for child in alive]


def test_killed_coordinator_leaves_no_paused_workers(home: Path) -> None:
    killed_at(home, "served", 1, held=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, calibrated: Path) -> list[Any]:
    home = tmp_path_factory.mktemp("undisturbed")
    shutil.copytree(calibrated, home / "devices")
    process = onefold(home, "tune", "onefold.testing.toy:Spirals", *OPTIONS)
    assert '"kind": "ended"' in process.communicate(timeout=600)[0]
    return decisions(home)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "times", "held"), [("served", 1, True), ("epoch", 5, True), ("result", 3, False)])
def test_resumed_study_decides_the_same(kind: str, times: int, held: bool, home: Path, undisturbed: list[Any]) -> None:
    killed_at(home, kind, times, held=held)
    resumed = onefold(home, "resume", "s")
    assert '"kind": "ended"' in resumed.communicate(timeout=600)[0]
    assert resumed.returncode == 0
    assert decisions(home) == undisturbed
