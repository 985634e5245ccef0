"""Calls run in worker processes of this machine: started once, kept warm, pinned to cores."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle

from onefold.engine.engine import Call, Event, Failed, Finished, Reported, Setup
from onefold.vocabulary.errors import EngineError
from onefold.vocabulary.records import Failure, FailureKind

GRACE_S = 5.0  # how long a stopped call may take to reach its next report
# Freed memory is kept for the next step instead of being handed back and faulted in again.
ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TOP_PAD_": str(2**24),
}


@dataclass
class Worker:
    """One process and what it is doing."""

    slot: int
    process: subprocess.Popen[bytes]
    channel: Connection
    ready: bool = False
    run: int | None = None
    cores: list[int] = field(default_factory=list)
    stopping: bool = False
    heard: float = field(default_factory=time.monotonic)  # when it last said something
    outbox: list[tuple[Any, ...]] = field(default_factory=list)  # waits until it is ready


class ProcessEngine:
    """`slots` worker processes over `cores`. A worker that dies is replaced.

    A call silent for `patience_s` (no report, no tick) has hung: its worker is killed. `memory_bytes` is what each
    worker may take on top of what it holds after set-up. A worker that cannot be set up is an EngineError.
    """

    def __init__(
        self,
        slots: int,
        setup: Setup | None = None,
        *,
        cores: Sequence[int] | None = None,
        patience_s: float = 600.0,
        memory_bytes: int | None = None,
    ) -> None:
        self.slots = slots
        self._setup = setup or Setup()
        self._cores = list(cores if cores is not None else _available_cores())
        self._patience_s = patience_s
        self._memory_bytes = memory_bytes
        self._workers: list[Worker] = []
        self._runs = 0
        self._early_deaths = 0

    @property
    def free(self) -> int:
        return sum(worker.run is None for worker in self._workers)

    @property
    def processes(self) -> list[int]:
        """The process numbers of the workers, by slot."""
        return [worker.process.pid for worker in self._workers]

    def start(self, call: Call) -> int:
        worker = next(worker for worker in self._workers if worker.run is None)
        self._runs += 1
        worker.run, worker.stopping, worker.heard = self._runs, False, time.monotonic()
        worker.cores = self._cores_for(worker, call.cores)
        work = cloudpickle.dumps((call.function, call.args))
        self._say(worker, ("run", self._runs, work, worker.cores))
        return self._runs

    def _cores_for(self, worker: Worker, wanted: int) -> list[int]:
        """The cores that others use least, its own place first among equals."""
        busy = [other for other in self._workers if other.run is not None and other is not worker]
        taken = Counter(core for other in busy for core in other.cores)
        first = worker.slot * max(1, len(self._cores) // self.slots) % len(self._cores)
        return sorted(self._cores[first:] + self._cores[:first], key=lambda core: taken[core])[:wanted]

    def _say(self, worker: Worker, message: tuple[Any, ...]) -> None:
        if not worker.ready:
            worker.outbox.append(message)
            return
        with contextlib.suppress(OSError):  # it has just died; wait() will find out
            worker.channel.send(message)

    def wait(self, timeout_s: float) -> list[Event]:
        deadline = time.monotonic() + timeout_s
        events: list[Event] = []
        while True:
            left = max(0.0, deadline - time.monotonic())
            for channel in wait([worker.channel for worker in self._workers], timeout=min(left, 1.0)):
                worker = next(worker for worker in self._workers if worker.channel is channel)
                events += self._heard(worker)
            for worker in self._workers:
                events += self._overdue(worker)
            if events or time.monotonic() >= deadline:
                return events

    def _heard(self, worker: Worker) -> list[Event]:
        try:
            kind, *content = worker.channel.recv()
        except (EOFError, OSError):
            return self._died(worker)
        if not worker.stopping:  # a call that is to stop has its grace, however lively it is
            worker.heard = time.monotonic()
        if kind == "ready":
            self._early_deaths = 0
            worker.ready = True
            for message in worker.outbox:
                self._say(worker, message)
        elif kind == "unfit":
            raise content[0]
        elif kind == "report":
            return [] if worker.stopping else [Reported(*content)]
        elif kind in ("done", "failed", "stopped"):
            silent, worker.run = worker.stopping, None
            if not silent:
                return [Finished(*content) if kind == "done" else Failed(*content)]
        return []

    def _overdue(self, worker: Worker) -> list[Event]:
        if worker.run is None or not worker.ready:
            return []
        patience_s = GRACE_S if worker.stopping else self._patience_s
        silence_s = time.monotonic() - worker.heard
        if silence_s <= patience_s:
            return []
        run, told = worker.run, not worker.stopping
        self._replace(worker)
        reason = f"hung: gave no sign of life for {silence_s:.0f} s"
        return [Failed(run, Failure(FailureKind.HUNG, reason))] if told else []

    def _died(self, worker: Worker) -> list[Event]:
        code = worker.process.wait()
        run, told, ready = worker.run, not worker.stopping, worker.ready
        if not ready:
            self._early_deaths += 1
            if self._early_deaths > 3 * self.slots:
                raise EngineError(f"worker processes keep dying while they start ({_ending(code)})")
        outbox = [] if ready else worker.outbox
        fresh = self._replace(worker)
        if run is None:
            return []
        if not ready:  # the call never began: hand it to the new worker
            fresh.run, fresh.outbox = run, outbox
            return []
        return [Failed(run, Failure(FailureKind.KILLED, f"its worker {_ending(code)}"), retry=True)] if told else []

    def _replace(self, worker: Worker) -> Worker:
        _end(worker)
        fresh = self._launch(worker.slot)
        self._workers[worker.slot] = fresh
        return fresh

    def stop(self, run: int) -> None:
        for worker in self._workers:
            if worker.run == run and not worker.ready:  # it never began
                worker.run, worker.outbox = None, []
            elif worker.run == run:
                worker.stopping, worker.heard = True, time.monotonic()
                self._say(worker, ("stop", run))

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        began = time.monotonic()
        _signal(self._workers, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(self._workers, signal.SIGCONT)
            held_s = time.monotonic() - began
            for worker in self._workers:  # silence that was imposed is no sign of a hang
                worker.heard += held_s

    def _launch(self, slot: int) -> Worker:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "onefold.engine.worker", str(theirs.fileno())]
        command += [str(self._memory_bytes or 0), *(entry or os.curdir for entry in sys.path)]
        try:
            process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env={**ENVIRONMENT, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a workload prints must not mix with what the coordinator says
            )
        except OSError as error:
            raise EngineError(f"a worker process cannot be started: {error}") from error
        finally:
            theirs.close()
        worker = Worker(slot, process, Connection(ours.detach()))
        worker.channel.send(("setup", cloudpickle.dumps((self._setup.function, self._setup.args))))
        return worker

    def __enter__(self) -> ProcessEngine:
        self._workers = [self._launch(slot) for slot in range(self.slots)]
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self._workers:
            _end(worker)
        self._workers = []


def _signal(workers: Sequence[Worker], number: int) -> None:
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            worker.process.send_signal(number)


def _end(worker: Worker) -> None:
    worker.channel.close()
    worker.process.kill()
    worker.process.wait()


def _ending(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed (signal 9: somebody killed it, or the machine ran out of memory)"
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _available_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
