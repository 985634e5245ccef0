"""The requests of all clients, measured one after the other, so that they do not disturb each other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from onefold.agent.files import FileStore
from onefold.agent.forms import form_from_json
from onefold.agent.measuring import KILLED, Measuring, MeasuringError
from onefold.agent.requests import (
    MAX_HANG_TIMEOUT_S,
    MAX_SECONDS,
    BadRequest,
    digest,
    effort_from_json,
    number,
    point_from_json,
)
from onefold.agent.results import ResultStore

MAX_WAITING = 64
IDLE_S = 60.0  # without requests, after which the process that measures is ended and its memory is free
KEPT = ("time", "memory")  # actions whose result is kept: what costs time and differs when it is repeated
_FILES = {**dict.fromkeys(("open", "time", "memory"), ("model", "weights", "inputs")), "probe": ("models",)}
_OPTIONAL = ("weights", "inputs")


class Busy(Exception):
    """Too many requests wait."""


@dataclass
class Job:
    """A request, and its result once `done` is set."""

    id: str
    message: Mapping[str, Any]
    hang_timeout_s: float
    files: Mapping[str, str]  # by field of the message: the hash of a file
    done: threading.Event = field(default_factory=threading.Event)
    result: Mapping[str, Any] = field(default_factory=dict)


class Jobs:
    """Answers requests in the order in which they came. `start` it once."""

    def __init__(self, files: FileStore, results: ResultStore, idle_s: float = IDLE_S) -> None:
        self._files, self._results, self._idle_s = files, results, idle_s
        self._measuring = Measuring()
        self._lock = threading.Lock()
        self._open: dict[str, Job] = {}  # waiting and running
        self._queue: queue.Queue[Job | None] = queue.Queue()
        # The process that measures dies with the thread that has started it: there is one for the life of the agent.
        self._thread = threading.Thread(target=self._run, name="onefold-measuring", daemon=True)

    def start(self) -> None:
        """Begin to measure."""
        self._thread.start()

    def stop(self) -> None:
        """End the process that measures, and lose the requests that wait."""
        self._queue.put(None)
        self._measuring.interrupt()
        self._thread.join(timeout=10)

    @property
    def waiting(self) -> int:
        """Return how many requests have no result yet."""
        return len(self._open)

    def submit(self, request: Mapping[str, Any]) -> Job:
        """Return the job of a request, which is done already if its id has a result.

        Raises:
            BadRequest: The request cannot be understood.
            Busy: Too many requests wait.
        """
        job = parse(request)
        with self._lock:
            if job.id in self._open:
                return self._open[job.id]
            known = self._results.find(job.id)
            if known is not None:
                job.result = known
                job.done.set()
                return job
            if len(self._open) >= MAX_WAITING:
                raise Busy
            self._open[job.id] = job
        self._queue.put(job)
        return job

    def _run(self) -> None:
        while True:
            try:
                job = self._queue.get(timeout=self._idle_s)
            except queue.Empty:
                self._measuring.close()
                continue
            if job is None:
                self._measuring.close()
                return
            job.result = self._answer(job)
            with self._lock:
                del self._open[job.id]
            job.done.set()

    def _answer(self, job: Job) -> Mapping[str, Any]:
        digests = list(job.files.values())
        with self._files.held(digests):
            missing = [each for each in digests if not self._files.has(each)]
            if missing:
                return {"missing": missing}
            paths = {name: str(self._files.path(each)) for name, each in job.files.items()}
            try:
                result = {"answer": self._measuring.ask({**job.message, **paths}, job.hang_timeout_s)}
            except MeasuringError as error:
                return {"error": str(error), "kind": error.kind}
            except Exception as error:  # noqa: BLE001 - such as a process that cannot be started; the agent goes on
                return {"error": f"the agent failed: {error!r}", "kind": KILLED}
        if job.message["do"] in KEPT:
            with suppress(OSError):  # the disk is full: the client has the result, unless it disconnects just now
                self._results.save(job.id, result)
        return result


def parse(request: Mapping[str, Any]) -> Job:
    """Return the job of a request, with everything that it says checked. Raises BadRequest."""
    action = request.get("do")
    message: dict[str, Any] = {"do": action}
    if action in ("open", "time", "memory"):
        point_from_json(request.get("point"))
        message["point"] = request["point"]
        message["inputs"] = message["weights"] = None
        message["form"] = _checked_form(request.get("form"))
    elif action == "probe":
        message["seconds"] = number(request, "seconds", 0.1, 120.0, 20.0)
    elif action != "versions":
        raise BadRequest("do must be one of open, time, memory, versions, probe")
    if action == "time":
        effort_from_json(request.get("effort"))
        message["effort"] = request["effort"]
    names = [name for name in _FILES.get(action, ()) if name not in _OPTIONAL or request.get(name) is not None]
    return Job(
        id=digest(request, "id"),
        message=message,
        hang_timeout_s=number(request, "hang_timeout_s", 0.1, MAX_HANG_TIMEOUT_S, MAX_SECONDS),
        files={name: digest(request, name) for name in names},
    )


def _checked_form(value: object) -> object:
    """Return the form of a model as it came. Raises BadRequest if it is none."""
    try:
        if value is not None:
            form_from_json(value)
    except ValueError as error:
        raise BadRequest(str(error)) from error
    return value
