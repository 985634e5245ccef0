"""A real command that is killed in the middle and run again."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from kernel_comparison.networks import Workspace

CANDIDATES, KILLED_AT = 48, 16


def kill_and_rerun(workspace: Workspace, network: str) -> dict[str, int]:
    """Kill a compilation after some candidates and run it again; return how many it measured, and how many twice."""
    home = workspace.start("killed")
    command = [
        sys.executable, "-W", "ignore", "-c", "from onefold.cli import main; main()", "compile",
        str(workspace.model(network)), "--candidates", str(CANDIDATES), "--no-early-stop", "--home", str(home),
        "--json",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and len(_candidates(home)) < KILLED_AT:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = _candidates(home)
    subprocess.run(command, capture_output=True, text=True, check=True)
    after = _candidates(home)
    changed = [key for key, content in before.items() if after.get(key) != content]
    return {"before": len(before), "candidates": len(after), "measured twice": len(changed)}


def _candidates(home: Path) -> dict[str, str]:
    """Return the stored content of each candidate, with its build and run times."""
    file = home / "store.db"
    if not file.exists():
        return {}
    try:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
            return dict(connection.execute("select key, content from candidates").fetchall())
    except sqlite3.OperationalError:  # before the tables are created
        return {}
