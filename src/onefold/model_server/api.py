"""`onefold serve`: a deployment folder behind HTTP, batched as the folder recommends."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onefold.agent.private_files import write_privately
from onefold.model_server.batcher import Arrays, Batcher, BatchingPolicy
from onefold.serving import deploy
from onefold.serving.scenario_settings import ScenarioSettings
from onefold.serving.scenarios import Server, parse_scenario
from onefold.serving.served_model import ServedModel
from onefold.vocabulary.argument_checks import suggest_fields, suggest_keywords
from onefold.vocabulary.errors import InputError, MissingExtra, ModelError

GRACE_S = 10  # for requests that are being answered when the server stops
MAX_CONNECTIONS = 1000
MIN_TOKEN_CHARACTERS = 16


@suggest_fields
@dataclass(frozen=True)
class ServerOptions:
    """Where a server listens and what it accepts.

    Attributes:
        host: The address; only those of loopback may be without authentication.
        port: The port; 0 takes a free one.
        has_auth: Whether clients must present the token.
        token_file: A file with the token, created if it does not exist; without it each start has a new one.
        max_bytes: The largest body of a request.
        max_waiting: The samples that may wait; more are refused with status 503.
        certificate: A TLS certificate (PEM), with `key`.
        key: Its private key.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    has_auth: bool = True
    token_file: str | Path | None = None
    max_bytes: int = 16_000_000
    max_waiting: int = 10_000
    certificate: str | Path | None = None
    key: str | Path | None = None

    def check(self) -> None:
        """Raise InputError for the first invalid option."""
        if not self.has_auth and not is_loopback(self.host):
            raise InputError(
                f"without authentication a server listens on loopback only, got host {self.host!r}; use 127.0.0.1"
            )
        if not 0 <= self.port < 65_536:
            raise InputError(f"port must be 0 to 65535, got {self.port}")
        for name in ("max_bytes", "max_waiting"):
            if not getattr(self, name) >= 1:
                raise InputError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if (self.certificate is None) != (self.key is None):
            raise InputError("a certificate needs its key, and a key its certificate; give both")


@dataclass(frozen=True)
class Listening:
    """A server that accepts requests."""

    url: str
    token: str | None
    choice: ScenarioSettings


def is_loopback(host: str) -> bool:
    """Return whether an address is of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@suggest_keywords
def serve(
    folder: str | Path,
    scenario: str | None = None,
    *,
    device: str | None = None,
    options: ServerOptions | None = None,
    trust: bool = False,
    home: str | Path | None = None,
    on_start: Callable[[Listening], None] = lambda listening: None,  # noqa: ARG005
) -> None:
    """Serve a deployment folder over HTTP until the process gets SIGINT or SIGTERM.

    Args:
        folder: A deployment folder.
        scenario: One of its scenarios, whose batch size and wait are used; by default the first.
        device: One of its devices; by default the first.
        options: Where to listen and what to accept.
        trust: Load the native code of a folder that this home did not write.
        home: The folder of studies; by default $ONEFOLD_HOME or the user's data folder.
        on_start: Called when the server accepts requests.

    Raises:
        InputError: An option is invalid, or the address is taken.
        ModelError: The folder cannot be served.
        MissingExtra: `onefold[server]` is not installed.
    """
    options = options or ServerOptions()
    options.check()
    try:
        import uvicorn

        from onefold.model_server.app import Interface
        from onefold.model_server.server_metrics import ServerMetrics
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), "server") from error
    model = deploy.load(folder, device, scenario, trust=trust, home=home)
    if not isinstance(model, ServedModel):
        model = deploy.load(folder, device, scenario, "onnxruntime", trust=trust, home=home)
    if not isinstance(model, ServedModel) or model.choice is None:
        raise ModelError(f"{folder} cannot be served by onnxruntime")
    choice, token = model.choice, _token(options)
    metrics = ServerMetrics(choice)
    batcher = Batcher(_runner(model), policy_of(choice, options.max_waiting), metrics.count_batch)
    metrics.watch_queue(lambda: batcher.waiting)
    app = Interface(batcher, metrics, model.inputs, model.output_names, token, options.max_bytes).app()
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=str(options.certificate) if options.certificate is not None else None,
        ssl_keyfile=str(options.key) if options.key is not None else None,
        http="h11",  # which limits the headers that it takes from strangers
        ws="none",
    )
    with closing(_listen(options)) as listener:
        scheme = "http" if options.certificate is None else "https"
        name = f"[{options.host}]" if ":" in options.host else options.host
        batcher.start()
        try:
            on_start(Listening(f"{scheme}://{name}:{listener.getsockname()[1]}", token, choice))
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            batcher.stop()


def policy_of(choice: ScenarioSettings, max_waiting: int) -> BatchingPolicy:
    """Return the batching that was recommended for a scenario; only the Server scenario joins requests."""
    joins = isinstance(parse_scenario(choice.scenario), Server)
    return BatchingPolicy(choice.point.batch_size, choice.wait_s, joins, max_waiting)


def _runner(model: ServedModel) -> Callable[[Arrays], Arrays]:
    def run(arrays: Arrays) -> Arrays:
        outputs: Any = model(*arrays)
        return outputs if isinstance(outputs, list) else [outputs]

    return run


def _token(options: ServerOptions) -> str | None:
    if not options.has_auth:
        return None
    if options.token_file is None:
        return secrets.token_urlsafe(32)
    file = Path(options.token_file)
    try:
        if not file.exists():
            write_privately(file, secrets.token_urlsafe(32) + "\n")
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the token cannot be read from {file}: {error}") from error
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii():
        raise InputError(f"the token in {file} needs {MIN_TOKEN_CHARACTERS} ASCII characters or more; delete the file")
    return token


def _listen(options: ServerOptions) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        return socket.create_server((options.host, options.port), family=family, backlog=512)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot listen on {options.host} port {options.port}: {reason}; choose another") from error
