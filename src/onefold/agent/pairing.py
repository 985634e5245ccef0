"""Pairing: a code that a person carries from the board to the client, and the tokens of paired clients.

The code has two parts: the beginning of the fingerprint of the agent's certificate, by which the client recognizes the
agent before it sends anything, and a secret, by which the agent recognizes the client. The client gets a token for it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from onefold.agent.private_files import write_privately

FINGERPRINT_CHARACTERS = 20  # 100 bits: nobody finds another key whose fingerprint begins like this
SECRET_CHARACTERS = 8  # 40 bits: guessed over the network, one per WRONG_CODE_S
GROUP_CHARACTERS = 4
WRONG_CODE_S = 0.5
MAX_CLIENTS = 100


def fingerprint_part(fingerprint: str) -> str:
    """Return the part of a pairing code that names a certificate, of its fingerprint in hexadecimal."""
    return base64.b32encode(bytes.fromhex(fingerprint)).decode()[:FINGERPRINT_CHARACTERS]


def write_code(fingerprint: str, secret: str) -> str:
    """Return a pairing code in groups, for people."""
    characters = fingerprint_part(fingerprint) + secret
    starts = range(0, len(characters), GROUP_CHARACTERS)
    return "-".join(characters[start : start + GROUP_CHARACTERS] for start in starts)


def read_code(code: str) -> tuple[str, str]:
    """Return the two parts of a pairing code. Raises ValueError if it cannot be one."""
    characters = code.upper().replace("-", "").replace(" ", "")
    alphabet = set("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
    if len(characters) != FINGERPRINT_CHARACTERS + SECRET_CHARACTERS or not set(characters) <= alphabet:
        groups = (FINGERPRINT_CHARACTERS + SECRET_CHARACTERS) // GROUP_CHARACTERS
        raise ValueError(f"a pairing code has {groups} groups of {GROUP_CHARACTERS} letters and digits")
    return characters[:FINGERPRINT_CHARACTERS], characters[FINGERPRINT_CHARACTERS:]


class Clients:
    """The clients that may use an agent: the hash of the token of each, in a file that only this user may read.

    Nobody can be paired until `start_pairing` makes the secret of a code, which pairs one client.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._secret: str | None = None
        self._lock, self._guess = threading.Lock(), threading.Lock()
        self._tokens: dict[str, Mapping[str, object]] = {}
        if file.is_file():
            self._tokens = json.loads(file.read_text(encoding="utf-8"))

    def __len__(self) -> int:
        return len(self._tokens)

    def start_pairing(self) -> str:
        """Return the secret of a new pairing code, which the next client needs."""
        self._secret = base64.b32encode(secrets.token_bytes(5)).decode()[:SECRET_CHARACTERS]
        return self._secret

    def pair(self, secret: str, name: str) -> str | None:
        """Return a token for a client that knows the secret, which is used up; None for another."""
        with self._guess:
            with self._lock:
                expected, self._secret = self._secret, None
                if expected is not None and hmac.compare_digest(secret.upper().encode(), expected.encode()):
                    return self._add(name)
                self._secret = expected
            time.sleep(WRONG_CODE_S)  # one guess at a time
        return None

    def knows(self, token: str) -> bool:
        """Return whether this is the token of a paired client."""
        return _hash(token) in self._tokens

    def remove(self, token: str) -> None:
        """Forget a client."""
        with self._lock:
            self._tokens.pop(_hash(token), None)
            self._write()

    def _add(self, name: str) -> str:
        token = secrets.token_urlsafe(32)
        while len(self._tokens) >= MAX_CLIENTS:
            self._tokens.pop(next(iter(self._tokens)))
        self._tokens[_hash(token)] = {"name": name, "paired_s": int(time.time())}
        self._write()
        return token

    def _write(self) -> None:
        write_privately(self._file, json.dumps(self._tokens, indent=1) + "\n")


def _hash(token: str) -> str:
    """Return what is stored of a token; looking it up in a table tells nothing about the token by its duration."""
    return hashlib.sha256(token.encode()).hexdigest()
