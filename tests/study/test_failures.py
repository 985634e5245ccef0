"""Trials, callbacks and logs that fail in odd ways, and what the study keeps of them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from onefold import Budget, Choice, Float, Objective, Space, Study
from onefold.report import StudyReport
from onefold.store.home import Home
from onefold.study.summary import summary_of
from onefold.vocabulary.error_text import MAX_LOG, MAX_REASON, MAX_TRACEBACK
from onefold.vocabulary.errors import ObjectiveError, StudyFailed, WorkloadError
from onefold.vocabulary.records import Failure, FailureKind, StudyState
from small_studies import small_study as small

KINDS = (
    "fine", "no text", "wrong text", "subclass", "surrogate", "unpicklable", "huge", "lines", "no metric", "exit",
    "no exception", "exit in text", "no file", "odd metric",
)  # fmt: skip


class Subclass(str):
    __slots__ = ()

    def __reduce__(self) -> Any:
        raise TypeError("stays here")


class Unprintable(Exception):
    def __init__(self, text: Any) -> None:
        super().__init__("args", lambda: text)
        self.text = text

    def __str__(self) -> str:
        if self.text is None:
            raise RuntimeError("no text")
        if self.text is SystemExit:
            raise SystemExit(3)
        return self.text  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class NoException(BaseException):
    """What `except Exception` does not catch."""


def troubled(config: Any) -> dict[str, float]:
    texts = {
        "no text": None,
        "wrong text": 7,
        "subclass": Subclass("of str"),
        "surrogate": "\udc80",
        "unpicklable": "a lambda",
        "huge": "x" * 5_000_000,
        "lines": "\n first\nsecond",
        "exit in text": SystemExit,
    }
    if config.kind == "exit":
        sys.exit("bye")
    if config.kind == "no exception":
        raise NoException("at all")
    if config.kind == "no file":
        name = {"co_filename": "\ud800.py"}
        exec(compile("raise ValueError('generated')", "generated", "exec").replace(**name))
    if config.kind == "odd metric":
        return {"value": 1.0, "\ud800": 1.0}
    if config.kind in texts:
        raise Unprintable(texts[config.kind])
    return {"score": 1.0} if config.kind == "no metric" else {"value": 1.0}


SPACE = Space(kind=Choice(*KINDS))


def failures(study: Study) -> dict[str, Failure | None]:
    return {str(trial.config.kind): trial.failure for trial in study.trials}


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_an_odd_exception_is_a_failed_trial_with_a_bounded_text(tmp_path: Path, engine: str) -> None:
    options = {"parallel": 2} if engine == "processes" else {}
    study = small(
        troubled, tmp_path, space=SPACE, budget=Budget(trials=len(KINDS)), search="grid", engine=engine,
        objective=Objective(minimize="value"), **options,
    )  # fmt: skip
    result = study.run()
    assert result.best.config.kind == "fine"
    failed = failures(study)
    assert failed.pop("fine") is None
    reasons = {kind: failure.reason for kind, failure in failed.items() if failure is not None}
    assert reasons.keys() == failed.keys()
    assert "cannot be printed: __str__ raised RuntimeError" in reasons["no text"]
    assert "cannot be printed: __str__ raised TypeError" in reasons["wrong text"]
    assert reasons["subclass"] == "Unprintable: of str"
    assert reasons["surrogate"] == "Unprintable: \\udc80"
    assert reasons["lines"] == "Unprintable: first"
    assert reasons["no metric"].startswith("the trial lacks a metric of the objective: value; it reported ")
    assert "score" in reasons["no metric"]
    assert "characters cut" in reasons["huge"]
    assert reasons["exit"] == "SystemExit: bye"
    assert reasons["no exception"] == "NoException: at all"
    assert "cannot be printed: __str__ raised SystemExit" in reasons["exit in text"]
    assert reasons["no file"] == "ValueError: generated"
    assert "a name of 1 to 200 characters of a metric, got '\\ud800'" in reasons["odd metric"]
    for kind, failure in failed.items():
        assert failure is not None
        assert len(failure.reason) <= MAX_REASON + 20
        assert len(failure.traceback) <= MAX_TRACEBACK
        if "metric" not in kind:
            assert "in troubled" in failure.traceback
            assert (study.folder / failure.log).stat().st_size < 1.01 * MAX_LOG
    assert (tmp_path / "store.db").stat().st_size < 1_000_000


def hang_or_die(config: Any) -> float:
    if config.kind == "hang":
        time.sleep(3600)
    if config.kind == "death":
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def test_a_worker_that_hangs_or_dies_is_a_failed_trial_and_nothing_else(tmp_path: Path) -> None:
    """Workers of this module do not import torch, which would count as silence, for long on a busy machine."""
    space, budget = Space(kind=Choice("fine", "hang", "death")), Budget(trials=3)
    study = small(hang_or_die, tmp_path, space=space, budget=budget, search="grid", parallel=2, hang_timeout_s=10.0)
    study.run()
    kinds = {kind: failure.kind if failure else None for kind, failure in failures(study).items()}
    assert kinds == {"fine": None, "hang": FailureKind.HUNG, "death": FailureKind.KILLED}


def test_show_says_where_the_whole_traceback_is(tmp_path: Path) -> None:
    study = small(troubled, tmp_path, space=SPACE, budget=Budget(trials=len(KINDS)), search="grid")
    study.run()
    failure = failures(study)["lines"]
    assert failure is not None
    assert "second" in failure.traceback
    store = Home(tmp_path).store()
    report = StudyReport(summary_of(study.name, store, folder=study.folder))
    store.close()
    assert f"traceback: {study.folder / failure.log}" in report.as_text()
    assert "second" in (study.folder / failure.log).read_text()
    assert failure.log in [entry["log"] for entry in report.as_json()["failures"]]


def test_a_metric_that_the_first_trial_lacks_stops_the_study(tmp_path: Path) -> None:
    objective = Objective(minimize="valeu")
    with pytest.raises(ObjectiveError, match="did you mean 'value'"):
        small(lambda config: config.x, tmp_path, space=Space(x=Float(0, 1)), objective=objective).run()


def test_a_metric_that_goes_missing_later_fails_the_trial(tmp_path: Path) -> None:
    def f(config: Any) -> Any:
        yield {"loss": config.x}
        yield {"loss": config.x} if config.x < 0.5 else {"other": 1.0}

    space, objective = Space(x=Choice(0.9, 0.1, 0.8)), Objective(minimize="loss")
    study = small(f, tmp_path, space=space, objective=objective, search="grid", rungs="none", budget=Budget(trials=3))
    assert study.run().config.x == 0.1
    assert sorted(trial.config.x for trial in study.trials if trial.failure) == [0.8, 0.9]


def test_all_trials_failed_gives_a_report(tmp_path: Path) -> None:
    space = Space(kind=Choice("lines", "no text"))
    study = small(troubled, tmp_path, space=space, budget=Budget(trials=2), search="grid")
    with pytest.raises(StudyFailed, match=r"all 2 trials failed.*its report: .*report\.html"):
        study.run()
    assert "second" in (study.folder / "report.html").read_text()


def test_the_message_of_a_study_of_one_failed_trial_counts_one(tmp_path: Path) -> None:
    study = small(troubled, tmp_path, space=Space(kind=Choice("lines")), budget=Budget(trials=1))
    with pytest.raises(StudyFailed, match="has no model: its only trial failed: "):
        study.run()


def test_an_on_event_that_raises_does_not_concern_the_study(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    def on_event(event: Any) -> None:
        seen.append(event.kind)
        raise Unprintable(None)

    study = small(lambda config: config.x, tmp_path, space=Space(x=Float(0, 1)), on_event=on_event)
    assert len(study.run().trials) == 6
    assert study.record.state is StudyState.DONE
    assert seen.count("result") == 6
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "on_event raised Unprintable at 'started'" in caplog.text


def test_a_log_handler_that_raises_does_not_concern_the_study(tmp_path: Path) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no log")

    handler, logger = Broken(), logging.getLogger("onefold")
    logger.addHandler(handler)
    logger.setLevel("INFO")
    try:
        study = small(lambda config: config.x, tmp_path, space=Space(x=Float(0, 1)))
        assert len(study.run().trials) == 6
    finally:
        logger.removeHandler(handler)
        logger.setLevel("NOTSET")


def test_a_workload_that_cannot_be_set_up_with_an_odd_error_is_one_sentence(tmp_path: Path) -> None:
    class Own(WorkloadError):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    from onefold.testing.toy import Spirals

    class Broken(Spirals):
        def data(self) -> Any:
            raise Own(lambda: 1)

    study = small(Broken(), tmp_path, parallel=1)
    with pytest.raises(Exception, match="cannot be printed"):
        study.run()
    assert "cannot be printed" in study.record.reason


def test_metrics_may_have_names_that_are_no_expressions(tmp_path: Path) -> None:
    odd = {"top-1 (%)": 81.0, "</script>": 1.0, "val/loss": 2.0, "latency": 3.0}
    goal = Objective(minimize="value")
    study = small(lambda config: {"value": config.x, **odd}, tmp_path, space=Space(x=Float(0, 1)), objective=goal)
    result = study.run()
    assert odd.items() <= result.metrics.items()
    page = (study.folder / "report.html").read_text()
    assert page.count("</script>") == page.count("<script")
