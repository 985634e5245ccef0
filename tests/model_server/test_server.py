"""The server as clients see it: a process of `onefold serve`, asked over loopback."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onefold import ServingOptions, ServingSpace, deploy, measure
from onefold.device import Device
from onefold.model_server.api import ServerOptions, serve
from onefold.model_server.payloads import array_of_npy, npy_of
from onefold.vocabulary.errors import InputError

for package in ("starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(package)
WAIT_S = 60


@dataclass
class Running:
    """A server and how to reach it."""

    process: subprocess.Popen[str]
    port: int
    token: str | None
    headers: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {**self.headers, **named})
        reply = connection.getresponse()
        try:
            return reply.status, reply.read()
        finally:
            connection.close()

    def predict(self, body: bytes, kind: str = "application/json") -> tuple[int, Any]:
        status, content = self.ask("POST", "/v1/predict", body, Content_Type=kind)
        return status, json.loads(content)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> str:
        self.process.send_signal(number)
        return self.process.communicate(timeout=WAIT_S)[1]


def start(folder: Path, *words: str) -> Running:
    process = subprocess.Popen(
        [sys.executable, "-m", "onefold.cli", "serve", str(folder), "--port", "0", "--json", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate()[1])
    said = json.loads(line)
    return Running(process, int(said["url"].rpartition(":")[2]), said["token"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Path, this_host: Device) -> Path:
    """A deployment folder for two scenarios."""
    target = tmp_path_factory.mktemp("deploy")
    space = ServingSpace((1, 8), (1,), ("all",), ("sequential",))
    options = ServingOptions(space=space, scenarios=("server:50", "multi-stream:4@10"))
    measure(model, this_host, serving=options, save=target / "d", home=target / "home")
    return target / "d"


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Running]:
    server = start(folder, "--scenario", "server:50", "--max-request", "20kB")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def inputs(folder: Path) -> Any:
    with np.load(folder / "model.npz") as samples:
        return np.asarray(next(iter(samples.values())))[:3]


def body(inputs: Any) -> bytes:
    return json.dumps({"inputs": inputs.tolist()}).encode()


def test_predictions_are_those_of_the_model(running: Running, folder: Path, inputs: Any) -> None:
    expected = deploy.load(folder)(inputs)
    status, reply = running.predict(body(inputs))
    assert status == 200
    np.testing.assert_allclose(reply["outputs"], expected, atol=1e-5)
    kind = "application/x-npy"
    status, content = running.ask("POST", "/v1/predict", npy_of(inputs), Content_Type=kind, Accept=kind)
    assert status == 200
    np.testing.assert_allclose(array_of_npy(content), expected, atol=1e-5)


def test_many_clients_at_a_time_get_their_own_answers(running: Running, folder: Path, inputs: Any) -> None:
    expected, wrong = deploy.load(folder)(inputs), []

    def client(number: int) -> None:
        for turn in range(5):
            at = (number + turn) % len(inputs)
            _, reply = running.predict(body(inputs[at : at + 1]))
            if not np.allclose(reply["outputs"], expected[at : at + 1], atol=1e-4):
                wrong.append((number, turn))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("path", ["/v1/predict", "/metrics", "/health"])
@pytest.mark.parametrize("given", ["", "Bearer ", "Bearer wrong", "Basic abc", "Bearer \xe4"])
def test_nothing_is_answered_without_the_token(running: Running, path: str, given: str) -> None:
    method = "POST" if path == "/v1/predict" else "GET"
    status, content = running.ask(method, path, Authorization=given)
    assert status == 401
    assert "a token is needed" in json.loads(content)["error"]


def test_metrics_are_those_of_prometheus(running: Running, inputs: Any) -> None:
    running.predict(body(inputs))
    status, content = running.ask("GET", "/metrics")
    assert status == 200
    text = content.decode()
    assert 'onefold_requests_total{status="200"}' in text
    assert "onefold_response_seconds_bucket" in text
    assert "onefold_batch_samples_sum" in text
    assert "onefold_waiting_samples 0.0" in text
    assert 'onefold_promised_response_seconds{scenario="server:50",statistic="p99"}' in text


@pytest.mark.parametrize(
    ("content", "kind", "status", "complaint"),
    [
        (b"{}", "application/json", 400, 'an object with "inputs"'),
        (b'{"inputs": [[1]]}', "application/json", 400, "has the shape"),
        (b'{"inputs": []}', "application/json", 400, "has the shape"),
        (b"x", "application/x-npy", 400, "not an .npy file"),
        (b"x", "text/plain", 415, "must be application/json"),
        (b" " * 30_000, "application/json", 413, "at most 20,000 bytes"),
    ],
)
def test_bad_requests_are_errors_in_json(
    running: Running, content: bytes, kind: str, status: int, complaint: str
) -> None:
    got, reply = running.predict(content, kind)
    assert got == status
    assert complaint in reply["error"]


def test_a_body_of_unknown_length_is_limited(running: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=WAIT_S)
    headers = {**running.headers, "Content-Type": "application/json"}
    connection.request("POST", "/v1/predict", (b" " * 1000 for _ in range(30)), headers)
    assert connection.getresponse().status == 413
    connection.close()


def test_unknown_paths_and_methods_are_errors_in_json(running: Running) -> None:
    for method, path, status in (("GET", "/", 404), ("GET", "/v1/predict", 405)):
        got, content = running.ask(method, path)
        assert got == status
        assert "there is no such thing" in json.loads(content)["error"]


def test_without_a_token_only_loopback_is_served(folder: Path, inputs: Any) -> None:
    """A page on the web may make a browser ask this machine under a name of its own."""
    server = start(folder, "--no-auth", "--scenario", "multi-stream:4@10")
    try:
        assert server.token is None
        assert server.predict(body(inputs))[0] == 200
        status, content = server.ask("GET", "/health", Host="evil.example")
        assert status == 403
        assert "address this server as localhost" in json.loads(content)["error"]
    finally:
        errors = server.stop(signal.SIGINT)
    assert server.process.returncode == 0, errors
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (ServerOptions(host="0.0.0.0", has_auth=False), "listens on loopback only, got host '0.0.0.0'"),
        (ServerOptions(port=70_000), "port must be 0 to 65535"),
        (ServerOptions(max_bytes=0), "max_bytes must be 1 or more"),
        (ServerOptions(certificate="a.pem"), "a certificate needs its key"),
    ],
)
def test_invalid_options_are_refused(folder: Path, options: ServerOptions, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        serve(folder, options=options)


def test_a_token_in_a_file_stays(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    tokens = []
    for _ in range(2):
        server = start(folder, "--token-file", str(file))
        tokens.append(server.token)
        server.stop()
    assert tokens[0] == tokens[1] == file.read_text().strip()
    assert file.stat().st_mode & 0o077 == 0
    file.write_text("short")
    with pytest.raises(InputError, match="needs 16 ASCII characters"):
        serve(folder, options=ServerOptions(token_file=file))
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(InputError, match=r"cannot listen on 127\.0\.0\.1"):
        serve(folder, options=ServerOptions(port=taken.getsockname()[1]))
