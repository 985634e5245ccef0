"""`onefold train`, `onefold knobs`, `onefold submit` and `onefold queue` from a shell."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from shell import WORKLOAD, alone, onefold, wait_until

from onefold.cli.knobs import describe_gain
from onefold.study import Home, ParallelismOptions
from onefold.study.queue import Queue
from onefold.vocabulary.knobs import KnobRecord, Phase, StepWindow
from onefold.vocabulary.quantities import count
from onefold.vocabulary.records import Config

DEADLINE_S = 600.0  # for a study in the background, also on a busy machine


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(WORKLOAD.replace("lr=Float", "batch_size=2, lr=Float"))
    (tmp_path / "config.json").write_text(json.dumps({"width": 8, "lr": 0.01}))
    return tmp_path


TRAIN = ("train", "mine.py", "--config", "config.json", "--epochs", "12")


def test_train_reports_the_gain_and_a_similar_job_reuses_the_knobs(here: Path) -> None:
    assert "no knobs are remembered" in onefold(here, "knobs").stdout
    trained = onefold(here, *TRAIN, "--save", "out")
    assert trained.returncode == 0, trained.stderr
    assert "probed" in trained.stdout
    assert "step time" in trained.stdout or "no other setting is faster" in trained.stdout
    assert (here / "out" / "weights.safetensors").exists()
    card = json.loads((here / "out" / "model.json").read_text())
    assert card["config"] == {"width": 8, "batch_size": 2, "lr": 0.01}

    again = onefold(here, "train", "mine.py", "--config", "out/model.json", "--epochs", "4")
    assert again.returncode == 0, again.stderr
    assert "recalled from a similar job" in again.stdout

    assert "computes" in onefold(here, "knobs").stdout
    known = json.loads(onefold(here, "knobs", "--json").stdout)
    assert {job["aim"] for job in known} == {"time"}  # two jobs if the recalled knobs were not faster and were probed
    jobs = count(len(known), "job")
    assert f"{jobs} written" in onefold(here, "knobs", "export", "known.json").stdout
    assert f"{jobs} imported" in onefold(here, "knobs", "import", "known.json", "--home", "elsewhere").stdout
    assert json.loads(onefold(here, "knobs", "--json", "--home", "elsewhere").stdout) == known


@pytest.mark.slow
def test_a_campaign_profiles_jobs_of_several_batch_sizes(here: Path) -> None:
    defaults = WORKLOAD.replace("4, 8", "4, 8, default=8").replace("log=True", "log=True, default=1e-2")
    (here / "mine.py").write_text(defaults.replace("lr=Float", "batch_size=Choice(2, 4, default=2), lr=Float"))
    words = ("knobs", "profile", "mine.py", "--batch-sizes", "2,4,32", "--repeats", "1", "--epochs", "2")
    profiled = onefold(here, *words)
    assert profiled.returncode == 0, profiled.stderr
    assert [line.partition(":")[0] for line in profiled.stdout.splitlines()] == [
        "mine.py, batch size 2",
        "mine.py, batch size 4",
    ]


def test_every_study_tunes_knobs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.cli.tune.ParallelismOptions", partial(ParallelismOptions, engine="inline"))
    tuned = onefold(here, "tune", "mine.py", "--trials", "1", "--rungs", "none", "--max-epochs", "8", "--parallel", "1")
    assert tuned.returncode == 0, tuned.stderr
    assert "knobs, epoch" in tuned.stdout


def test_the_gain_is_described_in_one_sentence() -> None:
    default, best = Config(threads=2), Config(threads=1)
    found = StepWindow(Phase.FOUND, default, 3, 0.009, None)
    before = StepWindow(Phase.COMPARED, default, 3, 0.006, None)
    after = StepWindow(Phase.COMPARED, best, 3, 0.003, None)
    compared = KnobRecord(0, 0, 1, (found, before, after), in_use=best)
    assert describe_gain([]) == "defaults"
    assert "too few steps" in describe_gain([KnobRecord(0, 0, 1, (found,))])
    assert describe_gain([compared]) == "threads=1; step time 6 ms before, 3 ms after (2.00x)"
    assert describe_gain([KnobRecord(0, 0, 1, (found,), in_use=default)]) == "defaults: no other setting is faster"
    assert describe_gain([compared, KnobRecord(0, 0, 2, in_use=default)]) == "defaults: no other setting is faster"
    assert describe_gain([KnobRecord(0, 0, 1, untunable="steps cannot be timed")]) == "defaults: steps cannot be timed"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "mine.py", "--config", "config.jsn"), "cannot be read"),
        (("train", "mine.py", "--config", "mine.py"), "is not valid JSON"),
        (("train", "mine.py", "--config", "unknown.json"), "did you mean 'width'"),
        (("train", "mine.py"), "default"),
        ((*TRAIN, "--knobs", "of"), "did you mean 'off'"),
        (("knobs", "import", "config.json"), "is not an export of knobs"),
        (("knobs", "profile", "mine.py", "--batch-sizes", "many"), "expected batch sizes"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(here: Path, words: tuple[str, ...], message: str) -> None:
    (here / "unknown.json").write_text(json.dumps({"widht": 8}))
    answer = onefold(here, *words)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_submitted_study_runs_in_the_background(here: Path) -> None:
    assert "no study was submitted" in onefold(here, "queue").stdout
    options = ("--trials", "1", "--max-epochs", "1", "--parallel", "1", "--tenant", "ann", "--json")
    submitted = alone(here, "submit", "mine.py", *options)
    assert submitted.returncode == 0, submitted.stderr
    assert json.loads(submitted.stdout)["study"] == "mine-1"
    (submission,) = finished_queue(here)
    assert (submission["study"], submission["tenant"]) == ("mine-1", "ann")
    assert submission["response_s"] > submission["waited_s"] >= 0
    assert [attempt["outcome"] for attempt in submission["attempts"]] == ["done"]
    assert "done" in onefold(here, "queue").stdout
    assert "no process serves" not in onefold(here, "queue").stdout
    wait_until(lambda: not Queue(Home(here / "home")).is_served)
    assert "the queue is empty" in onefold(here, "queue", "run").stdout


def finished_queue(here: Path) -> list[dict[str, Any]]:
    """Wait until every submitted study has ended, and return the queue."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        queue: list[dict[str, Any]] = json.loads(onefold(here, "queue", "--json").stdout)
        if all(submission["ended"] is not None for submission in queue):
            return queue
        time.sleep(0.2)
    raise AssertionError(f"the queue did not finish: {(here / 'home' / 'queue.log').read_text()}")


def test_tenants_have_shares_until_first_come_is_first_served_again(here: Path) -> None:
    assert "first come, first served" in onefold(here, "queue", "shares").stdout
    assert "67%" in onefold(here, "queue", "shares", "ann=2", "bob=1").stdout
    assert "bob" in onefold(here, "queue", "shares").stdout
    for words, message in (
        (("ann",), "such as ann=2"),
        (("ann=0",), "above 0"),
        (("a b=1",), "a tenant's name"),
        (("ann=1", "--fifo"), "leave out either"),
    ):
        answer = onefold(here, "queue", "shares", *words)
        assert answer.returncode == 2
        assert message in answer.stderr
    assert "first come, first served" in onefold(here, "queue", "shares", "--fifo").stdout


def test_mistakes_in_a_submission_are_answered_at_once(here: Path) -> None:
    for words, message in (
        (("submit", "mine.py", "--trials", "0"), "trials must be 1 or more"),
        (("submit", "mine.py", "--trails", "3"), "did you mean '--trials'?"),
        (("submit", "mine.py", "--save", "out"), "leave --save out"),
        (("tune", "mine.py", "--tenant", "ann"), "only a queued study has a tenant"),
    ):
        answer = onefold(here, *words)
        assert answer.returncode == 2
        assert message in answer.stderr
        assert "Traceback" not in answer.stderr
    assert "--trials" in onefold(here, "submit", "--help").stdout
