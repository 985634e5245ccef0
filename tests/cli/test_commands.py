"""The command line as a person uses it, mistakes included."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shell import WORKLOAD, alone, begun, onefold


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(WORKLOAD)
    return tmp_path


QUICK = ("--trials", "3", "--max-epochs", "2", "--parallel", "1")


def test_tune_list_show_report_resume(here: Path) -> None:
    tuned = alone(here, "tune", "mine.py", *QUICK, "--save", "out")
    assert tuned.returncode == 0, tuned.stderr
    assert "winner" in tuned.stdout
    assert "on test data: accuracy" in tuned.stdout
    assert "saved   out" in tuned.stdout
    assert (here / "out" / "weights.pt").exists()

    listed = onefold(here, "list")
    assert "mine-1" in listed.stdout
    assert "done" in listed.stdout
    assert json.loads(onefold(here, "list", "--json").stdout)[0]["name"] == "mine-1"

    assert "accuracy" in onefold(here, "show", "mine-1").stdout
    assert json.loads(onefold(here, "show", "mine-1", "--json").stdout)

    assert onefold(here, "report", "mine-1", "-o", "page.html").returncode == 0
    assert "<svg" in (here / "page.html").read_text()

    extended = onefold(here, "resume", "mine-1", "--trials", "2", "--json")
    assert extended.returncode == 0, extended.stderr
    lines = [json.loads(line) for line in extended.stdout.splitlines()]
    assert [line["trial"] for line in lines if line["kind"] == "trial"] == [3, 4]
    assert lines[-1]["kind"] == "ended"


def test_a_model_is_saved_in_a_folder_or_the_mistake_is_told_before_the_study(here: Path) -> None:
    for place in ("mine.py", "mine.py/below"):
        answer = onefold(here, "tune", "mine.py", *QUICK, "--save", place)
        assert answer.returncode == 2
        assert f"{here / 'mine.py'} is a file" in answer.stderr
    assert json.loads(onefold(here, "list", "--json").stdout) == []


def test_a_model_that_cannot_be_saved_is_told_below_the_conclusion(here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / "weights.pt").symlink_to("/dev/full")
    answer = onefold(here, "tune", "mine.py", *QUICK, "--save", "out")
    assert answer.returncode == 2
    assert "winner" in answer.stdout
    assert "saved" not in answer.stdout.splitlines()[-1]
    assert f"it is in {here / 'home' / 'studies' / 'mine-1' / 'best'}" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("file", ["best/weights.pt.new", pytest.param("report.html", marks=pytest.mark.slow)])
def test_a_full_disk_at_the_end_is_one_sentence_and_a_resume_completes(here: Path, file: str) -> None:
    full = here / "home" / "studies" / "mine-1" / file
    full.parent.mkdir(parents=True)
    full.symlink_to("/dev/full")
    answer = onefold(here, "tune", "mine.py", *QUICK)
    assert answer.returncode == 3
    assert "the disk is full" in answer.stderr
    assert "onefold resume mine-1" in answer.stderr
    assert "Traceback" not in answer.stderr
    full.unlink(missing_ok=True)
    resumed = onefold(here, "resume", "mine-1")
    assert resumed.returncode == 0, resumed.stderr
    assert "winner" in resumed.stdout


def test_seconds_are_told_where_seconds_are_granted(here: Path) -> None:
    grant = ("--budget", "time", "--max-epochs", "1000", "--min-time", "0.05", "--max-time", "0.2")
    tuned = onefold(here, "tune", "mine.py", "--trials", "3", "--parallel", "1", *grant)
    assert tuned.returncode == 0, tuned.stderr
    assert "promoted to rung 1: 0.20 s of training" in tuned.stdout
    assert "about 0 s left" in tuned.stdout


def test_an_interrupt_shows_what_was_found_and_leaves_the_model(here: Path) -> None:
    process = begun(here, "tune", "mine.py", "--trials", "5000", "--parallel", "1")
    assert process.stdout is not None
    while "trial 1 rung 0: accuracy" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    told, errors = process.communicate(timeout=60)
    best = here / "home" / "studies" / "mine-1" / "best"
    assert process.returncode == 130, errors
    assert "onefold resume mine-1" in errors
    assert "Traceback" not in errors
    assert "configuration" in told
    assert f"model   {best}" in told
    assert (best / "weights.pt").exists()
    card = json.loads((best / "model.json").read_text())
    assert f"so far  trial {card['trial']}: accuracy" in told
    listed = json.loads(onefold(here, "list", "--json").stdout)[0]
    assert listed["state"] == "interrupted"
    assert listed["result"] == card


def test_an_interrupt_loses_nothing_and_says_how_to_go_on(here: Path) -> None:
    process = begun(here, "tune", "mine.py:Mine", "--trials", "5000", "--json", "--parallel", "1")
    assert process.stdout is not None
    while '"epoch"' not in process.stdout.readline():
        pass
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "onefold resume mine-1" in errors
    assert "interrupted" in onefold(here, "list").stdout


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("tune", "nowhere.py"), 2, "there is no file 'nowhere.py'"),
        (("tune", "digit"), 2, "did you mean 'digits'?"),
        (("tune", "mine.py:Yours"), 2, "has no workload 'Yours'"),
        (("tune", "empty.py"), 2, "has no workload: define a class"),
        (("tune", "broken.py"), 2, "not valid Python: "),
        (("tune", "mine.py", "--maximize", "acuracy", *QUICK), 2, "did you mean 'accuracy'?"),
        (("tune", "mine.py", "--require", "accuracy=0.9"), 2, "reads like accuracy>=0.9"),
        (("tune", "mine.py", "--search", "tpee"), 2, "did you mean 'tpe'?"),
        (("tune", "mine.py", "--rungs", "hyperbad"), 2, "did you mean 'hyperband'?"),
        (("tune", "mine.py", "--eta", "1"), 2, "eta must be 2 or more"),
        (("tune", "mine.py", "--memory", "much"), 2, "such as 500MB"),
        (("tune", "mine.py", "--accelerator", "cuda", *QUICK), 2, "not available on this machine"),
        (("show", "mine-7"), 2, "mine-7"),
        (("resume", "mine-7"), 2, "mine-7"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence(here: Path, words: tuple[str, ...], code: int, complaint: str) -> None:
    (here / "empty.py").write_text("x = 1\n")
    (here / "broken.py").write_text("def f(:\n")
    answer = onefold(here, *words)
    assert complaint in answer.stderr
    assert answer.returncode == code
    assert "Traceback" not in answer.stderr


def test_a_broken_store_is_told_and_left_alone(here: Path) -> None:
    (here / "home").mkdir()
    (here / "home" / "store.db").write_bytes(b"this is not a database, but it is long enough to be looked at" * 20)
    answer = onefold(here, "list")
    assert answer.returncode == 3
    assert "store.db" in answer.stderr
    assert (here / "home" / "store.db").read_bytes().startswith(b"this is not")


def test_a_study_goes_on_from_another_folder(here: Path) -> None:
    assert onefold(here, "tune", "mine.py", *QUICK).returncode == 0
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    answer = subprocess.run(
        [sys.executable, "-m", "onefold.cli", "resume", "mine-1", "--minutes", "1"],
        capture_output=True, text=True, cwd=elsewhere, env={**os.environ, "ONEFOLD_HOME": str(here / "home")},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert "more trials make it go on" in answer.stdout


UNGUARDED = """
import onefold
result = onefold.tune(Mine(), trials=3, max_epochs=2, parallel=1, name="unguarded")
print("accuracy", result.metrics["accuracy"])
"""


def test_a_script_needs_no_guard_until_it_is_imported(here: Path) -> None:
    (here / "script.py").write_text(WORKLOAD + UNGUARDED)
    environment = {**os.environ, "ONEFOLD_HOME": str(here / "home")}
    ran = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=here, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "accuracy" in ran.stdout
    answer = onefold(here, "tune", "script.py")
    assert answer.returncode == 2
    assert 'if __name__ == "__main__"' in answer.stderr


def test_brackets_in_a_message_are_told_as_they_are(here: Path) -> None:
    answer = onefold(here, "tune", "mine.py", "--require", "[/x]")
    assert answer.returncode == 2
    assert "[/x]" in answer.stderr


def test_a_reader_that_leaves_interrupts_the_study(here: Path) -> None:
    process = begun(here, "tune", "mine.py", "--trials", "5000", "--parallel", "1")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=60)
    assert process.stderr is not None
    process.stderr.close()
    assert "interrupted" in onefold(here, "list").stdout
