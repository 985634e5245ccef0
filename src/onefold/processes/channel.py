"""Length-prefixed messages over a stream socket."""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_LENGTH = struct.Struct("!Q")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a message becomes bytes and back."""

    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any]


PICKLE = Encoding(lambda message: pickle.dumps(message, protocol=5), pickle.loads)
JSON = Encoding(lambda message: json.dumps(message).encode(), json.loads)  # for peers that must not run code here


class Channel:
    """Send and receive whole messages. One thread may send while another one receives.

    Raises EOFError or OSError when the peer is gone, and TimeoutError when `timeout_s` passes first; after a
    TimeoutError the stream may be in the middle of a message, so the channel can only be closed.
    """

    def __init__(self, connection: socket.socket, encoding: Encoding = PICKLE) -> None:
        self._socket = connection
        self._encoding = encoding

    def fileno(self) -> int:
        """Return the socket's descriptor, so that `multiprocessing.connection.wait` accepts a channel."""
        return self._socket.fileno()

    def send(self, message: Any, timeout_s: float | None = None) -> None:
        """Send one message. Nothing is sent if it cannot be encoded."""
        body = self._encoding.dumps(message)
        self._socket.settimeout(timeout_s)
        self._socket.sendall(_LENGTH.pack(len(body)))
        self._socket.sendall(body)

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return the next message, waiting at most `timeout_s` for all of it."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        return self._encoding.loads(self._read(length, deadline))

    def _read(self, count: int, deadline: float | None) -> bytes:
        received = bytearray()
        while len(received) < count:
            # A timeout of zero would mean non-blocking mode.
            self._socket.settimeout(None if deadline is None else max(deadline - time.monotonic(), 1e-6))
            part = self._socket.recv(min(count - len(received), _CHUNK_BYTES))
            if not part:
                raise EOFError("the other process closed its side of the channel")
            received += part
        return bytes(received)

    def close(self) -> None:
        """Close the socket. A thread of this process that is receiving gets an error."""
        with contextlib.suppress(OSError):  # the peer is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
