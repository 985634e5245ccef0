"""The command line of an agent: `python3 onefold-agent.pyz serve`."""

from __future__ import annotations

import argparse
import fcntl
import re
import signal
import socket
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from onefold.agent.certificate import create_certificate, file_fingerprint
from onefold.agent.files import FileStore
from onefold.agent.jobs import Jobs
from onefold.agent.pairing import Clients, write_code
from onefold.agent.protocol import PORT, VERSION
from onefold.agent.results import ResultStore
from onefold.agent.server import Agent, AgentServer

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def main(arguments: list[str] | None = None) -> None:
    """Run a command."""
    options = _parser().parse_args(arguments)
    missing = [name for name in ("numpy", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise SystemExit(f"onefold agent: install {' and '.join(missing)} first: pip install {' '.join(missing)}")
    serve(options.bind, options.port, options.folder, options.quota, is_pairing=options.pair)


def serve(bind: str, port: int, folder: Path, quota_bytes: int, *, is_pairing: bool) -> None:
    """Serve measurements of this board until the process is interrupted."""
    lock = _locked(folder)
    certificate = folder / "certificate.pem"
    if not certificate.is_file():
        create_certificate(certificate)
    clients = Clients(folder / "clients.json")
    files = FileStore(folder, quota_bytes)
    jobs = Jobs(files, ResultStore(folder))
    try:
        server = AgentServer((bind, port), certificate, Agent(clients, files, jobs))
    except OSError as error:
        raise SystemExit(f"onefold agent: port {port} of {bind} cannot be opened: {error.strerror}") from None
    address = f"{_address(bind)}:{server.server_address[1]}"
    lines = [f"onefold agent {VERSION}, files in {folder}", f"address       {address}"]
    if is_pairing or not len(clients):
        code = write_code(file_fingerprint(certificate), clients.start_pairing())
        lines += [f"pairing code  {code}", f"pair it with: onefold devices add NAME --agent {address} --code {code}"]
    else:
        lines += [f"paired with {len(clients)} clients; to pair another one, start it with --pair"]
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()
    _serve_until_interrupted(server, jobs)
    lock.close()


def _serve_until_interrupted(server: AgentServer, jobs: Jobs) -> None:
    def stop(*_: Any) -> None:
        threading.Thread(target=server.shutdown, daemon=True).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    jobs.start()
    try:
        server.serve_forever()
    finally:
        server.server_close()
        jobs.stop()


def _locked(folder: Path) -> IO[str]:
    """Create the folder and hold it: two agents in one folder would remove each other's files."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"onefold agent: another agent uses {folder}; give another --folder") from None
    except OSError as error:
        raise SystemExit(f"onefold agent: {folder} cannot be written: {error.strerror}") from None
    return lock


def _address(bind: str) -> str:
    """Return the address under which this board is probably reached."""
    if bind not in ("0.0.0.0", "::"):
        return f"[{bind}]" if ":" in bind else bind
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks for the route
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(KB|MB|GB|)", text.strip().upper())
    if not match:
        raise argparse.ArgumentTypeError(f"expected a size such as 500MB, got {text!r}")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="onefold-agent", description="Serve measurements of this board to Onefold.")
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("serve", help="serve until interrupted")
    command.add_argument("--port", type=int, default=PORT, help=f"TCP port; 0 for any (default: {PORT})")
    command.add_argument("--bind", default="0.0.0.0", help="address to listen on (default: all)")
    command.add_argument("--folder", type=Path, default=Path("~/.onefold-agent").expanduser(), help="for its files")
    command.add_argument("--quota", type=_bytes, default=10**9, help="of uploaded models, such as 500MB (default: 1GB)")
    command.add_argument("--pair", action="store_true", help="print a pairing code although clients are paired")
    return parser
