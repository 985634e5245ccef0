"""Pairings with agents: what this machine needs to reach a board again, in files that only this user may read."""

from __future__ import annotations

import json
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path

from onefold.agent.pairing import fingerprint_part, read_code
from onefold.agent.private_files import write_privately
from onefold.agent.protocol import PORT
from onefold.device.agent_connection import AgentConnection
from onefold.vocabulary.documents import read_json
from onefold.vocabulary.errors import DeviceError, InputError


@dataclass(frozen=True)
class Pairing:
    """How an agent is reached. The token is a secret, and the fingerprint of its certificate is not."""

    address: str  # HOST:PORT
    fingerprint: str
    token: str = field(repr=False)

    def connect(self, name: str, *, patience_s: float | None = None) -> AgentConnection:
        """Return a connection with the agent; messages call the device `name`."""
        host, port = parse_address(self.address)
        fingerprint = self.fingerprint
        return AgentConnection(name, host, port, lambda found: found == fingerprint, self.token, patience_s=patience_s)


def pair(name: str, address: str, code: str) -> Pairing:
    """Pair with the agent at HOST:PORT by the code that it prints.

    Raises:
        InputError: The address or the code is malformed.
        DeviceUnavailable: No agent answers there, it is not the one of the code, or the code is wrong or used up.
    """
    try:
        part, secret = read_code(code)
    except ValueError as error:
        raise InputError(f"{error}, as the agent prints it; got {code!r}") from None
    host, port = parse_address(address)
    with AgentConnection(name, host, port, lambda found: fingerprint_part(found) == part, "", patience_s=0) as agent:
        answer = agent.call("POST", "/v1/pair", {"secret": secret, "name": platform.node()[:100]})
        return Pairing(f"{host}:{port}", agent.fingerprint, str(answer["token"]))


def save_pairing(pairing: Pairing, name: str, folder: Path) -> None:
    """Write the pairing of a device to a folder, which is created if needed."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = {"address": pairing.address, "fingerprint": pairing.fingerprint, "token": pairing.token}
        write_privately(folder / f"{name}.json", json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise DeviceError(f"the pairing with {name} cannot be written to {folder}: {error.strerror}") from error


def find_pairing(name: str, folder: Path) -> Pairing | None:
    """Return the pairing of a device, if there is one. Raises DeviceError if it cannot be read."""
    file = folder / f"{name}.json"
    try:
        content = read_json(file)
        return Pairing(*(str(content[field]) for field in ("address", "fingerprint", "token")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DeviceError(f"the pairing {file} cannot be read ({error}); remove the file and pair again") from error


def remove_pairing(name: str, folder: Path) -> None:
    """Forget the pairing of a device, if there is one."""
    (folder / f"{name}.json").unlink(missing_ok=True)


def parse_address(address: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT or HOST. Raises InputError."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.%\w]+\]|[\w.-]+)(?::(\d{1,5}))?", address)
    if not match or not 0 < int(match.group(2) or PORT) < 65536:
        raise InputError(f"the address of an agent is HOST:PORT, got {address!r}")
    return match.group(1), int(match.group(2) or PORT)
