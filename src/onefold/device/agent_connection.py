"""A connection with an agent, which is restored when it is cut."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from onefold.agent.protocol import PROTOCOL
from onefold.vocabulary.errors import DeviceError, DeviceUnavailable
from onefold.vocabulary.log import log_of

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 60.0  # an agent says every 20 s that a request is still running
PATIENCE_S = 300.0  # how long a device that has disappeared is waited for
FIRST_PATIENCE_S = 15.0  # how long one that has not answered yet
RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)  # between attempts; the last one repeats
MAX_ANSWER_BYTES = 1_000_000
MAX_UPLOADS = 10  # for one request, whose files others may have displaced meanwhile
TOO_LARGE, NO_SPACE = 413, 507  # statuses of files that are refused
_log = log_of(__name__)


class Refused(DeviceError):
    """A request that an agent refuses; `status` is the one of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class AgentConnection:
    """Sends requests to the agent of a device, one at a time; a context manager.

    The certificate must satisfy `is_expected`, which gets its fingerprint, before anything is sent. A device that does
    not answer is waited for, for up to `patience_s` if it has answered before; then it is given up, and later calls try
    once until it answers again.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        is_expected: Callable[[str], bool],
        token: str,
        *,
        patience_s: float | None = None,
    ) -> None:
        self.name = name
        self.fingerprint = ""  # of the certificate, once connected
        self._host, self._port = host, port
        self._is_expected, self._token = is_expected, token
        self._patience_s = PATIENCE_S if patience_s is None else patience_s
        self._has_answered, self._is_given_up = False, False
        self._is_abandoned = threading.Event()
        self._connection: http.client.HTTPConnection | None = None

    @property
    def address(self) -> str:
        """Return HOST:PORT."""
        return f"{self._host}:{self._port}"

    def call(self, method: str, path: str, content: Mapping[str, Any] | Path | None = None) -> Any:
        """Send a JSON object or a file, and return the JSON of the answer.

        The request may arrive twice: it must be one that an agent may get again.

        Raises:
            DeviceUnavailable: The agent does not answer, or it is another one.
            Refused: It refuses the request.
        """
        patience_s = self._patience_s if self._has_answered else min(self._patience_s, FIRST_PATIENCE_S)
        deadline = time.monotonic() + (0.0 if self._is_given_up else patience_s)
        attempt = 0
        while True:
            try:
                answer = self._exchange(method, path, content)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.close()
                wait_s = RETRY_S[min(attempt, len(RETRY_S) - 1)]
                if self._is_abandoned.is_set() or time.monotonic() + wait_s > deadline:
                    self._is_given_up = True
                    reason = str(error) or type(error).__name__
                    raise DeviceUnavailable(
                        f"{self.name} does not answer at {self.address} ({reason}); start its agent, or check the "
                        "network"
                    ) from error
                if attempt == 1:
                    _log.warning(
                        "%s does not answer at %s (%s); waiting for up to %.0f s",
                        self.name, self.address, error, deadline - time.monotonic(),
                    )  # fmt: skip
                attempt += 1
                self._is_abandoned.wait(wait_s)
            else:
                self._has_answered, self._is_given_up = True, False
                if attempt > 1:
                    _log.warning("%s answers again", self.name)
                return answer

    def _exchange(self, method: str, path: str, content: Mapping[str, Any] | Path | None) -> Any:
        if self._is_abandoned.is_set():
            raise ConnectionError("the run that asked for it has ended")
        connection = self._connect()
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        if isinstance(content, Path):
            with content.open("rb") as body:
                headers["Content-Length"] = str(content.stat().st_size)
                connection.request(method, path, body, headers)
        else:
            encoded = None if content is None else json.dumps(content).encode()
            connection.request(method, path, encoded, headers)
        response = connection.getresponse()
        answer = json.loads(response.read(MAX_ANSWER_BYTES))
        if response.will_close:
            self.close()
        if response.status != 200:
            reason = str(answer.get("error", "") if isinstance(answer, dict) else "")[:500]
            if response.status == 401:
                raise DeviceUnavailable(
                    f"{self.name} is no longer paired with this machine ({reason}); add it again with a new "
                    "pairing code"
                )
            raise Refused(response.status, f"the agent of {self.name} refuses the request: {reason}")
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is not None:
            return self._connection
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the certificate is compared below, whoever signed it
        plain = socket.create_connection((self._host.strip("[]"), self._port), CONNECT_TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            secured = context.wrap_socket(plain)
        except BaseException:
            plain.close()
            raise
        self.fingerprint = hashlib.sha256(secured.getpeercert(binary_form=True) or b"").hexdigest()
        if not self._is_expected(self.fingerprint):
            secured.close()
            raise DeviceUnavailable(
                f"the agent at {self.address} is not that of {self.name}: it has another certificate than the one that "
                "was paired or that the pairing code names; check the address and the code"
            )
        secured.settimeout(ANSWER_TIMEOUT_S)
        connection = http.client.HTTPConnection(self._host, self._port)
        connection.sock = secured
        connection.auto_open = 0
        self._connection = connection
        return connection

    def status(self) -> Mapping[str, Any]:
        """Return what the agent reports about its board. Raises DeviceUnavailable if it speaks another protocol."""
        answer: Mapping[str, Any] = self.call("GET", "/v1/status")
        if answer.get("protocol") != PROTOCOL:
            raise DeviceUnavailable(
                f"the agent of {self.name} is of version {str(answer.get('version'))[:50]}, which this one does not "
                "understand; pack it again and copy it to the board"
            )
        return answer

    def upload(self, file: Path, sha256: str) -> None:
        """Send a file unless the agent has it. Raises Refused if it does not fit there."""
        offer = {"sha256": sha256, "size": file.stat().st_size}
        if not self.call("POST", "/v1/files", offer)["has"]:
            self.call("PUT", f"/v1/files/{sha256}", file)

    def ask(self, request: Mapping[str, Any], files: Mapping[str, Path]) -> Mapping[str, Any]:
        """Send a request until it is answered, with those files, by hash, that the agent does not have.

        Raises Refused also if the agent has no room for all of the files together.
        """
        uploads = 0
        while True:
            answer: Mapping[str, Any] = self._retry_busy(request)
            if "missing" not in answer and "running" not in answer:
                return answer
            for sha256 in answer.get("missing", ()):
                uploads += 1
                if sha256 not in files or uploads > MAX_UPLOADS:
                    raise Refused(
                        NO_SPACE, f"the agent of {self.name} does not keep the files of a request; raise its quota"
                    )
                self.upload(files[sha256], sha256)

    def _retry_busy(self, request: Mapping[str, Any]) -> Any:
        while True:
            try:
                return self.call("POST", "/v1/requests", request)
            except Refused as refused:
                if refused.status != 503:
                    raise
                self._is_abandoned.wait(RETRY_S[-1])

    def abandon(self) -> None:
        """End the call that another thread is making, and all later ones until `resume`."""
        self._is_abandoned.set()
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)  # wakes a thread that reads from it

    def resume(self) -> None:
        """Allow calls again."""
        self._is_abandoned.clear()

    def close(self) -> None:
        """Disconnect. Harmless when repeated."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
        self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
