"""The processes of a queue without training: `python queue_processes.py serve HOME`, `… study NAME HOME`.

A study notes its start in HOME/started, with its cores, and ends as soon as HOME/NAME.end exists: in a failure if that
says so.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from onefold.processes import CoreLease
from onefold.store import Job
from onefold.store.home import Home
from onefold.study.attempts import attempt_at_job
from onefold.study.queue import Queue
from onefold.vocabulary.errors import OnefoldError


def command(*words: str) -> list[str]:
    return [sys.executable, __file__, *words]


def start_study(home: Home, job: Job, lease: CoreLease) -> subprocess.Popen[bytes]:
    """Start the process of a study, as a queue does."""
    assert lease.descriptor is not None
    words = command("study", job.study, str(home.path), *map(str, lease.cores))
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[lease.descriptor], start_new_session=True)


def run_study(name: str, path: str, *cores: str) -> None:
    """Be a study."""
    home = Home(path)
    with home.study_lock(name), closing(home.store()) as store, attempt_at_job(home, name, store):
        with (home.path / "started").open("a") as file:
            file.write(f"{name} {','.join(cores)}\n")
        end = Path(path) / f"{name}.end"
        while not end.exists():
            time.sleep(0.01)
        if end.read_text():
            raise OnefoldError(end.read_text())


if __name__ == "__main__":
    try:
        if sys.argv[1] == "study":
            run_study(*sys.argv[2:])
        else:
            Queue(Home(sys.argv[2]), start_study).run()
    except OnefoldError as error:
        sys.exit(error.exit_code)
