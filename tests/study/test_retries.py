"""Failed trials that run again: as decisions that are stored and repeated by every later run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onefold import Budget, Config, Float, Space, Study
from onefold.search import Search
from onefold.testing.toy import Spirals
from onefold.vocabulary.errors import BudgetError, StudyFailed
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import RungState, StudyState, TrialState
from small_studies import small_study as small

BUDGET = Budget(trials=9, max_epochs=9, eta=3)


class Fragile(Spirals):
    """Fails in some trials while a switch is on."""

    switch = Path("never")
    fails_from = 0.05
    epochs_before = 0

    def train_epoch(self, model: Any, batches: Any, optimizer: Any, config: Config) -> Any:
        model.epochs = getattr(model, "epochs", 0) + 1
        if self.switch.exists() and config.lr > self.fails_from and model.epochs > self.epochs_before:
            raise RuntimeError("the neighbor took the memory")
        return super().train_epoch(model, batches, optimizer, config)


@pytest.fixture
def workload(tmp_path: Path) -> Fragile:
    fragile = Fragile()
    fragile.switch = tmp_path / "switch"
    return fragile


def decisions(study: Study) -> list[Any]:
    rungs = [rung for trial in study.trials for rung in trial.rungs]
    return [
        (r.decision, r.trial, r.rung, r.state, r.metrics.get("accuracy"))
        for r in sorted(rungs, key=lambda r: r.decision)
    ]


@pytest.mark.parametrize(
    ("rungs", "engine"),
    [
        ("halving", {}),
        ("asha", {}),
        pytest.param("halving", {"parallel": 2}, marks=pytest.mark.slow),
        pytest.param("asha", {"parallel": 2}, marks=pytest.mark.slow),
    ],
)
def test_failed_trials_run_again_and_later_runs_repeat_the_decisions(
    workload: Fragile, tmp_path: Path, rungs: str, engine: dict[str, Any]
) -> None:
    workload.switch.touch()
    study = small(workload, tmp_path, rungs=rungs, budget=BUDGET, **engine)
    study.run()
    before = decisions(study)
    failed = {trial.number for trial in study.trials if trial.state is TrialState.FAILED}
    assert 0 < len(failed) < 9
    workload.switch.unlink()
    result = Study.open(study.name, home=tmp_path, workload=workload).extend(retry_failed=True).run()
    after = decisions(study)
    assert after[: len(before)] == before
    assert {number for _, number, *_ in after[len(before) :]} == failed
    assert [trial.failure for trial in result.trials] == [None] * 9
    assert not {TrialState.FAILED, TrialState.RUNNING, TrialState.WAITING} & {trial.state for trial in result.trials}
    # Once more, and with more trials: the stored retries are replayed.
    Study.open(study.name, home=tmp_path, workload=workload).run()
    assert decisions(study) == after
    Study.open(study.name, home=tmp_path, workload=workload).extend(trials=2).run()
    assert decisions(study)[: len(after)] == after
    assert study.record.state is StudyState.DONE


def test_a_retry_ends_as_if_nothing_had_failed(workload: Fragile, tmp_path: Path) -> None:
    workload.switch.touch()
    workload.epochs_before = 4
    study = small(workload, tmp_path / "b", rungs="none", budget=BUDGET, seed=3, search="random")
    whole = small(Spirals(), tmp_path / "a", rungs="none", budget=BUDGET, seed=3, search="random")
    whole.run()
    study.run()
    failed = [trial for trial in study.trials if trial.failure]
    assert failed
    workload.switch.unlink()
    Study.open(study.name, home=tmp_path / "b", workload=workload).extend(retry_failed=True).run()
    for trial, other in zip(study.trials, whole.trials, strict=True):
        assert trial.metrics["accuracy"] == other.metrics["accuracy"]
        assert trial.rungs[-1].state is RungState.DONE
    retried = [trial for trial in study.trials if len(trial.rungs) > 1]
    assert [trial.number for trial in retried] == [trial.number for trial in failed]


def test_an_interrupted_retry_is_resumed(workload: Fragile, tmp_path: Path) -> None:
    workload.switch.touch()
    study = small(workload, tmp_path, budget=BUDGET)
    study.run()
    workload.switch.unlink()

    def stop(event: Any) -> None:
        if event.kind == "result":
            raise KeyboardInterrupt

    again = Study.open(study.name, home=tmp_path, workload=workload, on_event=stop).extend(retry_failed=True)
    with pytest.raises(KeyboardInterrupt):
        again.run()
    result = Study.open(study.name, home=tmp_path, workload=workload).run()
    assert [trial.failure for trial in result.trials] == [None] * 9


def test_a_study_whose_trials_all_failed_is_saved(workload: Fragile, tmp_path: Path) -> None:
    workload.switch.touch()
    workload.fails_from = 0.0
    study = small(workload, tmp_path, rungs="none", budget=Budget(trials=2, max_epochs=1))
    with pytest.raises(StudyFailed, match="all 2 trials failed"):
        study.run()
    workload.switch.unlink()
    result = Study.open(study.name, home=tmp_path, workload=workload).extend(retry_failed=True).run()
    assert len(result.trials) == 2
    assert result.model() is not None


def test_a_retry_within_a_spent_budget_is_refused(tmp_path: Path) -> None:
    def f(config: Any) -> float:
        if config.x > 0.5:
            raise RuntimeError
        return float(config.x)

    budget = Budget(trials=3, target=0.2)
    study = small(f, tmp_path, space=Space(x=Float(0, 1)), first=({"x": 0.9}, {"x": 0.1}), budget=budget)
    study.run()
    assert study.trials[0].failure
    with pytest.raises(BudgetError, match="the target"):
        study.extend(retry_failed=True)


def test_a_retried_trial_is_promoted_only_if_it_beats_one_that_was() -> None:
    for loss, is_promoted in ((0.5, True), (9.0, False)):
        search = Search(
            Space(x=Float(0, 1)), objective=Objective(minimize="loss"), budget=Budget(trials=3, max_epochs=3, eta=3),
            algorithm="random",
        )  # fmt: skip
        for number in range(3):
            assert search.ask() is not None
            search.tell(number, None if number == 0 else {"loss": float(number)})
        promoted = search.ask()
        assert promoted is not None
        assert promoted.trial == 1
        search.tell(promoted.number, {"loss": 1.0})
        assert search.ask() is None
        assert search.is_finished
        retried = search.retry(0)
        assert (retried.number, retried.trial, retried.rung) == (4, 0, 0)
        assert search.ask() is None
        assert not search.is_finished
        search.tell(4, {"loss": loss})
        late = search.ask()
        assert (late is not None) is is_promoted
        if late is not None:
            assert (late.trial, late.rung, late.grant) == (0, 1, promoted.grant)
            search.tell(late.number, {"loss": 0.1})
            assert search.ask() is None
        assert search.is_finished
        assert search.changed_states()[0] is (TrialState.DONE if is_promoted else TrialState.STOPPED)
