"""Run calls in worker processes of this machine: started once, kept warm, pinned to cores."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

import cloudpickle

from onefold.engine.engine import Call, CallFailed, CallFinished, CallReported, Event, Setup
from onefold.processes import (
    SUSPENDED,
    CoreLease,
    Watch,
    Worker,
    available_cores,
    describe_exit,
    lease_cores,
    lease_free_cores,
)
from onefold.vocabulary.errors import EngineError
from onefold.vocabulary.records import Failure, FailureKind

HANG_TIMEOUT_S = 600.0
GRACE_S = 5.0  # how long a stopped call may take to reach its next report
# Keep freed memory for the next step instead of returning it to the system and faulting it in again.
ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TOP_PAD_": str(2**24),
}


@dataclass
class Slot:
    """A worker process and the run that it executes."""

    number: int
    worker: Worker
    is_ready: bool = False
    run: int | None = None
    lease: CoreLease | None = None  # on the cores of the run
    loan: CoreLease | None = None  # on further cores that are lent to it
    is_stopping: bool = False
    outbox: list[tuple[Any, ...]] = field(default_factory=list)  # messages to send once the worker is ready
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(self.worker)

    def end_run(self) -> None:
        """Be free for another run."""
        self.run = None
        self.end_lease()

    def end_lease(self) -> None:
        """Leave the cores of the run to others."""
        self.end_loan()
        if self.lease is not None:
            self.lease.close()
        self.lease = None

    def end_loan(self) -> None:
        """Leave the cores that were lent to the run to others."""
        if self.loan is not None:
            self.loan.close()
        self.loan = None


class ProcessEngine:
    """`slots` worker processes over `cores`. A worker that dies is replaced.

    A call is pinned to the cores that have the fewest calls, counting those of all studies on this machine.

    A call that is silent for `hang_timeout_s` (no report, no tick) has hung: its worker is killed. `memory_bytes` is
    what each worker may allocate on top of what it holds after set-up. A worker whose set-up fails is an EngineError.
    """

    def __init__(
        self,
        slots: int,
        setup: Setup | None = None,
        *,
        cores: Sequence[int] | None = None,
        hang_timeout_s: float = HANG_TIMEOUT_S,
        memory_bytes: int | None = None,
    ) -> None:
        self.slots = slots
        self._setup = setup or Setup()
        self._cores = list(cores if cores is not None else available_cores())
        self._hang_timeout_s = hang_timeout_s
        self._memory_bytes = memory_bytes
        self._slots: list[Slot] = []
        self._runs = 0
        self._early_deaths = 0

    @property
    def free_slots(self) -> int:
        return sum(slot.run is None for slot in self._slots)

    @property
    def processes(self) -> list[int]:
        """Return the process ids of the workers, by slot."""
        return [slot.worker.pid for slot in self._slots]

    def start(self, call: Call) -> int:
        slot = next(slot for slot in self._slots if slot.run is None)
        self._runs += 1
        slot.run, slot.is_stopping = self._runs, False
        slot.watch.record_message()
        first = slot.number * max(1, len(self._cores) // self.slots) % len(self._cores)  # of the slot's own share
        slot.lease = lease_cores(call.cores, self._cores[first:] + self._cores[:first])
        work = cloudpickle.dumps((call.function, call.args))
        self._send(slot, ("run", self._runs, work, slot.lease.cores))
        return self._runs

    def _send(self, slot: Slot, message: tuple[Any, ...]) -> None:
        if not slot.is_ready:
            slot.outbox.append(message)
            return
        with contextlib.suppress(OSError):  # the worker has just died; wait() notices
            slot.worker.send(message)

    def wait(self, timeout_s: float) -> list[Event]:
        deadline = time.monotonic() + timeout_s
        events: list[Event] = []
        while True:
            left = max(0.0, deadline - time.monotonic())
            slots = {slot.worker.channel.fileno(): slot for slot in self._slots}
            for descriptor in wait(list(slots), timeout=min(left, 1.0)):
                events += self._receive(slots[descriptor])  # type: ignore[index]  # wait() returns what it was given
            for slot in self._slots:
                slot.watch.poll()
                events += self._check_hang(slot)
            if events or time.monotonic() >= deadline:
                return events

    def _receive(self, slot: Slot) -> list[Event]:
        try:
            kind, *content = slot.worker.receive(self._hang_timeout_s)
        except TimeoutError:  # stuck in the middle of a message
            return self._handle_death(slot, SUSPENDED) if slot.worker.is_stopped else self._check_hang(slot)
        except (EOFError, OSError):
            return self._handle_death(slot, describe_exit(slot.worker.exit_code()))
        if not slot.is_stopping:  # a stopping call has its grace period, however often it ticks
            slot.watch.record_message()
        if kind == "ready":
            self._early_deaths = 0
            slot.is_ready = True
            for message in slot.outbox:
                self._send(slot, message)
        elif kind == "unfit":
            raise content[0]
        elif kind == "report":
            return [] if slot.is_stopping else [CallReported(*content)]
        elif kind in ("done", "failed", "stopped"):
            slot.end_run()
            if not slot.is_stopping:
                return [CallFinished(*content) if kind == "done" else CallFailed(*content)]
        return []

    def _check_hang(self, slot: Slot) -> list[Event]:
        if slot.watch.is_suspended:
            return self._handle_death(slot, SUSPENDED)
        if slot.run is None or not slot.is_ready:
            return []
        limit_s = GRACE_S if slot.is_stopping else self._hang_timeout_s
        silence_s = slot.watch.silence_s
        if silence_s <= limit_s:
            return []
        self._replace(slot)
        slot.end_lease()
        reason = f"timed out: no report for {silence_s:.0f} s"
        return [] if slot.is_stopping else [CallFailed(slot.run, Failure(FailureKind.HUNG, reason))]

    def _handle_death(self, slot: Slot, end: str) -> list[Event]:
        if not slot.is_ready:
            self._early_deaths += 1
            if self._early_deaths > 3 * self.slots:
                raise EngineError(f"worker processes cannot be started: the last one {end} during its set-up")
        fresh = self._replace(slot)
        if slot.run is None:
            return []
        if not slot.is_ready:  # the call never began: the new worker gets it
            fresh.run, fresh.outbox, fresh.lease, fresh.loan = slot.run, slot.outbox, slot.lease, slot.loan
            return []
        slot.end_lease()
        failure = Failure(FailureKind.KILLED, f"its worker process {end}")
        return [] if slot.is_stopping else [CallFailed(slot.run, failure, retry=True)]

    def _replace(self, slot: Slot) -> Slot:
        slot.worker.kill()
        fresh = self._launch(slot.number)
        self._slots[slot.number] = fresh
        return fresh

    def stop(self, run: int) -> None:
        for slot in self._slots:
            if slot.run == run and not slot.is_ready:  # the call never began
                slot.outbox = []
                slot.end_run()
            elif slot.run == run:
                slot.is_stopping = True
                slot.watch.record_message()
                self._send(slot, ("stop", run))

    def lend(self, run: int, cores: int) -> None:
        slot = next((slot for slot in self._slots if slot.run == run), None)
        lent = slot.loan.cores if slot is not None and slot.loan is not None else []
        if slot is None or len(lent) == cores:
            return
        slot.end_loan()
        if cores:
            slot.loan = lease_free_cores(cores, self._cores)
        cores_now = slot.loan.cores if slot.loan is not None else []
        if cores_now != lent:
            self._send(slot, ("lend", run, cores_now))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        began = time.monotonic()
        for slot in self._slots:
            slot.worker.pause()
        try:
            yield
        finally:
            for slot in self._slots:
                slot.worker.resume()
            paused_s = time.monotonic() - began
            for slot in self._slots:  # an imposed silence is no sign of a hang
                slot.watch.exclude_pause(paused_s)

    def _launch(self, number: int) -> Slot:
        try:
            worker = Worker("onefold.engine.worker", defaults=ENVIRONMENT)
        except OSError as error:
            raise EngineError(f"a worker process cannot be started: {error}") from error
        setup = cloudpickle.dumps((self._setup.function, self._setup.args))
        worker.send(("setup", setup, self._memory_bytes))
        return Slot(number, worker)

    def __enter__(self) -> ProcessEngine:
        self._slots = [self._launch(number) for number in range(self.slots)]
        return self

    def __exit__(self, *exc: object) -> None:
        for slot in self._slots:
            slot.worker.kill()
            slot.end_lease()
        self._slots = []
