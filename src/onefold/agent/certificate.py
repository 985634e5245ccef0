"""A self-signed TLS certificate, made with the standard library alone.

Boards may lack the `openssl` program, and Python's standard library creates neither keys nor certificates. The key is a
random number of P-256, and its certificate is signed once, here. Everything else that touches the key is OpenSSL, which
refuses a certificate that does not fit it. Nobody relies on the signature: clients pin the fingerprint.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from pathlib import Path

from onefold.agent.private_files import write_privately

# The curve P-256 (FIPS 186-4, D.1.2.3): y² = x³ - 3x + b modulo P, with a base point of order N.
P = 2**256 - 2**224 + 2**192 + 2**96 - 1
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
BASE = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
Point = tuple[int, int]

VALID_S = 100 * 365 * 86400  # boards without a clock battery live in any year; the fingerprint is what counts
_EC_PUBLIC_KEY, _P256, _ECDSA_SHA256, _COMMON_NAME = (
    bytes.fromhex(encoded)
    for encoded in ("06072a8648ce3d0201", "06082a8648ce3d030107", "06082a8648ce3d040302", "0603550403")
)
_INTEGER, _BITS, _OCTETS, _UTF8, _TIME, _SEQUENCE, _SET = 0x02, 0x03, 0x04, 0x0C, 0x18, 0x30, 0x31


def create_certificate(file: Path, name: str = "onefold-agent") -> None:
    """Write a new key with its certificate to a PEM file that only this user may read."""
    key = 1 + secrets.randbelow(N - 1)
    certificate, private = _certificate(key, name), _private_key(key)
    text = _pem("EC PRIVATE KEY", private) + _pem("CERTIFICATE", certificate)
    write_privately(file, text)


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate in DER, in hexadecimal."""
    return hashlib.sha256(certificate).hexdigest()


def file_fingerprint(file: Path) -> str:
    """Return the fingerprint of the certificate in a PEM file."""
    encoded = file.read_text(encoding="ascii").split("-----BEGIN CERTIFICATE-----")[1]
    return fingerprint(base64.b64decode(encoded.split("-----END CERTIFICATE-----")[0]))


def _certificate(key: int, name: str) -> bytes:
    start_s = time.time() - 86400
    algorithm = _der(_SEQUENCE, _ECDSA_SHA256)
    subject = _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, _COMMON_NAME + _der(_UTF8, name.encode()))))
    content = _der(
        _SEQUENCE,
        _der(0xA0, _integer(2))  # version 3
        + _integer(1 + secrets.randbelow(2**120))
        + algorithm
        + subject
        + _der(_SEQUENCE, _time(start_s) + _time(start_s + VALID_S))
        + subject
        + _der(_SEQUENCE, _der(_SEQUENCE, _EC_PUBLIC_KEY + _P256) + _der(_BITS, b"\0" + _public(key))),
    )
    return _der(_SEQUENCE, content + algorithm + _der(_BITS, b"\0" + _signature(key, content)))


def _private_key(key: int) -> bytes:
    """Return the key in the form of RFC 5915."""
    public = _der(0xA1, _der(_BITS, b"\0" + _public(key)))
    return _der(_SEQUENCE, _integer(1) + _der(_OCTETS, key.to_bytes(32, "big")) + _der(0xA0, _P256) + public)


def _public(key: int) -> bytes:
    x, y = _multiply(BASE, key)
    return b"\4" + x.to_bytes(32, "big") + y.to_bytes(32, "big")


def _signature(key: int, content: bytes) -> bytes:
    """Return the ECDSA signature of the SHA-256 of the content."""
    digest = int.from_bytes(hashlib.sha256(content).digest(), "big")
    while True:
        nonce = 1 + secrets.randbelow(N - 1)
        r = _multiply(BASE, nonce)[0] % N
        s = pow(nonce, -1, N) * (digest + r * key) % N
        if r and s:
            return _der(_SEQUENCE, _integer(r) + _integer(s))


def _multiply(point: Point, factor: int) -> Point:
    """Return a multiple of a point; `factor` is from 1 to N - 1."""
    result: Point | None = None
    addend: Point = point
    while factor:
        if factor & 1:
            result = addend if result is None else _add(result, addend)
        factor >>= 1
        if factor:
            addend = _add(addend, addend)
    if result is None:
        raise ValueError("the factor must be at least 1")
    return result


def _add(first: Point, second: Point) -> Point:
    """Return the sum of two points, which is not the point at infinity."""
    (x1, y1), (x2, y2) = first, second
    if first == second:
        slope = (3 * x1 * x1 - 3) * pow(2 * y1, -1, P) % P
    else:
        slope = (y2 - y1) * pow(x2 - x1, -1, P) % P
    x = (slope * slope - x1 - x2) % P
    return x, (slope * (x1 - x) - y1) % P


def _der(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 128:
        return bytes([tag, length]) + content
    encoded = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([tag, 128 + len(encoded)]) + encoded + content


def _integer(value: int) -> bytes:
    return _der(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _time(seconds: float) -> bytes:
    return _der(_TIME, time.strftime("%Y%m%d%H%M%SZ", time.gmtime(seconds)).encode())


def _pem(label: str, content: bytes) -> str:
    encoded = base64.b64encode(content).decode()
    lines = [encoded[start : start + 64] for start in range(0, len(encoded), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])
