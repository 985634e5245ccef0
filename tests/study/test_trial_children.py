"""Processes and temporary files that trials leave behind end with their study, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

DEADLINE_S = 120.0
# Each trial starts a process in a session of its own that nobody waits for, and creates a temporary file.
WORKLOAD = '''
import os, subprocess, sys, tempfile
from pathlib import Path
from onefold.testing.toy import Spirals

PROGRAM = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    with open(sys.argv[1], "a") as file:
        file.write(str(os.getpid()) + chr(10))
    time.sleep(600)
"""

class Mine(Spirals):
    def build(self, config):
        here = Path(__file__).parent
        subprocess.run([sys.executable, "-c", PROGRAM, str(here / "daemons")], check=True)
        with tempfile.NamedTemporaryFile(delete=False) as file, (here / "files").open("a") as names:
            names.write(file.name + "\\n")
        return super().build(config)
'''


@pytest.fixture
def study(tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "mine.py").write_text(WORKLOAD)
    words = ["tune", "mine.py:Mine", "--trials", "4", "--max-epochs", "2", "--parallel", "2", "--knobs", "off"]
    return subprocess.Popen(
        [sys.executable, "-m", "onefold.cli", *words, "--home", str(tmp_path / "home"), "--json"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


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
    study.communicate(timeout=DEADLINE_S)
    check_nothing_is_left(tmp_path)
