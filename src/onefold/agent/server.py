"""The server of an agent: HTTP over TLS 1.3, with a token in each request except the one that pairs.

    POST   /v1/pair           {"secret": …, "name": …} -> {"token": …}
    DELETE /v1/pair           forget the token of this request
    GET    /v1/status         the board, the files, and how many requests wait
    POST   /v1/files          {"sha256": …, "size": …} -> {"has": …}: whether it is there; if not, there is room for it
    PUT    /v1/files/SHA256   the content of a model or of its inputs
    POST   /v1/requests       {"id": …, "do": …, …} -> {"answer": …} or {"error": …, "kind": …} or {"missing": […]},
                              or {"running": true} after POLL_S: then the client sends the same request again

Nothing that a client sends is executed or unpickled, and it cannot name a file: models and inputs are hashes.
"""

from __future__ import annotations

import json
import os
import re
import socket
import socketserver
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import IO, Any

from onefold.agent.board import describe_board
from onefold.agent.files import FileRefused, FileStore
from onefold.agent.jobs import Busy, Jobs
from onefold.agent.pairing import Clients
from onefold.agent.protocol import PROTOCOL, VERSION
from onefold.agent.requests import BadRequest, digest, number, table_of

MAX_CONNECTIONS = 32
MAX_HEAD_BYTES = 16_384  # of the request line and all headers
MAX_JSON_BYTES = 65_536
STRANGER_S = 15.0  # a connection that has not shown a token by then is closed
SILENCE_S = 30.0  # between two reads of a request
IDLE_S = 300.0  # between two requests
POLL_S = 20.0  # after which a client hears that its request is still running
_PATH = re.compile(r"/v1/(pair|status|requests|files|files/[0-9a-f]{64})")


@dataclass
class Agent:
    """What the server serves."""

    clients: Clients
    files: FileStore
    jobs: Jobs


class AgentServer(socketserver.ThreadingTCPServer):
    """Accepts connections, a thread for each, and closes those that do not identify themselves in time."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], certificate: Path, agent: Agent) -> None:
        self.agent = agent
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.load_cert_chain(certificate)
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._strangers: dict[socket.socket, float] = {}  # until when
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, AgentHandler)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - the signature of the library
        return self._slots.acquire(blocking=False)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection; called in its thread."""
        try:
            request.settimeout(STRANGER_S)
            with self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as connection:
                self._strangers[connection] = time.monotonic() + STRANGER_S
                try:
                    connection.do_handshake()
                    AgentHandler(connection, client_address, self)
                finally:
                    self._strangers.pop(connection, None)
        except (OSError, ValueError):
            pass  # rubbish, or the client is gone
        finally:
            self._slots.release()

    def accept_stranger(self, connection: socket.socket) -> None:
        """Let a connection live: its client is paired."""
        self._strangers.pop(connection, None)

    def service_actions(self) -> None:
        """Close overdue connections; called twice a second."""
        now = time.monotonic()
        for connection, until in list(self._strangers.items()):
            if now > until:
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Report an error of this program, which ends the connection only."""
        sys.stderr.write(f"onefold agent: {sys.exc_info()[1]!r}\n")


class _BoundedHead:
    """A stream whose lines, the head of a request, may take MAX_HEAD_BYTES together."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.left = stream, MAX_HEAD_BYTES

    def readline(self, size: int) -> bytes:
        line = self._stream.readline(min(size, self.left + 1))
        self.left -= len(line)
        if self.left < 0:
            raise ValueError("the head of the request is too long")
        return line

    def read(self, size: int) -> bytes:
        return self._stream.read(size)

    def close(self) -> None:
        self._stream.close()


class AgentHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are written one after the other
    wbufsize = -1
    server: AgentServer
    server_version = "onefold-agent"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _BoundedHead(self.rfile)

    def handle_one_request(self) -> None:
        self.rfile.left = MAX_HEAD_BYTES
        super().handle_one_request()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a board's disk is small, and strangers decide what would be in it."""

    def do_GET(self) -> None:
        self._answer({"status": self._status})

    def do_PUT(self) -> None:
        self._answer({"file": self._receive})

    def do_POST(self) -> None:
        self._answer({"pair": self._pair, "files": self._offer, "requests": self._request})

    def do_DELETE(self) -> None:
        self._answer({"pair": self._unpair})

    def _answer(self, known: Mapping[str, Any]) -> None:
        """Check who asks and what, and reply; whatever goes wrong is a status with a sentence."""
        self.connection.settimeout(SILENCE_S)
        match = _PATH.fullmatch(self.path)
        name = re.sub("^files/.*", "file", match.group(1)) if match else ""
        is_pairing = name == "pair" and self.command == "POST"
        if not is_pairing and not self.server.agent.clients.knows(self._token()):
            self._refuse(401, "this client is not paired with the agent")
            return
        self.server.accept_stranger(self.connection)
        if name not in known:
            self._refuse(404, "there is no such thing")
            return
        try:
            known[name]()
        except BadRequest as error:
            self._refuse(400, str(error))
        except FileRefused as error:
            self._refuse(413 if error.reason == "too large" else 507 if error.reason == "no space" else 422, str(error))
        except Busy:
            self._refuse(503, "too many requests wait")
        except EOFError as error:
            self._refuse(400, str(error))
        self.connection.settimeout(IDLE_S)

    def _token(self) -> str:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        return token if scheme == "Bearer" else ""

    def _status(self) -> None:
        agent = self.server.agent
        self._reply(
            {
                "protocol": PROTOCOL,
                "version": VERSION,
                "board": describe_board(),
                "files_bytes": agent.files.used_bytes,
                "waiting": agent.jobs.waiting,
                "pid": os.getpid(),
            }
        )

    def _pair(self) -> None:
        request = self._json()
        secret, name = request.get("secret"), request.get("name")
        if not isinstance(secret, str) or not isinstance(name, str) or len(secret) > 100 or len(name) > 100:
            raise BadRequest("secret and name must be short texts")
        token = self.server.agent.clients.pair(secret, name)
        if token is None:
            self._refuse(403, "the pairing code is wrong or used up")
        else:
            self._reply({"token": token})

    def _unpair(self) -> None:
        self.server.agent.clients.remove(self._token())
        self._reply({})

    def _offer(self) -> None:
        request = self._json()
        sha256, size = digest(request, "sha256"), int(number(request, "size", 0, 1e15, 0))
        has = self.server.agent.files.has(sha256)
        if not has:
            self.server.agent.files.make_room(size)
        self._reply({"has": has})

    def _receive(self) -> None:
        self.server.agent.files.receive(self.path.rpartition("/")[2], self._length(), self.rfile.read)
        self._reply({})

    def _request(self) -> None:
        request = self._json()
        digest(request, "id")
        job = self.server.agent.jobs.submit(request)
        self._reply(job.result if job.done.wait(POLL_S) else {"running": True})

    def _json(self) -> Mapping[str, Any]:
        length = self._length()
        if length > MAX_JSON_BYTES:
            raise BadRequest(f"a request has at most {MAX_JSON_BYTES} bytes")
        content = self.rfile.read(length)
        try:
            return table_of(json.loads(content), "the request")
        except (ValueError, RecursionError):
            raise BadRequest("the request is not a JSON object") from None

    def _length(self) -> int:
        text = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not re.fullmatch(r"[0-9]{1,15}", text):
            self.close_connection = True
            raise BadRequest("the request needs a Content-Length")
        return int(text)

    def _reply(self, content: Mapping[str, Any], status: int = 200) -> None:
        encoded = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(encoded)
        self.wfile.flush()

    def _refuse(self, status: int, reason: str) -> None:
        self.close_connection = True  # the rest of the request was perhaps not read
        self._reply({"error": reason}, status)
