"""A session with a board, through its agent."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onefold.agent.measuring import HUNG, KILLED, TOO_LARGE
from onefold.agent.requests import MAX_HANG_TIMEOUT_S
from onefold.agent.timing_effort import TimingEffort
from onefold.device.agent_connection import NO_SPACE, AgentConnection, Refused
from onefold.device.agent_connection import TOO_LARGE as FILE_TOO_LARGE
from onefold.device.device import Device
from onefold.device.measuring_process import HANG_TIMEOUT_S
from onefold.device.measuring_session import MeasuringSession
from onefold.vocabulary.errors import DeviceError, DeviceUnavailable, MeasuringFailed, ModelError, TooLarge
from onefold.vocabulary.quantities import size
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import Served, ServingPoint


class RemoteSession(MeasuringSession):
    """Measure on the board itself. This machine need not be quiet. Energy that the board does not count is modelled.

    Each request has an id that follows from the run, which `begin` names, and the serving point. The agent keeps the
    results by id: when the connection is cut, or this process is killed and begins the same run again, nothing is
    measured twice.
    """

    needs_host = False

    def __init__(self, device: Device, connection: AgentConnection, hang_timeout_s: float = HANG_TIMEOUT_S) -> None:
        self._remote = _RemoteMeasurer(device, connection, hang_timeout_s)
        super().__init__(device, self._remote)

    def begin(self, run: str) -> None:
        self._remote.begin(run)

    def serve(self, model: Path, point: ServingPoint, effort: TimingEffort) -> Served:
        served = super().serve(model, point, effort)
        if served.energy.joules is not None:
            return served
        return replace(served, energy=Energy(served.latency_s * self.device.power_w(point.threads), "modelled"))

    @property
    def threads(self) -> int:
        return self.device.cores


class _RemoteMeasurer:
    """A `Measurer` on a board."""

    def __init__(self, device: Device, connection: AgentConnection, hang_timeout_s: float) -> None:
        self._device, self._connection = device, connection
        self._hang_timeout_s = min(hang_timeout_s, MAX_HANG_TIMEOUT_S)
        self._run = ""  # the name of the work, if it has one
        self._session = secrets.token_hex(16)
        self._is_open = False
        self._hashes: dict[tuple[Path, int, int], str] = {}
        self._answered: Counter[str] = Counter()  # a request that is made again, say in another round, is a new one

    def start(self) -> None:
        self._connection.resume()
        try:
            self._check_runtime()
        except BaseException:
            self._connection.close()
            raise
        self._is_open = True

    def _check_runtime(self) -> None:
        self._connection.status()
        answer = self._connection.ask({"id": secrets.token_hex(32), "do": "versions"}, {})
        found = runtime_of(answer)
        if self._device.runtime and found != self._device.runtime:
            raise DeviceUnavailable(
                f"{self._device.name} serves with {found}, and was added with {self._device.runtime}; add it again, so "
                "that measurements of both are kept apart"
            )

    def begin(self, run: str) -> None:
        self._run = run
        self._answered.clear()

    def close(self) -> None:
        self._connection.abandon()  # a thread may be waiting for an answer
        self._connection.close()
        self._is_open = False

    def ask(self, action: str, files: Sequence[Path], inputs: Path | None, **message: Any) -> Any:
        if not self._is_open:
            raise DeviceError("the session is not open; use it in a with block")
        hashes = [self._hash(path) for path in files]
        uploads = {self._hash(path): path for path in (*files, inputs) if path is not None}
        request = {
            "do": action,
            "model": hashes[0],
            "weights": next(iter(hashes[1:]), None),
            "inputs": None if inputs is None else self._hash(inputs),
            "hang_timeout_s": self._hang_timeout_s,
            **message,
        }
        # The weights of an architecture differ when it is exported again; only the name of the run stays.
        named = [self._run, action, message] if self._run else [self._session, request]
        content = json.dumps(named, sort_keys=True)
        request["id"] = hashlib.sha256(f"{content} {self._answered[content]}".encode()).hexdigest()
        try:
            answer = self._connection.ask(request, uploads)
        except Refused as refused:
            if refused.status in (FILE_TOO_LARGE, NO_SPACE):
                raise ModelError(f"the model cannot be served on {self._device.name}: {refused}") from refused
            raise
        self._answered[content] += 1
        if "error" in answer:
            raise self._error(str(answer.get("kind")), str(answer["error"]))
        return answer["answer"]

    def _hash(self, file: Path) -> str:
        try:
            status = file.stat()
        except OSError as error:
            raise ModelError(f"{file} cannot be read: {error.strerror}") from error
        key = file, status.st_mtime_ns, status.st_size
        if key not in self._hashes:
            with file.open("rb") as content:
                self._hashes[key] = hashlib.file_digest(content, "sha256").hexdigest()
        return self._hashes[key]

    def _error(self, kind: str, message: str) -> ModelError:
        name = self._device.name
        if kind == TOO_LARGE:
            return TooLarge(
                f"the model needs more than the {size(self._device.memory_bytes)} of memory of {name}; "
                "make the model smaller or choose another device"
            )
        if kind in (HUNG, KILLED):
            return MeasuringFailed(f"the model was stopped on {name}: {message}", kind)
        return ModelError(f"the model cannot be served on {name}: {message}")


def runtime_of(answer: Any) -> str:
    """Return the name and version of the runtime in an agent's answer about its versions."""
    if "error" in answer:
        raise DeviceUnavailable(f"the runtime of the board cannot be loaded: {answer['error']}")
    return f"onnxruntime {answer['answer']['onnxruntime']}"
