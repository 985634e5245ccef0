"""`onefold compile`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
from shell import begun, onefold

from onefold.cli.compile import _progress
from onefold.store import CompilationRecord
from onefold.study import Home
from onefold.vocabulary.kernels import ScheduleCandidate
from onefold.vocabulary.records import StudyState

TOTAL = 12
COMMAND = ("compile", "deploy", "--candidates", str(TOTAL), "--candidates-per-round", "3", "--threads", "1",
           "--strategy", "random", "--no-early-stop")  # fmt: skip
Rows = dict[str, tuple[int, str]]  # of candidates: the number of the row and what is in it, by key


@pytest.fixture
def here(deployed: Path, tiny: Path, home: Path, tmp_path: Path) -> Path:
    """A folder with a deployment folder and an ONNX file in it, and a home that knows this machine."""
    shutil.copytree(deployed, tmp_path / "deploy")
    shutil.copy(tiny, tmp_path)
    return home.parent


class TestCrossCompilation:
    def test_it_reports_what_was_compiled_and_not_run(self, here: Path) -> None:
        done = onefold(here, "compile", "deploy", "--device", "raspberry-pi-4")
        assert done.returncode == 0, done.stderr
        for words in ("Kernels of deploy", "raspberry-pi-4", "cortex-a72", "not run here: to tune it"):
            assert words in " ".join(done.stdout.split())
        assert "library  deploy" in done.stdout
        assert (here / "deploy" / "kernels.tar").is_file()

    def test_nothing_is_written_for_a_file_without_save(self, here: Path) -> None:
        before = sorted(path.name for path in here.iterdir())
        done = onefold(here, "compile", "tiny.onnx", "--device", "raspberry-pi-4")
        assert done.returncode == 0, done.stderr
        assert "nothing written: give --save FOLDER to keep the library" in done.stdout
        assert sorted(path.name for path in here.iterdir()) == before
        done = onefold(
            here, "compile", "tiny.onnx", "--device", "raspberry-pi-4", "--save", "made", "--batch-size", "2"
        )
        assert done.returncode == 0, done.stderr
        about = json.loads((here / "made" / "kernels.json").read_text())
        assert (about["batch_size"], about["file"]) == (2, "kernels.tar")
        assert (here / "made" / "deployment.json").is_file()

    def test_json_is_the_only_output_with_json(self, here: Path) -> None:
        done = onefold(here, "compile", "deploy", "tiny.onnx", "--device", "raspberry-pi-4", "--json")
        assert done.returncode == 0, done.stderr
        results = json.loads(done.stdout)
        assert [(result["format"], result["model"]) for result in results] == [(1, "deploy"), (1, "tiny")]
        assert [bool(result["folder"]) for result in results] == [True, False]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("deploy", "--strategy", "best"), "unknown search strategy 'best'; known: annealing"),
        (("deploy", "--device", "toaster"), "toaster"),
        (("deploy", "--goal", "0.001us"), "cannot be met: deploy computes"),
        (("deploy", "--goal", "1ms", "--goal", "2ms"), "got 2 goals for 1 model: give one for all"),
        (("deploy", "--money", "2"), "money needs the price of energy"),
        (("deploy", "--energy", "much"), "expected an energy such as 50kJ, 2MJ or 0.5kWh, got 'much'"),
        (("deploy", "--graph-level", "7"), "--graph-level must be from 0 to 4, got 7"),
        (("deploy", "--remote", "nonsense"), "remote must be HOST:PORT of a TVM server, got 'nonsense'"),
        (("home",), "deployment folder"),
        (("nowhere.onnx",), "no such model: nowhere.onnx"),
        (("nowhere",), "nowhere"),
    ],
)
def test_errors_are_one_sentence_and_change_nothing(here: Path, words: tuple[str, ...], why: str) -> None:
    before = {path.name: path.read_bytes() for path in (here / "deploy").iterdir()}
    done = onefold(here, "compile", *words)
    assert done.returncode == 2
    assert why in " ".join(done.stderr.split())
    assert done.stderr.startswith("onefold: ")
    assert not done.stdout.strip()
    assert {path.name: path.read_bytes() for path in (here / "deploy").iterdir()} == before


def rows(home: Path) -> Rows:
    """The candidates in the store; none before there is one."""
    if not (home / "store.db").is_file():
        return {}
    with closing(sqlite3.connect(f"file:{home / 'store.db'}?mode=ro", uri=True)) as store:
        try:
            return {key: (number, content) for number, key, content in
                    store.execute("SELECT id, key, content FROM candidates")}  # fmt: skip
        except sqlite3.OperationalError:  # no table yet
            return {}


def record(home: Path) -> CompilationRecord:
    with closing(Home(home).store()) as store:
        (result,) = store.compilations()
    return result


@dataclass
class StoppedRun:
    """A command that was stopped after some candidates."""

    status: int
    err: str
    rows: Rows
    record: CompilationRecord
    orphans: list[psutil.Process]


def kill(here: Path) -> StoppedRun:
    """Start the command as a process, wait for a candidate, and kill it."""
    home = here / "home"
    process = begun(here, *COMMAND)
    while not rows(home) and process.poll() is None:
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    os.kill(process.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    _, alive = psutil.wait_procs(children, timeout=60)
    return StoppedRun(process.returncode, err, rows(home), record(home), alive)


def interrupt(here: Path) -> StoppedRun:
    """Run the command in this process and press Ctrl-C after its first new candidate."""
    home, started = here / "home", set(psutil.Process().children(recursive=True))
    children: list[psutil.Process] = []

    def progress(*arguments: Any) -> Callable[[Any], None]:
        on_event = _progress(*arguments)

        def interrupting(event: Any) -> None:
            on_event(event)
            if isinstance(event, ScheduleCandidate) and not children:
                children.extend(set(psutil.Process().children(recursive=True)) - started)
                signal.raise_signal(signal.SIGINT)

        return interrupting

    with mock.patch("onefold.cli.compile._progress", progress):
        done = onefold(here, *COMMAND)
    assert children
    _, alive = psutil.wait_procs(children, timeout=60)
    return StoppedRun(done.returncode, done.stderr, rows(home), record(home), alive)


@dataclass
class Story:
    """The same command three times: killed, interrupted, and run to its end."""

    home: Path
    killed: StoppedRun
    interrupted: StoppedRun
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, deployed: Path, calibrated: Path) -> Story:
    here = tmp_path_factory.mktemp("story")
    shutil.copytree(deployed, here / "deploy")
    shutil.copytree(calibrated, here / "home" / "devices")
    with pytest.MonkeyPatch.context() as patch:  # latencies need not be precise here
        patch.setattr("onefold.runtimes.race.TURNS", 1)
        patch.setattr("onefold.runtimes.race.EXTRA_TURNS", 0)
        patch.setattr("onefold.kernels.model_compiler.FINAL_REPEATS", 1)
        patch.setattr("onefold.kernels.survey_tuner.MIN_PROMISE", 0.0)
        return Story(here / "home", kill(here), interrupt(here), onefold(here, *COMMAND))


class TestKilledAndInterrupted:
    def test_a_kill_leaves_no_process_behind(self, story: Story) -> None:
        assert story.killed.status == -signal.SIGKILL
        assert not story.killed.orphans

    def test_ctrl_c_prints_how_to_resume_and_leaves_no_process_behind(self, story: Story) -> None:
        assert story.interrupted.status == 130, story.interrupted.err
        assert "run the same command to resume" in story.interrupted.err
        assert "Traceback" not in story.interrupted.err
        assert not story.interrupted.orphans

    def test_the_same_command_resumes_within_its_budget(self, story: Story) -> None:
        assert story.done.returncode == 0, story.done.stderr
        counts = [len(item) for item in (story.killed.rows, story.interrupted.rows, rows(story.home))]
        assert 0 < counts[0] < counts[1] < counts[2] == TOTAL

    def test_no_candidate_is_measured_twice(self, story: Story) -> None:
        final = rows(story.home)
        for item in (story.killed.rows, story.interrupted.rows):
            assert {key: final[key] for key in item} == item
        assert sorted(number for number, _ in final.values()) == list(range(1, TOTAL + 1))

    def test_time_and_rounds_are_carried_over(self, story: Story) -> None:
        records = [story.killed.record, story.interrupted.record, record(story.home)]
        assert len({record.key for record in records}) == 1
        assert [record.state for record in records] == [StudyState.RUNNING, StudyState.RUNNING, StudyState.DONE]
        times = [record.elapsed_s for record in records]
        assert 0 < times[0] < times[1] < times[2]
        for earlier in records[:2]:
            assert records[2].rounds[: len(earlier.rounds)] == earlier.rounds
        interrupted = records[1]  # in a round that never ended, but has its cost
        assert interrupted.elapsed_s > interrupted.rounds[-1].ended_s
        assert interrupted.spent.time_s > interrupted.rounds[-1].spent.time_s
        numbers = [tuning_round.number for tuning_round in records[2].rounds]
        assert numbers == list(range(len(numbers)))
        ends = [tuning_round.ended_s for tuning_round in records[2].rounds]
        assert ends == sorted(ends)

    def test_progress_and_results_are_printed(self, story: Story) -> None:
        said = " ".join(story.done.stdout.split())
        for words in (
            "deploy round ", " candidates, 0 filtered, ", " operators suspended", "Kernels of deploy: use ",
            "onnxruntime", f"{TOTAL} candidates measured", "library deploy",
        ):  # fmt: skip
            assert words in said, words
