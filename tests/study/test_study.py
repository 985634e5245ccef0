"""Studies of a toy workload."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import onefold
from onefold import (
    Budget,
    Choice,
    Config,
    Data,
    Float,
    Objective,
    ParallelismOptions,
    Space,
    Study,
    Workload,
    at_least,
)
from onefold.study import Home
from onefold.testing.toy import Lines, Spirals, Troubled
from onefold.training.weights import read_weights
from onefold.vocabulary.errors import (
    BudgetError,
    InputError,
    ObjectiveError,
    SpaceError,
    StoreError,
    StudyBusy,
    StudyFailed,
    StudyNotFound,
    WorkloadError,
)
from onefold.vocabulary.preference import Preference
from onefold.vocabulary.records import FailureKind, StudyState, TrialState
from onefold.vocabulary.requirement import at_most
from small_studies import TINY
from small_studies import small_study as small


def facts(study: Study) -> list[Any]:
    """Return all decisions and results, without timings."""
    timed = ("train_time_s", "energy_j", "memory_bytes")
    return [
        (
            trial.number,
            dict(trial.config),
            rung.rung,
            rung.grant,
            rung.state,
            {name: value for name, value in rung.metrics.items() if name not in timed},
        )
        for trial in study.trials
        for rung in trial.rungs
    ]


def test_a_workload_becomes_a_tuned_and_trained_model(tmp_path: Path) -> None:
    study = small(Spirals(), tmp_path)
    result = study.run()
    assert len(result.trials) == 6
    assert result.metrics["accuracy"] == max(t.metrics["accuracy"] for t in result.trials if t.state is TrialState.DONE)
    assert set(result.test) == {"loss", "accuracy"}
    assert study.record.state is StudyState.DONE
    assert result.report.read_text().startswith("<!")
    inputs, targets = (torch.as_tensor(part) for part in Spirals().data().test)
    accuracy = float((result.model()(inputs).argmax(1) == targets).float().mean())
    assert accuracy == pytest.approx(result.test["accuracy"])


def test_the_model_can_be_copied_and_loaded_with_weights_only(tmp_path: Path) -> None:
    result = small(Spirals(), tmp_path / "home").run()
    folder = result.save(tmp_path / "model")
    card = json.loads((folder / "model.json").read_text())
    assert card["config"] == dict(result.config)
    network = Spirals().build(Config(card["config"]))
    network.load_state_dict(read_weights(folder))


def test_the_same_seed_gives_the_same_decisions_and_results(tmp_path: Path) -> None:
    studies = [small(Spirals(), tmp_path, seed=7) for _ in range(2)]
    for study in studies:
        study.run()
    assert facts(studies[0]) == facts(studies[1])
    other = small(Spirals(), tmp_path, seed=8)
    other.run()
    assert facts(other) != facts(studies[0])


@pytest.mark.parametrize("rungs", ["none", "halving", "hyperband", "asha", "top-k"])
def test_every_rung_scheduler_gives_a_trial_the_full_budget(rungs: str, tmp_path: Path) -> None:
    result = small(Spirals(), tmp_path, rungs=rungs).run()
    assert result.best.level == TINY.top_level
    assert result.best.rungs[-1].grant.epochs == 3


@pytest.mark.parametrize("kind", ["multi", "epochs", "data", "time"])
@pytest.mark.parametrize("fresh", [False, True])
def test_every_kind_of_budget_is_respected(kind: Any, fresh: bool, tmp_path: Path) -> None:
    budget = Budget(
        trials=4, kind=kind, fresh=fresh, max_epochs=3, min_data=0.5, min_time_s=0.02, max_time_s=0.06, eta=2
    )
    study = small(Spirals(), tmp_path, budget=budget)
    study.run()
    with closing(Home(tmp_path).store()) as store:
        epochs = store.epochs(study.name)
    for trial in study.trials:
        for rung in trial.rungs:
            mine = [
                e for e in epochs if e.trial == trial.number and (e.rung == rung.rung if fresh else e.rung <= rung.rung)
            ]
            assert [epoch.number for epoch in mine] == list(range(1, len(mine) + 1))
            if kind == "time":
                assert sum(epoch.measurement.time_s for epoch in mine) >= rung.grant.time_s or len(mine) == 3
            else:
                assert len(mine) == rung.grant.epochs


class Odd(Spirals):
    """Reports numpy and torch numbers under names that are not identifiers."""

    def evaluate(self, model: Any, batches: Any, config: Config) -> Any:
        metrics = super().evaluate(model, batches, config)
        return {"val/acc": np.float64(metrics["accuracy"]), "f1-macro": torch.tensor(0.5), "loss": np.float32(1.0)}


def test_odd_numbers_and_odd_names_survive_promotion_and_the_store(tmp_path: Path) -> None:
    objective = Objective(maximize="val/acc", require={"f1-macro": at_least(0.1)})
    study = small(Odd(), tmp_path, objective=objective, budget=Budget(trials=3, max_epochs=9))
    result = study.run()
    assert [epoch.number for epoch in _epochs(tmp_path, study, result.best.number)] == list(range(1, 10))
    assert study.spec.objective == objective


def _epochs(home: Path, study: Study, trial: int) -> list[Any]:
    with closing(Home(home).store()) as store:
        return store.epochs(study.name, trial)


@pytest.mark.parametrize("rungs", ["halving", "asha", "top-k", "hyperband"])
def test_a_study_with_an_exhausted_space_can_be_run_again_but_not_extended(rungs: str, tmp_path: Path) -> None:
    space = Space(x=Choice(*range(6)))
    lowest = Objective(minimize="loss")
    study = small(curve, tmp_path, space=space, objective=lowest, rungs=rungs, budget=Budget(trials=20))
    study.run()
    before = facts(study)
    Study.open(study.name, home=tmp_path, workload=curve).run()
    with pytest.raises(BudgetError, match="no more configurations"):
        study.extend(trials=3)
    assert facts(study) == before


def test_the_model_handed_over_is_the_one_described(tmp_path: Path) -> None:
    budget = Budget(trials=40, max_epochs=27, minutes=0.01)
    result = small(Spirals(), tmp_path, budget=budget).run()
    inputs, targets = (torch.as_tensor(part) for part in Spirals().data().validation)
    accuracy = float((result.model()(inputs).argmax(1) == targets).float().mean())
    assert accuracy == pytest.approx(result.metrics["accuracy"])  # on all 100 samples at every level


def test_an_extension_must_add_trials(tmp_path: Path) -> None:
    study = small(Spirals(), tmp_path)
    with pytest.raises(BudgetError, match="above 0"):
        study.extend(trials=-5)


@pytest.mark.parametrize("limit", [{"minutes": 5.0}, {"joules": 5.0}, {"target": 0.99}])
def test_limits_that_do_not_continue_a_finished_study_are_refused_and_not_stored(
    limit: dict[str, float], tmp_path: Path
) -> None:
    study = small(Spirals(), tmp_path, budget=Budget(trials=2, max_epochs=1))
    study.run()
    before = study.record
    with pytest.raises(BudgetError, match=r"all trials have finished; continue it .* trials=9"):
        study.extend(**limit)  # type: ignore[arg-type]
    assert study.record == before
    assert len(study.extend(trials=1, **limit).run().trials) == 3  # type: ignore[arg-type]


def test_a_limit_that_ended_a_study_is_what_must_be_extended(tmp_path: Path) -> None:
    study = small(Spirals(), tmp_path, budget=Budget(trials=10_000, max_epochs=9, minutes=0.01))
    study.run()
    before = study.record
    with pytest.raises(BudgetError, match=r"the time limit of 0.01 minutes was reached; extend that limit"):
        study.extend(trials=5)
    assert study.record == before
    study.extend(minutes=0.001).run()
    assert study.record.elapsed_s > before.elapsed_s


def test_resuming_a_finished_study_does_not_change_its_elapsed_time(tmp_path: Path) -> None:
    study = small(Spirals(), tmp_path, budget=Budget(trials=2, max_epochs=1))
    elapsed_s = study.run().elapsed_s
    assert Study.open(study.name, home=tmp_path, workload=Spirals()).run().elapsed_s == elapsed_s
    assert study.record.elapsed_s == elapsed_s > 0


def test_a_regression_workload_is_tuned(tmp_path: Path) -> None:
    result = small(Lines(), tmp_path, budget=Budget(trials=6, max_epochs=27, min_data=1.0)).run()
    assert result.metrics["rmse"] < 2.0
    assert result.test == {}


def test_several_goals_with_early_stopping_give_a_front(tmp_path: Path) -> None:
    both = Objective(maximize="accuracy", minimize="parameters")
    result = small(Spirals(), tmp_path, objective=both, budget=Budget(trials=9, max_epochs=3)).run()
    assert any(trial.state is TrialState.STOPPED for trial in result.trials)
    values = [(-t.metrics["accuracy"], t.metrics["parameters"]) for t in result.front]
    assert not any(a[0] <= b[0] and a[1] <= b[1] for a in values for b in values if a != b)


def test_algorithms_are_chosen_per_group(tmp_path: Path) -> None:
    result = small(Spirals(), tmp_path, search={"model": "grid", "training": "random"}).run()
    assert len(result.trials) == 6


def test_an_infeasible_requirement_gives_the_nearest_trial(tmp_path: Path) -> None:
    never = Objective(minimize="parameters", require={"loss": at_least(100)})
    result = small(Spirals(), tmp_path, objective=never).run()
    assert not result.is_feasible
    with pytest.raises(InputError, match=r"no result can meet accuracy>=1.5, .* lower the bound"):
        small(Spirals(), tmp_path, objective=Objective(minimize="parameters", require={"accuracy": at_least(1.5)}))


# Functions.


def parabola(config: Config) -> float:
    return float((config.x - 2) ** 2)


def curve(config: Config) -> Iterator[dict[str, float]]:
    for epoch in range(1, 100):
        yield {"loss": config.x / epoch}


def careful(config: Config, run: Any) -> dict[str, float]:
    return {"loss": config.x / run.epochs, "data": run.data}


PLAIN = Space(x=Float(0, 10))


def test_any_function_can_be_tuned(tmp_path: Path) -> None:
    result = onefold.tune(parabola, PLAIN, trials=25, home=tmp_path, parallelism=ParallelismOptions(engine="inline"))
    assert result.metrics["value"] < 2.0
    assert {len(trial.rungs) for trial in result.trials} == {1}


@pytest.mark.parametrize("function", [curve, careful])
def test_a_function_that_reports_often_or_knows_its_run_gets_rungs(function: Any, tmp_path: Path) -> None:
    lowest = Objective(minimize="loss")
    result = onefold.tune(
        function, PLAIN, objective=lowest, budget=TINY, home=tmp_path, parallelism=ParallelismOptions(engine="inline")
    )
    assert result.best.level == TINY.top_level


def test_a_function_in_worker_processes_may_be_a_closure(tmp_path: Path) -> None:
    shift = 3.0
    result = onefold.tune(
        lambda config: abs(config.x - shift), PLAIN, trials=8, home=tmp_path, parallelism=ParallelismOptions(parallel=2)
    )
    assert result.metrics["value"] < 3.0


# What is remembered.


def test_a_finished_study_can_be_extended(tmp_path: Path) -> None:
    study = small(Spirals(), tmp_path)
    study.run()
    before = facts(study)
    result = Study.open(study.name, home=tmp_path, workload=Spirals()).extend(trials=4).run()
    assert len(result.trials) == 10
    assert [fact for fact in facts(study) if fact[0] < 6] == before


def test_running_a_finished_study_again_changes_nothing(tmp_path: Path) -> None:
    study = small(Spirals(), tmp_path)
    first = study.run()
    before = facts(study)
    again = Study.open(study.name, home=tmp_path, workload=Spirals()).run()
    assert facts(study) == before
    assert again.config == first.config


def test_a_study_warm_starts_from_another_one_over_the_same_space(tmp_path: Path) -> None:
    first = small(Spirals(), tmp_path).run()
    second = small(Spirals(), tmp_path, warm_start=first.study).run()
    assert second.trials[0].config == first.config
    with pytest.raises(SpaceError, match="another space"):
        small(Lines(), tmp_path, warm_start=first.study)
    with pytest.raises(StudyNotFound):
        small(Spirals(), tmp_path, warm_start="nobody")


def test_an_interrupted_study_resumes_where_it_stopped(tmp_path: Path) -> None:
    whole = small(Spirals(), tmp_path, seed=3)
    whole.run()

    def impatient(event: Any) -> None:
        if event.kind == "epoch" and event.progress().trials_started == 4:
            raise KeyboardInterrupt

    study = small(Spirals(), tmp_path, seed=3, on_event=impatient)
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert study.record.state is StudyState.INTERRUPTED
    Study.open(study.name, home=tmp_path, workload=Spirals()).run()
    assert facts(study) == facts(whole)


class Picky(Spirals):
    """Rejects half of the configurations."""

    def check(self, config: Config) -> None:
        if config.batch_size == 16:
            raise onefold.Rejected("too small")


@pytest.mark.parametrize("search", ["tpe", "cmaes", "nsga2", {"model": "nsga2", "training": "tpe"}])
def test_a_resumed_search_makes_the_same_decisions(search: Any, tmp_path: Path) -> None:
    budget = Budget(trials=24, max_epochs=1)
    whole = small(Picky(), tmp_path, seed=3, search=search, budget=budget)
    whole.run()

    def impatient(event: Any) -> None:
        if event.kind == "epoch" and event.progress().trials_started == 15:
            raise KeyboardInterrupt

    study = small(Picky(), tmp_path, seed=3, search=search, budget=budget, on_event=impatient)
    with pytest.raises(KeyboardInterrupt):
        study.run()
    Study.open(study.name, home=tmp_path, workload=Picky()).run()
    assert any(trial.redraws for trial in study.trials)
    assert facts(study) == facts(whole)


def test_a_study_runs_in_one_process_at_a_time(tmp_path: Path) -> None:
    study = small(Spirals(), tmp_path)
    with Home(tmp_path).study_lock(study.name):
        caught: list[BaseException] = []

        def attempt() -> None:
            try:
                study.run()
            except BaseException as error:  # noqa: BLE001
                caught.append(error)

        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    assert isinstance(caught[0], StudyBusy)


# Limits.


def test_a_target_ends_the_study(tmp_path: Path) -> None:
    result = small(Spirals(), tmp_path, budget=Budget(trials=30, max_epochs=3, target=0.4)).run()
    assert "target accuracy 0.4 was reached" in result.reason
    assert len(result.trials) < 30


def test_time_and_energy_end_the_study_with_the_best_so_far(tmp_path: Path) -> None:
    result = small(Spirals(), tmp_path, budget=Budget(trials=10_000, max_epochs=9, minutes=0.01)).run()
    assert "time limit" in result.reason
    result.model()
    result = small(Spirals(), tmp_path, budget=Budget(trials=10_000, max_epochs=9, joules=1.0)).run()
    assert "energy limit" in result.reason
    study = Study.open(result.study, home=tmp_path, workload=Spirals())
    again = study.extend(joules=1.0).run()
    spent = sum(trial.cost.energy.joules or 0.0 for trial in again.trials)
    assert spent > sum(trial.cost.energy.joules or 0.0 for trial in result.trials)


# Failures.


def test_each_failure_of_training_is_a_failed_trial_and_nothing_else(tmp_path: Path) -> None:
    study = small(
        Troubled(),
        tmp_path,
        space=Space(training=dict(trouble=Choice("none", "raise", "nan", "memory"), lr=0.02)),
        budget=Budget(trials=4, max_epochs=1),
        search="grid",
        rungs="none",
        parallel=2,
        memory_bytes=2**30,
    )
    result = study.run()
    kinds = {trial.config.trouble: trial.failure.kind if trial.failure else None for trial in result.trials}
    assert kinds == {
        "none": None,
        "raise": FailureKind.RAISED,
        "nan": FailureKind.NOT_A_NUMBER,
        "memory": FailureKind.OUT_OF_MEMORY,
    }
    raised = next(trial for trial in result.trials if trial.config.trouble == "raise")
    assert raised.failure is not None
    assert "the gradient is on strike" in raised.failure.reason
    assert "Traceback" in raised.failure.traceback


def test_a_study_whose_trials_all_fail_is_an_error(tmp_path: Path) -> None:
    space = Space(training=dict(trouble=Choice("raise", "nan"), lr=Float(0.01, 0.1)))
    study = small(Troubled(), tmp_path, space=space)
    with pytest.raises(StudyFailed, match="all 6 trials failed; the first"):
        study.run()
    assert study.record.state is StudyState.FAILED


class Cramped(Spirals):
    """Fills the disk while a trial trains, as long as a switch is on."""

    switch = Path("never")

    def step(self, model: Any, batch: Any, optimizer: Any, config: Config) -> Any:
        if self.switch.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().step(model, batch, optimizer, config)


def test_a_full_disk_stops_the_study_and_loses_nothing(tmp_path: Path) -> None:
    whole = small(Spirals(), tmp_path / "a", seed=3)
    whole.run()
    workload = Cramped()
    workload.switch = tmp_path / "full"

    def fill(event: Any) -> None:
        if event.kind == "result" and event.trial == 2:
            workload.switch.touch()

    study = small(workload, tmp_path / "b", seed=3, on_event=fill)
    with pytest.raises(StoreError, match=r"disk is full.*nothing is lost"):
        study.run()
    workload.switch.unlink()
    Study.open(study.name, home=tmp_path / "b", workload=workload).run()
    assert facts(study) == facts(whole)


# Mistakes.


def test_invalid_arguments_are_rejected_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="expected an instance of the workload"):
        small(Spirals, tmp_path)
    with pytest.raises(SpaceError, match="a function needs a space"):
        small(parabola, tmp_path)
    with pytest.raises(SpaceError, match="empty"):
        small(Spirals(), tmp_path, space=Space())
    with pytest.raises(InputError, match="name is made of"):
        small(Spirals(), tmp_path, name="../elsewhere")
    with pytest.raises(InputError, match="unknown engine 'proceses'; did you mean 'processes'"):
        small(Spirals(), tmp_path, engine="proceses")
    for parallel in (-1, 0):
        with pytest.raises(InputError, match=f"parallel must be 1 or more, got {parallel}"):
            small(Spirals(), tmp_path, engine="processes", parallel=parallel)
    for threads in (-2, 0):
        with pytest.raises(InputError, match=f"threads must be 1 or more, got {threads}"):
            small(Spirals(), tmp_path, parallel=2, threads=threads)
    for memory_bytes in (-3, 0):
        with pytest.raises(InputError, match=f"memory_bytes must be 1 or more, got {memory_bytes}"):
            small(Spirals(), tmp_path, memory_bytes=memory_bytes)
    for timeout_s in (-5, 0, float("nan")):
        with pytest.raises(InputError, match=f"hang_timeout_s must be above 0, got {timeout_s}"):
            small(Spirals(), tmp_path, hang_timeout_s=timeout_s)
    with closing(Home(tmp_path).store()) as store:
        assert store.studies() == []


def test_a_name_can_be_used_once(tmp_path: Path) -> None:
    small(Spirals(), tmp_path, name="mine")
    with pytest.raises(InputError, match="already"):
        small(Spirals(), tmp_path, name="mine")


MISTAKEN = {
    "a goal": Objective(maximize="acuracy"),
    "a requirement": Objective(minimize="loss", require={"acuracy": at_least(0.5)}),
    "a guard": Objective("accuracy", "parameters", prefer=Preference(guard={"acuracy": at_least(0.5)})),
    "an expression in a guard": Objective(
        "accuracy", "parameters", prefer=Preference(guard={"loss / acuracy": at_most(2.0)})
    ),
}


@pytest.mark.parametrize("objective", MISTAKEN.values(), ids=MISTAKEN)
def test_a_metric_that_the_workload_cannot_report_is_refused_before_the_study(
    tmp_path: Path, objective: Objective
) -> None:
    with pytest.raises(ObjectiveError, match=r"did you mean 'accuracy'\? known: accuracy, energy_j, "):
        small(Spirals(), tmp_path, objective=objective)
    with closing(Home(tmp_path).store()) as store:
        assert store.studies() == []


@pytest.mark.parametrize("objective", MISTAKEN.values(), ids=MISTAKEN)
def test_a_metric_that_only_the_first_epoch_shows_to_be_unknown_ends_the_study(
    tmp_path: Path, objective: Objective
) -> None:
    with pytest.raises(ObjectiveError, match=r"did you mean 'accuracy'\? known: accuracy, energy_j, "):
        small(Graded(), tmp_path, objective=objective, name="s").run()
    assert len(Study.open("s", home=tmp_path, workload=Graded()).trials) == 1


def test_a_workload_may_name_its_metrics(tmp_path: Path) -> None:
    class Named(Graded):
        reported_metrics = ("accuracy", "loss", "train_loss", "grade")

    small(Named(), tmp_path, objective=Objective(minimize="grade"))
    with pytest.raises(ObjectiveError, match="did you mean 'grade'"):
        small(Named(), tmp_path, objective=Objective(minimize="grades"))


def test_the_default_guard_is_on_a_metric_that_need_not_be_reported(tmp_path: Path) -> None:
    class Unset(Lines):
        objective = Workload.objective

    result = small(Unset(), tmp_path, objective=Objective(minimize=("rmse", "train_time_s"))).run()
    assert result.recommendation is not None
    assert "accuracy" not in result.recommendation.reasons[0]


def test_a_guard_may_be_on_an_expression(tmp_path: Path) -> None:
    guard = {"loss / accuracy": at_most("best")}
    objective = Objective("accuracy", "parameters", prefer=Preference({"parameters": 1}, guard))
    result = small(Spirals(), tmp_path, objective=objective, rungs="none").run()
    ratios = [trial.metrics["loss"] / trial.metrics["accuracy"] for trial in result.front]
    assert result.metrics["loss / accuracy"] == pytest.approx(min(ratios))


def test_a_batch_larger_than_the_data_is_an_error_with_the_limit(tmp_path: Path) -> None:
    space = Space(training=dict(batch_size=Choice(32, 4096), lr=Float(0.01, 0.1)), model=dict(width=8, layers=1))
    with pytest.raises(WorkloadError, match="only 300 training samples"):
        small(Spirals(), tmp_path, space=space).run()


def test_a_rung_with_more_data_but_no_more_epochs_keeps_the_result(tmp_path: Path) -> None:
    budget = Budget(trials=9, kind="time", max_epochs=2, min_time_s=30, max_time_s=270)
    result = small(Spirals(), tmp_path, budget=budget).run()
    assert result.best.level == 9
    assert not any(trial.failure for trial in result.trials)


def test_an_exhausted_space_ends_the_study_with_a_reason(tmp_path: Path) -> None:
    result = onefold.tune(
        parabola, Space(x=Choice(1, 2, 3)), trials=20, home=tmp_path, parallelism=ParallelismOptions(engine="inline")
    )
    assert len(result.trials) == 3
    assert result.reason == "the space has no more configurations"


def test_data_that_cannot_be_read_is_a_workload_error(tmp_path: Path) -> None:
    class Lost(Spirals):
        def data(self) -> Any:
            raise FileNotFoundError("spirals.npz")

    with pytest.raises(WorkloadError, match=r"data\(\) of lost failed: FileNotFoundError: spirals.npz"):
        small(Lost(), tmp_path).run()


def test_threads_without_parallel_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give also how many run in parallel"):
        Study(Spirals(), home=tmp_path, parallelism=ParallelismOptions(threads=2))


def optional(config: Config, scale: float = 2.0) -> float:
    return float(config.x * scale)


def test_a_parameter_with_a_default_is_not_tuned(tmp_path: Path) -> None:
    result = onefold.tune(optional, PLAIN, trials=3, home=tmp_path, parallelism=ParallelismOptions(engine="inline"))
    assert {len(trial.rungs) for trial in result.trials} == {1}


class Graded(Spirals):
    """Spirals with a metric of its own."""

    def metrics(self, outputs: Any, targets: Any, config: Config) -> dict[str, float]:
        return {**super().metrics(outputs, targets, config), "grade": 1.0}


class Peaking(Workload):
    """A network that overfits: its metric is best after two epochs."""

    space = Space(bias=Float(0.0, 0.01))

    def build(self, config: Config) -> torch.nn.Module:
        network = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(network.weight, 0.0)
        return network

    def data(self) -> Data:
        numbers = torch.zeros(64, 1)
        return Data((numbers, numbers), (numbers, numbers), (numbers, numbers))

    def train_epoch(self, model: Any, batches: Any, optimizer: Any, config: Config) -> dict[str, float]:
        with torch.no_grad():
            model.weight += 1.0
        return {}

    def evaluate(self, model: Any, batches: Any, config: Config) -> dict[str, float]:
        return {"accuracy": 1.0 - 0.1 * abs(float(model.weight) - 2.0) - float(config.bias)}


@pytest.mark.parametrize("kind", ["epochs", "multi"])
def test_the_best_epoch_of_all_rungs_on_the_same_data_is_handed_over(tmp_path: Path, kind: Any) -> None:
    budget = Budget(trials=4, max_epochs=8, kind=kind, min_data=1.0 if kind == "epochs" else 0.1)
    result = Study(Peaking(), budget=budget, home=tmp_path, parallelism=ParallelismOptions(engine="inline")).run()
    assert result.best.level == budget.top_level
    if kind == "epochs":
        assert result.metrics["accuracy"] > 0.98
        assert result.model().weight.item() == 2.0
    else:  # what was shown on less data does not count: the best of the top rung's epochs is its first
        assert result.model().weight.item() > 2.0
    assert result.test["accuracy"] == pytest.approx(result.metrics["accuracy"])
