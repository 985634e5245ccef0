"""Processes and temporary files that trials leave behind end with their study, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

DEADLINE_S = 120.0
# Each trial starts a process in a session of its own that nobody waits for, creates a temporary file, and ends once
# there is a file `go`. Nothing here imports torch, which would take most of the time.
STUDY = '''
import os, subprocess, sys, tempfile, time
from pathlib import Path
from onefold import Budget, Float, ParallelismOptions, Space, Study

HERE = sys.argv[1]
PROGRAM = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    with open(sys.argv[1], "a") as file:
        file.write(str(os.getpid()) + chr(10))
    time.sleep(600)
"""

def trial(config):
    here = Path(HERE)
    subprocess.run([sys.executable, "-c", PROGRAM, str(here / "daemons")], check=True)
    with tempfile.NamedTemporaryFile(delete=False) as file, (here / "files").open("a") as names:
        names.write(file.name + "\\n")
    while not (here / "go").exists():
        time.sleep(0.02)
    return config.x

if __name__ == "__main__":
    parallel = ParallelismOptions(parallel=2)
    home = Path(HERE, "home")
    Study(trial, space=Space(x=Float(0, 1)), budget=Budget(trials=4), parallelism=parallel, home=home).run()
'''


@pytest.fixture
def study(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "study.py").write_text(STUDY)
    command = [sys.executable, "study.py", str(tmp_path)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def lines(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if line] if file.exists() else []


def check_nothing_is_left(here: Path) -> None:
    daemons = [psutil.Process(int(pid)) for pid in lines(here / "daemons") if psutil.pid_exists(int(pid))]
    _, alive = psutil.wait_procs(daemons, timeout=DEADLINE_S)
    assert not alive
    deadline = time.monotonic() + DEADLINE_S
    while any(Path(name).exists() for name in lines(here / "files")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [name for name in lines(here / "files") if Path(name).exists()]


def test_they_end_with_a_study_that_ends(study: subprocess.Popen[str], tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    _, err = study.communicate(timeout=DEADLINE_S)
    assert study.returncode == 0, err
    assert len(lines(tmp_path / "daemons")) >= 4
    check_nothing_is_left(tmp_path)


def test_they_end_with_a_killed_study(study: subprocess.Popen[str], tmp_path: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not (lines(tmp_path / "daemons") and lines(tmp_path / "files")) and time.monotonic() < deadline:
        time.sleep(0.02)
    study.kill()
    study.communicate()
    assert lines(tmp_path / "daemons")
    check_nothing_is_left(tmp_path)


def test_they_end_with_the_worker_that_is_replaced(study: subprocess.Popen[str], tmp_path: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not lines(tmp_path / "daemons") and time.monotonic() < deadline:
        time.sleep(0.02)
    daemon = psutil.Process(int(lines(tmp_path / "daemons")[0]))
    for child in psutil.Process(study.pid).children():
        if "onefold.engine.worker" in child.cmdline():
            os.kill(child.pid, 9)
    psutil.wait_procs([daemon], timeout=DEADLINE_S)
    assert not daemon.is_running()
    (tmp_path / "go").touch()
    study.communicate(timeout=DEADLINE_S)
    check_nothing_is_left(tmp_path)
