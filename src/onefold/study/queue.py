"""A queue of studies on one machine: first come, first served, one at a time.

queue = Queue(home)
queue.submit(study)         # returns the number of studies before it
queue.run()                 # runs all waiting studies; a study whose server was killed is resumed by the next server

The process that serves the queue holds HOME/queue.lock. Waiting and run times are in the store.
"""

from __future__ import annotations

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
from onefold.vocabulary.log import log_of
from onefold.vocabulary.quantities import duration

BLAMELESS_EXITS = (StoreError.exit_code, 130)  # a full disk, another process that runs the study, Ctrl-C

log = log_of()


class Queue:
    """The queue of a home; `run_study` runs one submission to its end and returns an exit code."""

    def __init__(self, home: Home, run_study: Callable[[Home, Submission], int] | None = None) -> None:
        self._home = home
        self._run_study = run_study or run_in_process

    def submit(self, study: Study) -> int:
        """Append a study to the queue; return the number of studies before it."""
        if not study.spec.workload:
            raise InputError(
                "a study whose workload is defined in a running program cannot be queued; move the workload into a "
                "file and submit FILE.py:Class"
            )
        before = len(self.waiting())
        with closing(self._home.store()) as store:
            store.save_submission(Submission(study.name, time.time(), str(Path.cwd())))
        return before

    def submissions(self) -> list[Submission]:
        """Return all submissions, oldest first."""
        with closing(self._home.store()) as store:
            return store.submissions()

    def waiting(self) -> list[Submission]:
        """Return the submissions that have not ended, oldest first; the first one may be running."""
        return [submission for submission in self.submissions() if submission.ended is None]

    def run(self, on_event: Callable[[str], None] = log.info) -> int:
        """Run the waiting studies one after the other; return how many were run.

        Raises QueueBusy if another process serves the queue, and StoreError if a study could not continue for reasons
        outside of it; that study stays in the queue.
        """
        served = 0
        while True:
            with self._home.locks.queue():
                while waiting := self.waiting():
                    self._serve(waiting[0], on_event)
                    served += 1
            # A study submitted just before the lock was released relies on this process.
            if not self.waiting():
                return served

    def _serve(self, submission: Submission, on_event: Callable[[str], None]) -> None:
        submission = replace(submission, began=submission.began or time.time())
        self._save(submission)
        waited_s = (submission.began or 0.0) - submission.submitted
        on_event(f"{submission.study}: started after waiting {duration(waited_s)}")
        exit_code = self._run_study(self._home, submission)
        if exit_code in BLAMELESS_EXITS:
            raise StoreError(
                f"the study {submission.study!r} did not run to its end and stays in the queue; serve the queue again"
            )
        self._save(replace(submission, ended=time.time()))
        on_event(f"{submission.study}: {'done' if exit_code == 0 else 'failed'}")

    def _save(self, submission: Submission) -> None:
        with closing(self._home.store()) as store:
            store.save_submission(submission)

    @property
    def is_served(self) -> bool:
        """Return whether a process serves the queue now."""
        try:
            with self._home.locks.queue(0.0):
                return False
        except QueueBusy:
            return True

    def serve_in_background(self) -> None:
        """Start a process that serves the queue until it is empty, unless one is running."""
        if self.is_served:
            return
        with (self._home.path / "queue.log").open("ab") as file:
            subprocess.Popen(
                [sys.executable, "-m", "onefold.study", "serve", str(self._home.path)],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip


def run_in_process(home: Home, submission: Submission) -> int:
    """Run a study in its own process, so that no import of one workload reaches the next."""
    command = [sys.executable, "-m", "onefold.study", "run", submission.study, str(home.path)]
    folder = submission.folder if Path(submission.folder).is_dir() else None
    return subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, check=False).returncode
