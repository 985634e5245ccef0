"""kill -9 of the coordinator and of workers: nothing lost, nothing done twice, the same decisions."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from onefold.study import Home
from onefold.vocabulary.records import StudyState

OPTIONS = ["--trials", "6", "--max-epochs", "8", "--parallel", "2", "--seed", "11", "--name", "s"]
TIMED = ("train_time_s", "energy_j", "memory_bytes")


def onefold(home: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "onefold.cli", *words, "--home", str(home), "--json"]
    home.mkdir(exist_ok=True)
    with (home / "errors").open("wb") as errors:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)


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


def run_and_kill(home: Path, kills: int, rng: random.Random, *more: str) -> None:
    """Run a study to its end, killing the coordinator or a worker at random moments and resuming."""
    command = ("tune", "onefold.testing.toy:Spirals", *OPTIONS, *more)
    process = onefold(home, *command)
    while True:
        try:
            process.wait(timeout=rng.uniform(1.5, 4.0) if kills else None)
        except subprocess.TimeoutExpired:
            kills -= 1
            children = psutil.Process(process.pid).children()
            if children and rng.random() < 0.5:
                os.kill(rng.choice(children).pid, signal.SIGKILL)
                continue
            process.kill()
            process.wait()
            _, alive = psutil.wait_procs(children, timeout=10)
            assert not alive, "workers outlive their coordinator"
        if process.returncode == 0:
            return
        assert process.returncode == -signal.SIGKILL, (home / "errors").read_text()
        with closing(Home(home).store()) as store:
            begun = bool(store.studies())
        process = onefold(home, "resume", "s") if begun else onefold(home, *command)


def test_a_study_killed_again_and_again_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    run_and_kill(tmp_path / "quiet", 0, random.Random(0), "--knobs", "off")
    run_and_kill(tmp_path / "killed", 3, random.Random(int(time.time())), "--knobs", "off")
    quiet, killed = facts(tmp_path / "quiet"), facts(tmp_path / "killed")
    assert killed[0] == quiet[0]
    assert killed[1] == quiet[1]


@pytest.mark.slow
def test_with_knobs_on_nothing_is_lost_and_nothing_is_done_twice(tmp_path: Path) -> None:
    run_and_kill(tmp_path / "killed", 3, random.Random(int(time.time())), "--knobs", "on")
    rungs, epochs = facts(tmp_path / "killed")
    assert [rung[0] for rung in rungs] == list(range(len(rungs)))
    assert len({epoch[:3] for epoch in epochs}) == len(epochs)
    with closing(Home(tmp_path / "killed").store()) as store:
        assert store.knob_records("s")
