"""Many studies on one machine: first come, first served, one at a time, so that no two fight for its cores.

queue = Queue(home)
queue.submit(study)         # its place in the queue
queue.run()                 # serves all that wait; a runner that is killed is taken up by the next one

Whoever runs the queue holds HOME/queue.lock. How long each study waited and took is kept in the store.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from onefold.store import Submission
from onefold.store.home import Home
from onefold.study.study import Study
from onefold.vocabulary.errors import InputError, QueueBusy, StoreError

NOT_ITS_FAULT = (StoreError.exit_code, 130)  # a full disk, somebody else who runs it, Ctrl-C

log = logging.getLogger(__name__)


class Queue:
    """The queue of a home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def submit(self, study: Study) -> int:
        """Puts a study that has been made at the end of the queue; returns how many are before it."""
        if not study.spec.workload:
            raise InputError(
                "a study of a program cannot wait in the queue, since nobody else can make its workload: put it into a "
                "file and submit FILE.py:Class"
            )
        before = len(self.waiting())
        with closing(self._home.store()) as store:
            store.save_submission(Submission(study.name, time.time(), str(Path.cwd())))
        return before

    def submissions(self) -> list[Submission]:
        """All that were ever submitted, first come first."""
        with closing(self._home.store()) as store:
            return store.submissions()

    def waiting(self) -> list[Submission]:
        """Those that have not ended, first come first; the first may be running."""
        return [one for one in self.submissions() if one.ended is None]

    def run(self, told: Callable[[str], None] = log.info) -> int:
        """Serves the queue until nobody waits; returns how many studies it ran.

        Raises QueueBusy when another process does, and StoreError when a study could not go on through no fault of its
        own; that one waits on.
        """
        served = 0
        while True:
            with self._home.locks.queue():
                while waiting := self.waiting():
                    self._serve(waiting[0], told)
                    served += 1
            # Whoever came just before the lock was let go of took this process to be serving, and relies on it.
            if not self.waiting():
                return served

    def _serve(self, one: Submission, told: Callable[[str], None]) -> None:
        """Runs one study in a process of its own: what one workload imports must not reach the next."""
        one = replace(one, began=one.began or time.time())
        self._save(one)
        told(f"{one.study}: begins after waiting {(one.began or 0.0) - one.submitted:.1f} s")
        command = [sys.executable, "-m", "onefold.cli", "resume", one.study, "--home", str(self._home.path)]
        folder = one.folder if Path(one.folder).is_dir() else None
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, check=False)
        if done.returncode in NOT_ITS_FAULT:
            raise StoreError(
                f"the study {one.study!r} could not be run to its end; the queue goes on with: onefold queue run"
            )
        self._save(replace(one, ended=time.time()))
        told(f"{one.study}: {'done' if done.returncode == 0 else 'failed'}")

    def _save(self, one: Submission) -> None:
        with closing(self._home.store()) as store:
            store.save_submission(one)

    @property
    def is_served(self) -> bool:
        """Whether some process runs the queue now."""
        try:
            with self._home.locks.queue(0.0):
                return False
        except QueueBusy:
            return True

    def serve_in_background(self) -> None:
        """Starts a process that runs the queue and ends with it, unless there is one."""
        if self.is_served:
            return
        with (self._home.path / "queue.log").open("ab") as file:
            subprocess.Popen(
                [sys.executable, "-m", "onefold.cli", "queue", "run", "--home", str(self._home.path)],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
