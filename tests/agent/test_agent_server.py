"""A real agent, started from its packed file, against friends and strangers on the network."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from onefold.agent import server as agent_server
from onefold.agent.certificate import create_certificate
from onefold.agent.files import FileStore
from onefold.agent.jobs import Jobs
from onefold.agent.pairing import Clients, read_code, write_code
from onefold.agent.results import ResultStore
from onefold.device.agent_connection import AgentConnection, Refused
from onefold.device.pairing import Pairing, find_pairing, pair, save_pairing
from onefold.vocabulary.errors import DeviceError, DeviceUnavailable, InputError
from running_agent import RunningAgent, running_agent

IDLE_BYTES = 60_000_000


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    with running_agent(tmp_path_factory.mktemp("board"), "--quota", "3MB") as running:
        yield running


@pytest.fixture
def connection(agent: RunningAgent) -> Iterator[AgentConnection]:
    with agent.connect() as opened:
        yield opened


def tls(agent: RunningAgent) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = agent.address.rpartition(":")
    return context.wrap_socket(socket.create_connection((host, int(port)), 60))


def uploaded(connection: AgentConnection, folder: Path, content: bytes) -> str:
    sha256 = hashlib.sha256(content).hexdigest()
    (folder / sha256).write_bytes(content)
    connection.upload(folder / sha256, sha256)
    return sha256


class TestIdle:
    def test_idle_agent_is_small(self, agent: RunningAgent, connection: AgentConnection) -> None:
        connection.status()
        assert not agent.children
        assert psutil.Process(agent.pid).memory_info().rss < IDLE_BYTES

    def test_secrets_are_private(self, agent: RunningAgent, connection: AgentConnection) -> None:
        connection.status()
        for name in ("certificate.pem", "clients.json"):
            assert stat.S_IMODE((agent.folder / name).stat().st_mode) == 0o600
        assert stat.S_IMODE(agent.folder.stat().st_mode) == 0o700
        assert agent.pairing.token not in (agent.folder / "clients.json").read_text()
        assert agent.pairing.token not in repr(agent.pairing)

    def test_status_describes_the_board(self, connection: AgentConnection) -> None:
        board = connection.status()["board"]
        assert board["cores"] == len(os.sched_getaffinity(0))
        assert board["memory_bytes"] > 0
        expected = {"governor", "frequencies_ghz", "temperature_c", "throttling", "energy", "load"}
        assert expected <= set(board)


class TestPairing:
    def test_code_carries_both_parts(self) -> None:
        code = write_code("ab" * 32, "ABCDEFGH")
        assert read_code(code.lower()) == read_code(code.replace("-", " "))
        assert read_code(code)[1] == "ABCDEFGH"
        for wrong in ("", code[:-1], code + "A", code.replace("ABCD", "AB0D")):
            with pytest.raises(ValueError, match="7 groups of 4"):
                read_code(wrong)

    def test_code_pairs_one_client_only(self, tmp_path: Path) -> None:
        with running_agent(tmp_path) as agent:
            wrong_secret = write_code("00" * 32, "AAAAAAAA")[-9:]
            with pytest.raises(DeviceError, match="wrong or used up"):
                pair("board", agent.address, agent.code[:-9] + wrong_secret)
            with pytest.raises(DeviceUnavailable, match="another certificate"):
                pair("board", agent.address, write_code("00" * 32, agent.code.replace("-", "")[-8:]))
            first = agent.pairing
            with pytest.raises(DeviceError, match="wrong or used up"):
                pair("board", agent.address, agent.code)
            with first.connect("board") as connection:
                assert connection.status()["waiting"] == 0

            agent.kill()
            agent.start()
            assert "to pair another one, start it with --pair" in agent.output[2]
            with first.connect("board") as connection:
                connection.status()  # paired clients stay paired
            agent.close()
            agent.start("--pair")
            second = pair("board", agent.address, agent.code)
            assert second.token != first.token

    def test_client_can_leave(self, tmp_path: Path) -> None:
        with running_agent(tmp_path) as agent:
            with agent.connect() as connection:
                connection.call("DELETE", "/v1/pair")
            with agent.connect() as connection, pytest.raises(DeviceUnavailable, match="no longer paired"):
                connection.status()

    def test_agent_with_another_certificate_is_sent_nothing(self, agent: RunningAgent) -> None:
        found = agent.pairing
        other = Pairing(found.address, "0" * 64, found.token)
        with other.connect("board", patience_s=0) as connection, pytest.raises(DeviceUnavailable, match="another cert"):
            connection.status()

    def test_malformed_code_and_address_are_input_errors(self, agent: RunningAgent) -> None:
        with pytest.raises(InputError, match="7 groups"):
            pair("board", agent.address, "1234")
        for address in ("", "host:port", "host:0", "host:99999", "a b"):
            with pytest.raises(InputError, match="HOST:PORT"):
                pair("board", address, write_code("00" * 32, "ABCDEFGH"))

    def test_pairings_are_kept_in_private_files(self, tmp_path: Path) -> None:
        folder = tmp_path / "pairings"
        pairing = Pairing("board:7411", "0" * 64, "secret")
        save_pairing(pairing, "board", folder)
        assert stat.S_IMODE((folder / "board.json").stat().st_mode) == 0o600
        assert find_pairing("board", folder) == pairing
        assert find_pairing("other", folder) is None
        (folder / "board.json").write_text("[]")
        with pytest.raises(DeviceError, match="cannot be read"):
            find_pairing("board", folder)

    def test_one_wrong_code_at_a_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        clients = Clients(tmp_path / "clients.json")
        assert clients.pair("", "x") is None  # nobody can be paired yet
        secret = clients.start_pairing()
        assert clients.pair("wrong", "x") is None
        assert clients.pair(secret.lower(), "x")
        assert len(Clients(tmp_path / "clients.json")) == 1


HEAD = b"POST /v1/requests HTTP/1.1\r\nHost: x\r\n"
RUBBISH = {
    "bytes": b"\x00\xff" * 500 + b"\n",
    "newlines": b"\n" * 50_000,
    "half a request": b"GET /v1/st",
    "long line": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    "many headers": HEAD + b"".join(b"X-%d: y\r\n" % number for number in range(5000)) + b"\r\n",
    "other method": b"PATCH /v1/status HTTP/1.1\r\n\r\n",
    "path": b"GET /v1/files/../../clients.json HTTP/1.1\r\n\r\n",
    "no token": b"GET /v1/status HTTP/1.1\r\n\r\n",
    "wrong token": b"GET /v1/status HTTP/1.1\r\nAuthorization: Bearer abc\r\n\r\n",
    "pickle": HEAD + b"Content-Length: 5\r\n\r\n\x80\x04N.\n",
}


class TestStrangers:
    @pytest.mark.parametrize("name", RUBBISH)
    def test_rubbish_is_refused(self, agent: RunningAgent, connection: AgentConnection, name: str) -> None:
        with tls(agent) as opened, suppress(OSError):
            opened.sendall(RUBBISH[name])
            if name == "half a request":
                opened.unwrap()
            answer = opened.recv(65536)
            assert b" 200 " not in answer
        assert connection.status()["waiting"] == 0

    def test_rubbish_without_tls_is_refused(self, agent: RunningAgent, connection: AgentConnection) -> None:
        host, _, port = agent.address.rpartition(":")
        with socket.create_connection((host, int(port)), 60) as opened, suppress(OSError):
            opened.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
            while opened.recv(65536):
                pass
        connection.status()

    def test_old_tls_is_refused(self, agent: RunningAgent) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        host, _, port = agent.address.rpartition(":")
        with socket.create_connection((host, int(port)), 60) as plain, pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(plain)

    def test_strangers_do_not_keep_clients_out(self, agent: RunningAgent, connection: AgentConnection) -> None:
        """A stranger may open as many connections as there are: then all wait until the first ones are closed."""
        host, _, port = agent.address.rpartition(":")
        connection.status()
        opened = [socket.create_connection((host, int(port)), 60) for _ in range(agent_server.MAX_CONNECTIONS + 8)]
        connection.status()  # a connection that is open already works on
        for each in opened:
            each.close()
        with agent.connect() as later:
            later.status()

    def test_silent_stranger_is_disconnected(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(agent_server, "STRANGER_S", 0.2)
        create_certificate(tmp_path / "certificate.pem")
        files, results = FileStore(tmp_path, 10**6), ResultStore(tmp_path)
        served = agent_server.Agent(Clients(tmp_path / "clients.json"), files, Jobs(files, results))
        with agent_server.AgentServer(("127.0.0.1", 0), tmp_path / "certificate.pem", served) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            try:
                with socket.create_connection(server.server_address[:2], 60) as silent:  # type: ignore[arg-type]
                    assert silent.recv(1) == b""
            finally:
                server.shutdown()
                thread.join()


def ask(connection: AgentConnection, **request: Any) -> Any:
    return connection.call("POST", "/v1/requests", {"id": secrets.token_hex(32), **request})


class TestRequests:
    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            ({"id": "x", "do": "versions"}, "id must be a SHA-256"),
            ({"do": "exec", "code": "1"}, "do must be one of"),
            ({"do": "__init__"}, "do must be one of"),
            ({"do": "open", "model": "../../etc/passwd", "point": {}}, "model must be a SHA-256"),
            ({"do": "open", "model": "0" * 64, "point": {"threads": 10**9}}, "threads must be an integer from 1"),
            ({"do": "open", "model": "0" * 64, "point": {"threads": True}}, "threads must be an integer"),
            ({"do": "open", "model": "0" * 64, "point": {"graph_level": "x"}}, "graph_level must be one of"),
            ({"do": "open", "model": "0" * 64, "point": []}, "point must be a JSON object"),
            ({"do": "open", "model": "0" * 64, "point": {"x" * 1000: 1}}, "point has no field"),
            ({"do": "time", "model": "0" * 64, "point": {}, "effort": {"max_seconds": 1e9}}, "max_seconds must be"),
            ({"do": "time", "model": "0" * 64, "point": {}}, "effort must be a JSON object"),
            ({"do": "versions", "hang_timeout_s": -1}, "hang_timeout_s must be"),
        ],
    )
    def test_malformed_requests_are_refused(
        self, connection: AgentConnection, request_: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(Refused, match=message):
            ask(connection, **request_)
        connection.status()

    def test_too_long_and_too_deep_requests_are_refused(self, connection: AgentConnection) -> None:
        with pytest.raises(Refused, match="at most 65536 bytes"):
            ask(connection, do="versions", padding="x" * 70_000)
        deep: Any = {}
        for _ in range(900):
            deep = {"a": deep}
        with pytest.raises(Refused):
            ask(connection, do=deep)

    def test_missing_model_is_named(self, connection: AgentConnection) -> None:
        assert ask(connection, do="open", model="0" * 64, point={}) == {"missing": ["0" * 64]}

    def test_samples_with_objects_are_not_unpickled(self, connection: AgentConnection, tmp_path: Path) -> None:
        class Evil:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(tmp_path / "evil"),)

        np.savez(tmp_path / "evil.npz", input0=np.array([Evil()], dtype=object))
        samples = uploaded(connection, tmp_path, (tmp_path / "evil.npz").read_bytes())
        model = uploaded(connection, tmp_path, b"not a model")
        answer = ask(connection, do="open", model=model, inputs=samples, point={})
        assert answer["kind"] == "refused"
        assert not (tmp_path / "evil").exists()

    def test_agent_and_its_worker_run_nothing_else(self, agent: RunningAgent, connection: AgentConnection) -> None:
        ask(connection, do="versions")
        (worker,) = agent.children
        assert worker.cmdline()[1:3] == ["-m", "onefold.agent.worker"]
        assert not worker.children()


class TestFiles:
    def test_file_is_kept_under_its_hash_once(
        self, agent: RunningAgent, connection: AgentConnection, tmp_path: Path
    ) -> None:
        sha256 = uploaded(connection, tmp_path, b"one")
        kept = agent.folder / "files" / sha256
        written = kept.stat().st_ino
        uploaded(connection, tmp_path, b"one")
        assert kept.stat().st_ino == written
        assert not list((agent.folder / "incoming").iterdir())

    def test_wrong_content_is_refused(self, agent: RunningAgent, connection: AgentConnection, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"content")
        with pytest.raises(Refused, match="does not have the hash"):
            connection.call("PUT", f"/v1/files/{'1' * 64}", tmp_path / "file")
        assert not (agent.folder / "files" / ("1" * 64)).exists()
        assert not list((agent.folder / "incoming").iterdir())

    def test_upload_that_is_cut_leaves_nothing(self, agent: RunningAgent, connection: AgentConnection) -> None:
        head = f"PUT /v1/files/{'2' * 64} HTTP/1.1\r\nAuthorization: Bearer {agent.pairing.token}\r\n"
        with tls(agent) as opened, suppress(OSError):
            opened.sendall(head.encode() + b"Content-Length: 1000\r\n\r\nhalf")
            opened.unwrap()
        connection.status()
        assert not (agent.folder / "files" / ("2" * 64)).exists()

    def test_too_large_file_is_refused_and_old_ones_make_room(
        self, agent: RunningAgent, connection: AgentConnection, tmp_path: Path
    ) -> None:
        with pytest.raises(Refused, match="exceeds the quota"):
            uploaded(connection, tmp_path, b"x" * 3_000_001)
        first = uploaded(connection, tmp_path, b"1" * 1_400_000)
        second = uploaded(connection, tmp_path, b"2" * 1_400_000)
        assert connection.call("POST", "/v1/files", {"sha256": first, "size": 0})["has"]  # used again
        third = uploaded(connection, tmp_path, b"3" * 1_400_000)
        kept = {path.name for path in (agent.folder / "files").iterdir()}
        assert {first, third} <= kept
        assert second not in kept
        assert connection.status()["files_bytes"] <= 3_000_000

    def test_files_that_do_not_fit_together_are_refused(self, connection: AgentConnection, tmp_path: Path) -> None:
        """Each displaces the other."""
        files = {}
        for content in (b"m" * 2_000_000, b"i" * 2_000_000):
            sha256 = hashlib.sha256(content).hexdigest()
            (tmp_path / sha256).write_bytes(content)
            files[sha256] = tmp_path / sha256
        model, inputs = files
        request = {"id": secrets.token_hex(32), "do": "open", "model": model, "inputs": inputs, "point": {}}
        with pytest.raises(Refused, match="raise its quota"):
            connection.ask(request, files)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
    def test_full_disk_is_refused_and_the_agent_goes_on(self, tmp_path: Path) -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(disk)], capture_output=True, check=False
        )
        if mounted.returncode:
            pytest.skip("nothing can be mounted here")
        try:
            with running_agent(disk) as agent, agent.connect() as connection:
                uploaded(connection, tmp_path, b"small")
                with pytest.raises(Refused, match="no space"):
                    uploaded(connection, tmp_path, b"x" * 10_000_000)
                (disk / "ballast").write_bytes(b"x" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize))
                with pytest.raises(Refused, match="no space"):
                    uploaded(connection, tmp_path, b"y" * 1000)
                assert ask(connection, do="versions")["answer"]["onnxruntime"]
                (disk / "ballast").unlink()
                uploaded(connection, tmp_path, b"z" * 1000)
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)


class TestProgram:
    def test_two_agents_do_not_share_a_folder(self, agent: RunningAgent) -> None:
        command = [sys.executable, agent.archive, "serve", "--port", "0", "--folder", agent.folder]
        second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert second.returncode == 1
        assert "another agent uses" in second.stderr

    def test_port_in_use_is_reported(self, agent: RunningAgent, tmp_path: Path) -> None:
        port = agent.address.rpartition(":")[2]
        command = [
            sys.executable,
            agent.archive,
            "serve",
            "--port",
            port,
            "--bind",
            "127.0.0.1",
            "--folder",
            tmp_path / "other",
        ]
        second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert second.returncode == 1
        assert f"port {port} of 127.0.0.1 cannot be opened" in second.stderr
        assert "Traceback" not in second.stderr

    def test_terminated_agent_ends_with_its_worker(self, tmp_path: Path) -> None:
        with running_agent(tmp_path) as agent:
            with agent.connect() as connection:
                ask(connection, do="versions")
            children = agent.children
            agent.close()
            assert agent.process.returncode == 0
            _, alive = psutil.wait_procs(children, timeout=60)
            assert not alive
