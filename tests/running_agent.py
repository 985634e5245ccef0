"""A real agent, packed and started as on a board, and a network link that can be cut."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psutil

from onefold.device import Device
from onefold.device.agent_archive import pack_agent
from onefold.device.agent_connection import AgentConnection
from onefold.device.pairing import Pairing, pair

WAIT_S = 60.0


class RunningAgent:
    """The process of a packed agent. `kill` and `start` again: it keeps its port and its folder."""

    def __init__(
        self, folder: Path, *options: str, prefix: Sequence[str] = (), bind: str = "127.0.0.1", port: int = 0
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.archive, self.folder = folder / "onefold-agent.pyz", folder / "agent"
        pack_agent(self.archive)
        self._options, self._prefix, self._bind, self._port = options, tuple(prefix), bind, port
        self.output: list[str] = []
        self._pairing: Pairing | None = None
        self.start()

    def start(self, *more: str) -> None:
        """Start the process and wait until it listens."""
        command = [*self._prefix, sys.executable, self.archive.name, "serve", "--bind", self._bind]
        command += ["--port", str(self._port), "--folder", str(self.folder), *self._options, *more]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.process = subprocess.Popen(
            command, cwd=self.archive.parent, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.output = [self._stdout.readline() for _ in range(3)]
        assert "pairing code" in self.output[2] or "paired with" in self.output[2], self.output
        self._port = int(self.address.rpartition(":")[2])

    @property
    def _stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def address(self) -> str:
        return self.output[1].split()[1]

    @property
    def code(self) -> str:
        return self.output[2].split()[2]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def pairing(self) -> Pairing:
        """Pair at first use."""
        if self._pairing is None:
            self._pairing = pair("board", self.address, self.code)
        return self._pairing

    def connect(self, address: str | None = None, patience_s: float | None = WAIT_S) -> AgentConnection:
        found = self.pairing
        pairing = Pairing(address or found.address, found.fingerprint, found.token)
        return pairing.connect("board", patience_s=patience_s)

    def device(self, name: str = "board", cores: int = 1) -> Device:
        return Device(name, name, cores, 1.0, 1.0, 10**9, 1.0, 2.0, source="agent", agent=self.pairing.fingerprint)

    @property
    def results(self) -> list[Path]:
        """Return the results that the agent keeps."""
        return sorted((self.folder / "results").glob("*.json"))

    @property
    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)
        self._stdout.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._stdout.close()


@contextmanager
def running_agent(folder: Path, *options: str, **more: Any) -> Iterator[RunningAgent]:
    agent = RunningAgent(folder, *options, **more)
    try:
        yield agent
    finally:
        agent.close()


class Link:
    """Forwards connections to an address. `cut` ends all of them, and keeps others out until `mend`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_cut = False
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_cut:
                    client.close()
                    continue
                self.connections += 1
                agent = socket.create_connection(self._target)
                self._open += [client, agent]
            for source, target in ((client, agent), (agent, client)):
                threading.Thread(target=_forward, args=(source, target), daemon=True).start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            target.sendall(chunk)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
