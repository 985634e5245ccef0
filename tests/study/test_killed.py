"""kill -9 of the coordinator and of workers: nothing lost, nothing done twice, the same decisions."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from onefold import Budget
from onefold.study import Home
from onefold.testing.toy import Spirals
from onefold.vocabulary.records import StudyState
from small_studies import small_study

# Each epoch takes a turn from a pipe, so that the study does not end before it is killed, however busy the machine is.
WORKLOAD = """
import os
from onefold.testing.toy import Spirals

class Paced(Spirals):
    def train_epoch(self, *args):
        with open(os.environ["TURNS"], "r+b", buffering=0) as turns:
            turns.read(1)
        return super().train_epoch(*args)
"""
MAX_EPOCHS, TURNS = 2, 4  # epochs that are waited for before each kill, and turns given, since a kill may lose two
OPTIONS = ["--trials", "6", "--max-epochs", "8", "--parallel", "2", "--seed", "11", "--name", "s"]
TIMED = ("train_time_s", "energy_j", "memory_bytes")


def onefold(home: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "onefold.cli", *words, "--home", str(home), "--json"]
    home.mkdir(exist_ok=True)
    with (home / "errors").open("wb") as errors:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)


def facts(home: Path) -> tuple[list[Any], list[Any]]:
    """Return all decisions and results, without timings."""
    with closing(Home(home).store()) as store:
        trials, epochs = store.trials("s"), store.epochs("s")
        assert store.study("s").state is StudyState.DONE

    def untimed(metrics: Any) -> dict[str, float]:
        return {name: value for name, value in metrics.items() if name not in TIMED}

    rungs = [
        (rung.decision, trial.number, dict(trial.config), rung.rung, rung.grant, rung.state, untimed(rung.metrics))
        for trial in trials
        for rung in trial.rungs
    ]
    return sorted(rungs, key=lambda rung: rung[0]), [(e.trial, e.rung, e.number, untimed(e.metrics)) for e in epochs]


def is_worker(process: psutil.Process) -> bool:
    try:
        return "onefold.engine.worker" in process.cmdline()
    except psutil.NoSuchProcess:  # also one that has ended and is not waited for yet
        return False


def run_and_kill(home: Path, kills: Sequence[str], rng: random.Random, *more: str) -> None:
    """Run a study to its end, killing a worker or the coordinator after some epochs each time and resuming."""
    workload, turns = home.with_name("paced.py"), home.with_name("turns")
    workload.write_text(WORKLOAD)
    os.mkfifo(turns)
    with turns.open("r+b", buffering=0) as given, mock.patch.dict(os.environ, {"TURNS": str(turns)}):
        process = onefold(home, "tune", f"{workload}:Paced", *OPTIONS, *more)
        for killed in kills:
            given.write(b"." * TURNS)
            wait_for_epochs(process, rng.randint(1, MAX_EPOCHS), home)
            time.sleep(rng.uniform(0, 0.05))  # so that any step may be hit
            children = psutil.Process(process.pid).children()
            workers = [child for child in children if is_worker(child)]
            if killed == "worker":
                rng.choice(workers).kill()
                continue
            process.kill()
            process.communicate()
            _, alive = psutil.wait_procs(children, timeout=60)
            assert not alive, "workers outlive their coordinator"
            process = onefold(home, "resume", "s")
        given.write(b"." * 1000)
        process.communicate()
    assert process.returncode == 0, (home / "errors").read_text()


def wait_for_epochs(process: subprocess.Popen[bytes], count: int, home: Path) -> None:
    """Read the events of a study until `count` more epochs have ended."""
    assert process.stdout is not None
    while count:
        event = process.stdout.readline()
        assert event, (home / "errors").read_text()
        count -= b'"kind": "epoch"' in event


def test_a_killed_study_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    run_and_kill(tmp_path / "killed", ("worker", "coordinator"), random.Random(int(time.time())), "--knobs", "off")
    budget = Budget(trials=6, max_epochs=8)
    small_study(Spirals(), tmp_path / "quiet", budget=budget, parallel=2, seed=11, name="s").run()
    quiet, killed = facts(tmp_path / "quiet"), facts(tmp_path / "killed")
    assert killed[0] == quiet[0]
    assert killed[1] == quiet[1]


@pytest.mark.slow
def test_with_knob_tuning_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    kills = ("worker", "coordinator", "coordinator", "worker")
    run_and_kill(tmp_path / "killed", kills, random.Random(int(time.time())), "--knobs", "on")
    rungs, epochs = facts(tmp_path / "killed")
    assert [rung[0] for rung in rungs] == list(range(len(rungs)))
    assert len({epoch[:3] for epoch in epochs}) == len(epochs)
    with closing(Home(tmp_path / "killed").store()) as store:
        assert store.knob_records("s")
