"""The commands over studies: tune, resume, list, show and report, with mistakes and interruptions.

Trials run in this process, except where worker processes or signals are what is tested.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from shell import WORKLOAD, begun, onefold, wait_for_line

from onefold.study import Home, ParallelismOptions
from onefold.vocabulary.records import StudyState

QUICK = ("--trials", "3", "--max-epochs", "2", "--parallel", "1")
TWO_GOALS = ("--maximize", "accuracy", "--minimize", "parameters")
ENDLESS = ("--trials", "5000", "--parallel", "1")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(WORKLOAD)
    return tmp_path


@pytest.fixture(autouse=True)
def inline_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.cli.tune.ParallelismOptions", partial(ParallelismOptions, engine="inline"))


def test_a_study_is_tuned_listed_shown_reported_and_extended(here: Path) -> None:
    tuned = onefold(here, "tune", "mine.py", *QUICK, "--save", "out")
    assert tuned.returncode == 0, tuned.stderr
    assert "winner" in tuned.stdout
    assert "on test data: accuracy" in tuned.stdout
    assert "saved   out" in tuned.stdout
    assert (here / "out" / "weights.safetensors").exists()

    listed = onefold(here, "list")
    assert "mine-1" in listed.stdout
    assert "done" in listed.stdout
    assert json.loads(onefold(here, "list", "--json").stdout)[0]["name"] == "mine-1"

    assert "accuracy" in onefold(here, "show", "mine-1").stdout
    assert json.loads(onefold(here, "show", "mine-1", "--json").stdout)["study"]["name"] == "mine-1"

    assert onefold(here, "report", "mine-1", "-o", "page.html").returncode == 0
    assert "<svg" in (here / "page.html").read_text()

    ended = onefold(here, "resume", "mine-1")
    assert ended.returncode == 0, ended.stderr
    assert "add trials to continue" in ended.stdout
    refused = onefold(here, "resume", "mine-1", "--minutes", "1")
    assert refused.returncode == 2
    assert "all trials have finished; continue it with more of them, such as --trials 9" in refused.stderr

    extended = onefold(here, "resume", "mine-1", "--trials", "2", "--json")
    assert extended.returncode == 0, extended.stderr
    lines = [json.loads(line) for line in extended.stdout.splitlines()]
    assert [line["trial"] for line in lines if line["kind"] == "trial"] == [3, 4]
    assert lines[-1]["kind"] == "ended"


def test_a_front_is_chosen_from_listed_and_exported(here: Path) -> None:
    goals = ("--maximize", "accuracy", "--minimize", "train_time_s", "--rungs", "none")
    tuned = onefold(here, "tune", "mine.py", *QUICK, *goals, "--prefer", "accuracy", "--guard", "none")
    assert tuned.returncode == 0, tuned.stderr
    assert "why     trial" in tuned.stdout
    front = json.loads(onefold(here, "show", "mine-1", "--front", "--json").stdout)
    assert front["best"] == front["front"][0]["number"], "the most accurate is handed over"
    assert "Pareto front: " in onefold(here, "show", "mine-1", "--front").stdout
    wanted = front["front"][-1]["number"]
    exported = onefold(here, "export", "mine-1", "out", "--trial", str(wanted), "--json")
    assert exported.returncode == 0, exported.stderr
    assert json.loads(exported.stdout)["trial"] == wanted
    assert (here / "out" / "weights.safetensors").exists()
    fastest = onefold(here, "export", "mine-1", "fast", "--prefer", "train_time_s", "--json")
    assert json.loads(fastest.stdout)["trial"] == wanted, "the guard is that of the study"
    assert "has the lowest train_time_s" in json.loads(fastest.stdout)["why"][0] or len(front["front"]) == 1
    guards = ("--guard", "accuracy>=best-5%", "--guard", "accuracy>=0.9999")
    closest = onefold(here, "export", "mine-1", "best", "--prefer", "train_time_s", *guards)
    assert f"trial {front['best']}: accuracy" in closest.stdout
    reason = next(line for line in closest.stdout.splitlines() if line.startswith(f"why     trial {front['best']} is"))
    assert "no" in reason
    assert "accuracy>=0.9999" in reason
    assert reason.removeprefix("why     ") in json.loads((here / "best" / "model.json").read_text())["why"]
    refused = onefold(here, "tune", "mine.py", *QUICK, *goals, "--prefer", "latency_s")
    assert refused.returncode == 2
    assert "only goals can be preferred" in refused.stderr


def test_a_compressed_fork_is_exported(here: Path) -> None:
    goals = ("--maximize", "accuracy", "--minimize", "encoded_bytes", "--compress", "in-loop", "--fork-share", "0%")
    tuned = onefold(here, "tune", "mine.py", "--trials", "1", "--max-epochs", "1", "--parallel", "1", *goals)
    assert tuned.returncode == 0, tuned.stderr
    exported = onefold(here, "export", "mine-1", "fork", "--trial", "1")
    assert exported.returncode == 0, exported.stderr
    assert "trial 1: accuracy" in exported.stdout
    assert "saved   fork" in exported.stdout
    assert (here / "fork" / "model.packed").exists()
    card = json.loads(onefold(here, "export", "mine-1", "again", "--trial", "1", "--json").stdout)
    assert (card["trial"], card["variant"]) == (1, "int8")


def test_a_save_folder_that_cannot_be_used_is_rejected_before_the_study(here: Path) -> None:
    for folder in ("mine.py", "mine.py/below"):
        answer = onefold(here, "tune", "mine.py", *QUICK, "--save", folder)
        assert answer.returncode == 2
        assert f"{here / 'mine.py'} is a file" in answer.stderr
    assert json.loads(onefold(here, "list", "--json").stdout) == []


def test_a_model_that_cannot_be_saved_is_reported_after_the_result(here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / ".commit").write_text("a file where the new model has to go")
    answer = onefold(here, "tune", "mine.py", *QUICK, "--save", "out")
    assert answer.returncode == 2
    assert "winner" in answer.stdout
    assert "saved" not in answer.stdout.splitlines()[-1]
    assert f"it is in {here / 'home' / 'studies' / 'mine-1' / 'best'}" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_full_disk_at_the_end_is_one_sentence_and_resuming_completes(here: Path) -> None:
    full = here / "home" / "studies" / "mine-1" / "report.html"
    full.parent.mkdir(parents=True)
    full.symlink_to("/dev/full")
    answer = onefold(here, "tune", "mine.py", *QUICK)
    assert answer.returncode == 3
    assert "the disk is full" in answer.stderr
    assert "resume the study 'mine-1'" in answer.stderr
    assert "Traceback" not in answer.stderr
    full.unlink(missing_ok=True)
    resumed = onefold(here, "resume", "mine-1")
    assert resumed.returncode == 0, resumed.stderr
    assert "winner" in resumed.stdout


def test_time_budgets_are_shown_in_seconds(here: Path) -> None:
    grant = ("--budget", "time", "--max-epochs", "1000", "--min-time", "0.05", "--max-time", "0.2")
    tuned = onefold(here, "tune", "mine.py", "--trials", "3", "--parallel", "1", *grant)
    assert tuned.returncode == 0, tuned.stderr
    assert "promoted to rung 1: 0.20 s of training" in tuned.stdout
    assert re.search(r"(about [\d.]+ \S+|less than a second) left", tuned.stdout)


def test_an_interrupted_study_shows_the_best_so_far_and_keeps_its_model(here: Path) -> None:
    process = begun(here, "tune", "mine.py", *ENDLESS)
    wait_for_line(process, "trial 1 rung 0: accuracy")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=300)
    best = here / "home" / "studies" / "mine-1" / "best"
    assert process.returncode == 130, errors
    assert "onefold resume mine-1" in errors
    assert "Traceback" not in errors
    assert "configuration" in output
    assert f"model   {best}" in output
    assert (best / "weights.safetensors").exists()
    card = json.loads((best / "model.json").read_text())
    assert f"so far  trial {card['trial']}: accuracy" in output
    listed = json.loads(onefold(here, "list", "--json").stdout)[0]
    assert listed["state"] == "interrupted"
    assert listed["result"] == card


@pytest.mark.slow
def test_an_interrupt_within_an_epoch_loses_nothing(here: Path) -> None:
    process = begun(here, "tune", "mine.py:Mine", *ENDLESS, "--json")
    wait_for_line(process, '"epoch"')
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "onefold resume mine-1" in errors
    assert "interrupted" in onefold(here, "list").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("tune", "nowhere.py"), 2, "there is no file 'nowhere.py'"),
        (("tune", "digit"), 2, "did you mean 'digits'?"),
        (("tune", "mine.py:Yours"), 2, "unknown workload 'Yours' of mine.py"),
        (("tune", "empty.py"), 2, "has no workload; define a subclass"),
        (("tune", "broken.py"), 2, "not valid Python: "),
        (("tune", "mine.py", "--maximize", "acuracy", *QUICK), 2, "did you mean 'accuracy'?"),
        (("tune", "mine.py", "--require", "accuracy=0.9"), 2, "accuracy>=0.9"),
        (("tune", "mine.py", "--prefer", "accuracy"), 2, "accuracy is the only one; leave them out, or add a goal"),
        (("tune", "mine.py", "--require", "loss<=1", "--require", "loss>=0.1"), 2, "got loss<=1 and loss>=0.1; leave"),
        (("tune", "mine.py", "--guard", "accuracy>=best-10", *TWO_GOALS), 2, "write accuracy>=best-10% for a share"),
        (("tune", "mine.py", "--require", "accuracy>=90"), 2, "write accuracy>=0.9 for 90 %"),
        (("tune", "mine.py", "--guard", "latency<=3ms"), 2, "'latency' says none; did you mean 'latency_s'?"),
        (("tune", "mine.py", "--minimize", "encoded_bytes"), 2, "in the loop; add --compress in-loop"),
        (("tune", "mine.py", "--compress", "in-loop", "--budget", "time"), 2, "a budget with --budget time grants"),
        (("tune", "mine.py", "--compress", "in-loop", "--budget", "time"), 2, "use --budget epochs"),
        (
            ("tune", "mine.py", "--compress", "in-loop", "--fork-share", "150%"),
            2,
            "--fork-share must be at least 0 and",
        ),
        (("tune", "mine.py", "--compress", "in-loop", "--fork-epochs", "0"), 2, "--fork-epochs must be at least 1"),
        (("tune", "mine.py", "--guard", "none"), 2, "accuracy is the only one; leave them out, or add a goal"),
        (("tune", "mine.py", "--guard", "none", "--guard", "loss<=1"), 2, "leave the other guards out, got none, loss"),
        (("tune", "mine.py", "--take", ""), 2, "add --compress after"),
        (("tune", "mine.py", "--compress", "after", "--take", ""), 2, "unknown variant ''; known: channels-0.5-int8,"),
        (("tune", "mine.py", "--require", "[/x]"), 2, "[/x]"),
        (("tune", "mine.py", "--search", "tpee"), 2, "did you mean 'tpe'?"),
        (("tune", "mine.py", "--rungs", "hyperbad"), 2, "did you mean 'hyperband'?"),
        (("tune", "mine.py", "--eta", "1"), 2, "eta must be 2 or more"),
        (("tune", "mine.py", "--memory", "much"), 2, "such as 500MB"),
        (("tune", "mine.py", "--hang-timeout", "0"), 2, "--hang-timeout must be above 0"),
        (("tune", "mine.py", "--optimize-serving-for", "speed"), 2, "--optimize-serving-for"),
        (("tune", "mine.py", "--queued", "--save", "out"), 2, "leave --save out"),
        (("tune", "mine.py", "--accelerator", "cuda", *QUICK), 2, "not available on this machine"),
        (("show", "mine-7"), 2, "mine-7"),
        (("resume", "mine-7"), 2, "mine-7"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence(
    here: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (here / "empty.py").write_text("x = 1\n")
    (here / "broken.py").write_text("def f(:\n")
    answer = onefold(here, *arguments)
    assert message in answer.stderr
    assert answer.returncode == code
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("tune", "mine.py", "--trials", "three"),
            "--trials expects a whole number, got 'three'; see: onefold",
        ),
        (("tune", "mine.py", "--minutes=x"), "--minutes expects a number, got 'x'; see: onefold tune --help"),
        (("tune", "mine.py", "--trails", "3"), "unknown option '--trails' of onefold tune; did you mean '--trials'?"),
        (("tune",), "the command needs an argument workload; see: onefold tune --help"),
        (("tunne",), "no such command 'tunne'; did you mean 'tune'?"),
        (("--nope",), "unknown option '--nope' of onefold; known: "),
    ],
)
def test_misuse_is_answered_in_the_style_of_other_mistakes(
    here: Path, arguments: tuple[str, ...], message: str
) -> None:
    answer = onefold(here, *arguments)
    assert answer.returncode == 2
    assert answer.stderr.startswith(f"onefold: {message}")
    assert len(answer.stderr.splitlines()) == 1


WITHOUT_DATA = """
from onefold.testing.toy import Spirals

class Mine(Spirals):
    def data(self):
        return None
"""


def test_a_study_that_cannot_begin_leaves_nothing_behind(here: Path) -> None:
    without_gpu = onefold(here, "tune", "mine.py", "--accelerator", "cuda", *QUICK)
    (here / "mine.py").write_text(WITHOUT_DATA)
    without_data = onefold(here, "tune", "mine.py", *QUICK)
    assert (without_gpu.returncode, without_data.returncode) == (2, 2)
    assert "but returned NoneType" in without_data.stderr
    assert json.loads(onefold(here, "list", "--json").stdout) == []
    assert not any((here / "home" / "studies").iterdir())


BROKEN_CHECK = """
from onefold.testing.toy import Spirals

class Mine(Spirals):
    def check(self, config):
        if config.widht > 8:
            raise ValueError("too wide")
"""


def test_a_check_that_raises_ends_the_command_with_one_line(here: Path) -> None:
    (here / "mine.py").write_text(BROKEN_CHECK)
    answer = onefold(here, "tune", "mine.py", *QUICK)
    assert answer.returncode == 2
    assert len(answer.stderr.splitlines()) == 1
    for word in ("check", "AttributeError", "'widht'", "Config(width="):
        assert word in answer.stderr


def test_a_killed_study_is_listed_with_its_best_value(here: Path) -> None:
    assert onefold(here, "tune", "mine.py", *QUICK).returncode == 0
    with closing(Home(here / "home").store()) as store:  # as kill -9 leaves it
        store.save_study(replace(store.study("mine-1"), state=StudyState.RUNNING, reason="", result={}))
    best = re.search(r"Best    trial \d+: (accuracy [\d.]+)", onefold(here, "show", "mine-1").stdout)
    assert best is not None
    listed = onefold(here, "list").stdout
    assert best[1].rstrip("0") in listed
    assert "killed" in listed


def test_a_broken_store_is_reported_and_left_alone(here: Path) -> None:
    (here / "home").mkdir()
    (here / "home" / "store.db").write_bytes(b"this is not a database, but it is long enough to be looked at" * 20)
    answer = onefold(here, "list")
    assert answer.returncode == 3
    assert "store.db" in answer.stderr
    assert (here / "home" / "store.db").read_bytes().startswith(b"this is not")


def test_a_study_can_be_resumed_from_another_folder(here: Path) -> None:
    assert onefold(here, "tune", "mine.py", *QUICK).returncode == 0
    (here / "elsewhere").mkdir()
    answer = onefold(here / "elsewhere", "resume", "mine-1", "--trials", "1", "--home", str(here / "home"))
    assert answer.returncode == 0, answer.stderr
    assert "winner" in answer.stdout


UNGUARDED = """
import onefold
result = onefold.tune(
    Mine(), trials=3, max_epochs=2, name="unguarded", parallelism=onefold.ParallelismOptions(parallel=1)
)
print("accuracy", result.metrics["accuracy"])
"""


def test_a_script_needs_no_main_guard_until_it_is_imported(here: Path) -> None:
    (here / "script.py").write_text(WORKLOAD + UNGUARDED)
    environment = {**os.environ, "ONEFOLD_HOME": str(here / "home")}
    ran = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=here, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "accuracy" in ran.stdout
    answer = onefold(here, "tune", "script.py")
    assert answer.returncode == 2
    assert 'if __name__ == "__main__"' in answer.stderr


@pytest.mark.slow
def test_a_closed_pipe_interrupts_the_study(here: Path) -> None:
    process = begun(here, "tune", "mine.py", *ENDLESS)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=300)
    assert process.stderr is not None
    process.stderr.close()
    assert "interrupted" in onefold(here, "list").stdout
