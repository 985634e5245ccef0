"""Handover of interrupted studies and on full disks, and the estimate of the remaining time."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from onefold import Budget, Config, Float, Objective, ParallelismOptions, Space, Study, deploy
from onefold.cli.tables import best_trials
from onefold.model_folder import PROFILE
from onefold.model_folder import read_card as read_model_card
from onefold.model_folder.manifest import read_manifest
from onefold.report import StudyReport
from onefold.retraining.identity import network_signature
from onefold.retraining.offline_profile import read_profile
from onefold.study import Home, handover
from onefold.study.events import StudyEvent
from onefold.study.result import keep_best, read_card
from onefold.study.summary import summary_of
from onefold.testing.toy import Spirals
from onefold.training.weights import read_weights
from onefold.vocabulary.errors import InputError, StoreError
from onefold.vocabulary.preference import Preference
from onefold.vocabulary.records import StudyState, TrialState
from onefold.vocabulary.requirement import at_least, at_most
from small_studies import small_study

TINY = Budget(trials=6, max_epochs=3)
FILES = ["manifest.json", "model.json", "reference.npz", "weights.safetensors"]


def small(home: Path, workload: Any = None, **options: Any) -> Study:
    return small_study(workload or Spirals(), home, **{"budget": TINY, "name": "s", **options})


def again(home: Path, workload: Any = None) -> Study:
    return Study.open("s", home=home, workload=workload or Spirals())


def at_trial(number: int, act: Callable[[], None], kind: str = "epoch") -> Callable[[StudyEvent], None]:
    def on_event(event: Any) -> None:
        if event.kind == kind and event.trial == number:
            act()

    return on_event


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """Restore the handler of SIGINT, which is ignored if tests run in the background."""
    result = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, result)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)  # heard at once: one sent to the process may wait for another thread to wake up


def accuracy_of(folder: Path) -> float:
    """Return the validation accuracy of the saved model."""
    network = Spirals().build(Config(read_card(folder)["config"]))
    network.load_state_dict(read_weights(folder / "best"))
    inputs, targets = (torch.as_tensor(part) for part in Spirals().data().validation)
    return float((network.eval()(inputs).argmax(1) == targets).float().mean())


# Interrupted.


def test_an_interrupted_study_saves_its_best_model_so_far_and_can_be_resumed(tmp_path: Path) -> None:
    study = small(tmp_path, on_event=at_trial(3, interrupt))
    with pytest.raises(KeyboardInterrupt):
        study.run()
    card = read_card(study.folder)
    assert study.record.state is StudyState.INTERRUPTED
    assert study.record.result == card
    assert card["metrics"]["accuracy"] == max(trial.metrics.get("accuracy", 0.0) for trial in study.trials)
    assert card["test"] == {}
    assert accuracy_of(study.folder) == pytest.approx(card["metrics"]["accuracy"])
    result = again(tmp_path).run()
    assert read_card(study.folder)["test"] == dict(result.test)
    assert study.record.state is StudyState.DONE


def test_the_model_of_a_longer_study_is_profiled_for_retrainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not (small(tmp_path / "short").run().folder / "best" / PROFILE).exists()
    monkeypatch.setattr(handover, "PROFILE_SHARE", 1e3)  # as if it had taken hours
    result = small(tmp_path / "long").run()
    profile = read_profile(result.folder / "best" / PROFILE)
    assert {lesson.model for lesson in profile.lessons} == {network_signature(result.model())}
    assert PROFILE in (read_manifest(result.folder / "best") or pytest.fail("no manifest")).files


def test_a_profile_takes_a_small_share_of_the_study() -> None:
    assert handover.profile_s(10.0) == 0.0  # too short to profile anything
    assert handover.profile_s(60.0) == pytest.approx(3.0)  # on a busy machine 2 s did not suffice
    assert handover.profile_s(3600.0) == pytest.approx(10.0)


def test_one_epoch_is_enough_to_save_a_model(tmp_path: Path) -> None:
    study = small(tmp_path, on_event=at_trial(0, interrupt), rungs="none")
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert not any(trial.finished_rungs for trial in study.trials)
    assert read_card(study.folder)["trial"] == 0
    assert (study.folder / "best" / "weights.safetensors").exists()


def test_before_the_first_epoch_there_is_no_model_to_save(tmp_path: Path) -> None:
    def leave() -> None:
        raise KeyboardInterrupt

    study = small(tmp_path, on_event=at_trial(0, leave, kind="trial"))
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert study.record.state is StudyState.INTERRUPTED
    assert study.record.result == {}
    assert not (study.folder / "best").exists()


def test_a_second_signal_exits_at_once(tmp_path: Path) -> None:
    def twice() -> None:
        interrupt()
        interrupt()

    study = small(tmp_path, on_event=at_trial(3, twice))
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert study.record.state is StudyState.INTERRUPTED
    assert not (study.folder / "best").exists()


class Leaving(Spirals):
    """A workload that is interrupted while the best model is scored on the test data."""

    def evaluate(self, model: Any, batches: Any, config: Config) -> Any:
        held = list(batches)
        if torch.equal(held[0][0].cpu(), torch.as_tensor(self.data().test[0])):
            interrupt()
        return super().evaluate(model, held, config)


def test_an_interrupt_while_the_best_model_is_tested_saves_that_model(tmp_path: Path) -> None:
    study = small(tmp_path, Leaving())
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert study.record.state is StudyState.INTERRUPTED
    assert accuracy_of(study.folder) == pytest.approx(read_card(study.folder)["metrics"]["accuracy"])


def test_an_interrupt_keeps_the_test_metrics_of_the_same_model(tmp_path: Path) -> None:
    result = small(tmp_path).run()
    study = again(tmp_path).extend(trials=2)
    study.on_event = at_trial(6, interrupt, kind="trial")
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert study.record.result["test"] == dict(result.test)
    assert read_card(study.folder)["test"] == dict(result.test)


def test_deployment_files_of_a_former_best_model_are_removed(tmp_path: Path) -> None:
    result = small(tmp_path).run()
    best, card = result.folder / "best", read_card(result.folder)
    (best / deploy.DEPLOYMENT).write_text("{}")
    keep_best(result.folder, result.best, card, tmp_path)
    assert (best / deploy.DEPLOYMENT).exists()
    keep_best(result.folder, result.best, {**card, "trial": 99}, tmp_path)
    assert sorted(file.name for file in best.iterdir()) == FILES


# A full disk: /dev/full is one.


def write_to_full_disk(*_: Any, **__: Any) -> None:
    Path("/dev/full").write_bytes(b"weights")


@pytest.mark.parametrize("file", ["best", "report.html"])
def test_a_full_disk_at_the_end_is_reported_and_the_study_completes_later(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = small(tmp_path)
    study.folder.mkdir(parents=True)
    with monkeypatch.context() as patch:
        if file == "best":
            patch.setattr("onefold.training.weights.write_weights", write_to_full_disk)
        else:
            (study.folder / file).symlink_to("/dev/full")
        with pytest.raises(StoreError, match=r"disk is full.*nothing is lost.*resume the study 's'"):
            study.run()
    (study.folder / "report.html").unlink(missing_ok=True)
    result = again(tmp_path).run()
    assert result.report.read_text().startswith("<!")
    assert accuracy_of(study.folder) == pytest.approx(result.metrics["accuracy"])
    assert study.record.state is StudyState.DONE


def test_a_full_disk_leaves_the_former_model_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = small(tmp_path).run()
    best, card = result.folder / "best", read_card(result.folder)
    monkeypatch.setattr("onefold.training.weights.write_weights", write_to_full_disk)
    with pytest.raises(OSError, match="No space left"):
        keep_best(result.folder, result.best, {**card, "trial": 99}, tmp_path)
    assert read_card(result.folder) == card
    assert sorted(file.name for file in best.iterdir()) == FILES
    assert not list(result.folder.glob(".best*"))


def test_a_report_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    study = small(tmp_path)
    (study.folder / "report.html").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"cannot be written .*Is a directory.*resume the study 's'"):
        study.run()


def test_a_model_that_cannot_be_saved_is_reported_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = small(tmp_path / "home").run()
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=r"in .*file.* \((Not a directory|File exists)\); it is in .*best"):
            result.save(folder)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copytree", write_to_full_disk)
        with pytest.raises(InputError, match=r"No space left on device\); it is in .*best"):
            result.save(tmp_path / "full")
    assert not (tmp_path / "full").exists()
    assert json.loads((result.save(tmp_path / "out") / "model.json").read_text()) == read_card(result.folder)


# A limit in the first rung.


def test_a_study_stopped_in_its_first_rung_has_one_winner_everywhere(tmp_path: Path) -> None:
    def stop(event: StudyEvent) -> None:
        if event.kind == "epoch":
            time.sleep(0.05)  # so that the limit of 0.1 s falls into the first rung

    budget = Budget(trials=4, max_epochs=400, min_epochs=400, minutes=0.1 / 60)
    study = small(tmp_path, budget=budget, on_event=stop)
    result = study.run()
    with closing(Home(tmp_path).store()) as store:
        summary = summary_of("s", store, folder=study.folder)
    assert not any(trial.finished_rungs for trial in result.trials)
    assert summary.best is not None
    assert summary.best.number == result.best.number == study.record.result["trial"]
    assert summary.best.metrics == result.metrics
    assert summary.cost == result.cost
    assert result.cost.time_s > 0
    assert TrialState.RUNNING not in summary.counts
    report = StudyReport(summary)
    assert f"trial {result.best.number}" in report.as_text()
    assert "nothing yet" not in report.as_html()
    plain = report.as_json()
    assert [trial["number"] for trial in plain["trials"] if trial["metrics"]] == sorted(plain["ranking"])
    assert sum(trial["cost"]["time_s"] for trial in plain["trials"]) == pytest.approx(plain["cost"]["time_s"])
    assert plain["levels"][0]["running"] == 0
    assert [trial.number for trial in result.ranking] == plain["ranking"]
    assert best_trials(result.ranking, result.objective).row_count == len(plain["ranking"])
    assert result.ranking[0].metrics == result.metrics
    assert {trial.number: trial.cost.time_s for trial in result.ranking} == {
        trial["number"]: trial["cost"]["time_s"] for trial in plain["trials"] if trial["metrics"]
    }


def test_a_study_of_two_goals_that_stopped_in_its_first_rung_has_a_front(tmp_path: Path) -> None:
    budget = Budget(trials=4, max_epochs=400, min_epochs=400, joules=1e-6)
    study = small(tmp_path, budget=budget, objective=Objective(maximize="accuracy", minimize="loss"))
    result = study.run()
    assert not any(trial.finished_rungs for trial in result.trials)
    assert [trial.number for trial in result.front] == [result.best.number]


def test_a_killed_study_is_shown_as_interrupted_and_its_trials_as_waiting(tmp_path: Path) -> None:
    study = small(tmp_path)
    study.run()
    with closing(Home(tmp_path).store()) as store:
        # What kill -9 leaves behind: a study and a trial that are stored as running.
        store.save_study(replace(store.study("s"), state=StudyState.RUNNING, reason=""))
        store.set_trial_states("s", {0: TrialState.RUNNING})
        running, killed = (summary_of("s", store, folder=study.folder, is_running=alive) for alive in (True, False))
    assert running.study.state is StudyState.RUNNING
    assert running.counts[TrialState.RUNNING] == 1
    assert (killed.study.state, killed.study.reason) == (StudyState.INTERRUPTED, "killed; resume it")
    assert TrialState.RUNNING not in killed.counts
    assert killed.counts[TrialState.WAITING] == 1


# Time left.


def left_at_the_last_result(home: Path, subject: Any, **options: Any) -> float | None:
    seen: list[float | None] = []

    def on_event(event: Any) -> None:
        if event.kind == "result":
            seen.append(event.progress().left_s)

    Study(subject, home=home, on_event=on_event, **options, parallelism=ParallelismOptions(engine="inline")).run()
    return seen[-1]


def flat(config: Config) -> float:
    return float(config.x)


def often(config: Config) -> Any:
    for epoch in range(1, 4):
        yield float(config.x) / epoch


def with_run(config: Config, run: Any) -> float:
    return float(config.x) / run.epochs


LINE = Space(x=Float(0, 1))


@pytest.mark.parametrize("kind", ["multi", "epochs", "data", "time"])
@pytest.mark.parametrize("subject", [Spirals(), flat, often, with_run], ids=["workload", "flat", "often", "with run"])
def test_at_the_end_the_remaining_time_is_zero(tmp_path: Path, kind: Any, subject: Any) -> None:
    most = 3 if isinstance(subject, Spirals) else 1000
    budget = Budget(trials=4, kind=kind, max_epochs=most, min_data=0.5, min_time_s=0.02, max_time_s=0.06)
    space = None if isinstance(subject, Spirals) else LINE
    left_s = left_at_the_last_result(tmp_path, subject, space=space, budget=budget)
    assert left_s == pytest.approx(0.0, abs=1e-6)


def test_the_remaining_time_of_a_function_is_estimated_from_its_trials(tmp_path: Path) -> None:
    seen: list[tuple[float, float, float]] = []

    def on_event(event: Any) -> None:
        if event.kind == "result":
            before, now, after = event.progress().elapsed_s, event.progress(), event.progress().elapsed_s
            share = (8 - event.trial - 1) / (event.trial + 1)
            assert now.left_s is not None
            seen.append((before * share, now.left_s, after * share))

    Study(
        flat,
        LINE,
        home=tmp_path,
        budget=Budget(trials=8, max_epochs=1000),
        on_event=on_event,
        parallelism=ParallelismOptions(engine="inline"),
    ).run()
    assert len(seen) == 8
    assert all(least - 1e-6 <= left_s <= most + 1e-6 for least, left_s, most in seen)


# Several goals.

TWO_GOALS = Objective("accuracy", "parameters")


def test_any_trial_of_the_front_can_be_exported(tmp_path: Path) -> None:
    result = small(tmp_path, objective=TWO_GOALS, rungs="none").run()
    best = max(trial.metrics["accuracy"] for trial in result.front)
    assert result.metrics["accuracy"] >= 0.95 * best
    assert result.recommendation is not None
    assert f"trial {result.best.number} is " in result.recommendation.reasons[0]
    study = again(tmp_path)
    for trial in result.front:
        folder = study.export(tmp_path / f"model-{trial.number}", trial.number)
        card = json.loads((folder / "model.json").read_text())
        assert (card["trial"], card["config"]) == (trial.number, dict(trial.config))
        assert card["test"]["accuracy"] > 0
        assert sorted(file.name for file in folder.iterdir()) == FILES
        network = Spirals().build(trial.config)
        network.load_state_dict(read_weights(folder))
    assert not (study.folder / "data").exists()
    handed_over = study.export(tmp_path / "model")
    assert json.loads((handed_over / "model.json").read_text()) == read_card(study.folder)


def test_another_model_of_the_front_is_chosen_when_it_is_exported(tmp_path: Path) -> None:
    goals = Objective("accuracy", "parameters", prefer="accuracy")
    result = small(tmp_path, objective=goals, rungs="none").run()
    study, folder = again(tmp_path), tmp_path / "model"

    def exported(**choice: Any) -> Any:
        return read_model_card(study.export(folder, **choice))["trial"]

    smallest = min(result.front, key=lambda trial: trial.metrics["parameters"])
    assert exported(prefer=Preference({"parameters": 1}, guard={})) == smallest.number != result.best.number
    assert exported(prefer=Preference(guard={})) == result.best.number, "by the weights of the study"
    within = [trial for trial in result.front if trial.metrics["accuracy"] >= 0.95 * result.metrics["accuracy"]]
    wanted = min(within, key=lambda trial: trial.metrics["parameters"])
    assert exported(prefer="parameters") == wanted.number, "within the guard of the study"
    chosen = read_model_card(folder)["why"][0]
    assert chosen.startswith(f"trial {wanted.number} is on the Pareto front of {len(result.front)} trials")
    best = max(result.front, key=lambda trial: trial.metrics["accuracy"])
    impossible = (at_least("best-5%"), at_least(1.0))
    assert exported(prefer=Preference({"parameters": 1}, guard={"accuracy": impossible})) == best.number
    (reason,) = read_model_card(folder)["why"]
    assert "none of which has accuracy>=best-5% (" in reason
    assert ") and accuracy>=1, and comes closest: highest accuracy" in reason
    assert "why" not in read_model_card(study.export(folder))
    ratio = Preference(guard={"loss / accuracy": at_most("best")})
    assert (
        exported(prefer=ratio)
        == min(result.front, key=lambda trial: trial.metrics["loss"] / trial.metrics["accuracy"]).number
    )
    for choice, message in (
        ({"prefer": "size"}, "only goals can be preferred"),
        ({"prefer": Preference(guard={"acuracy": at_most(1.0)})}, "did you mean 'accuracy'"),
        ({"prefer": "parameters", "trial": 0}, "trial=0 names the model to export"),
    ):
        with pytest.raises(InputError, match=message):
            study.export(folder, **choice)  # type: ignore[arg-type]


def test_the_weights_of_the_front_are_kept_when_a_study_ends(tmp_path: Path) -> None:
    result = small(tmp_path, objective=TWO_GOALS).run()
    for trial in result.front:
        again(tmp_path).export(tmp_path / "model", trial.number)
    stopped = next(trial for trial in result.trials if trial.state is TrialState.STOPPED)
    with pytest.raises(InputError, match="its model was removed"):
        again(tmp_path).export(tmp_path / "model", stopped.number)


def test_what_has_no_model_cannot_be_exported(tmp_path: Path) -> None:
    study = small(tmp_path)
    with pytest.raises(InputError, match="has handed over no model"):
        study.export(tmp_path / "model")
    study.run()
    with pytest.raises(InputError, match="no trial 99; its trials: 0 to 5"):
        study.export(tmp_path / "model", 99)
    for inside in (study.folder, study.folder / "best", study.folder / "best" / "new", study.folder.parent / "new"):
        with pytest.raises(InputError, match="belongs to a study"):
            study.export(inside)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        study.export(tmp_path / "file")
    with pytest.raises(InputError, match="nothing can be written in /proc"):
        study.export("/proc/model", 0)
    for trial in ("3", 3.0, True):
        with pytest.raises(InputError, match=f"trial must be int or None, got {trial!r}"):
            study.export(tmp_path / "model", trial)  # type: ignore[arg-type]
    (tmp_path / "project" / "compressed").mkdir(parents=True)
    (tmp_path / "project" / "compressed" / "data.zip").touch()
    with pytest.raises(InputError, match="project has compressed, which Onefold did not write"):
        study.export(tmp_path / "project")
    assert (tmp_path / "project" / "compressed" / "data.zip").exists()
    function = small_study(lambda config: config.x, tmp_path, space=Space(x=Float(0, 1)), name="f", budget=TINY)
    result = function.run()
    other = next(trial.number for trial in result.trials if trial.number != result.best.number)
    with pytest.raises(InputError, match="no models"):
        function.export(tmp_path / "model", other)
