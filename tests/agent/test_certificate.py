"""The certificate is one that OpenSSL accepts, and the arithmetic is that of P-256."""

from __future__ import annotations

import shutil
import ssl
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.agent.certificate import BASE, N, P, _add, _multiply, create_certificate, file_fingerprint

B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B


def test_openssl_accepts_key_and_certificate(tmp_path: Path) -> None:
    file = tmp_path / "certificate.pem"
    create_certificate(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file)  # raises if the key is not that of the certificate
    encoded = file.read_text().partition("-----BEGIN CERTIFICATE-----")
    certificate = ssl.PEM_cert_to_DER_cert(encoded[1] + encoded[2])
    import hashlib

    assert file_fingerprint(file) == hashlib.sha256(certificate).hexdigest()
    create_certificate(tmp_path / "other.pem")
    assert file_fingerprint(tmp_path / "other.pem") != file_fingerprint(file)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_openssl_verifies_the_signature(tmp_path: Path) -> None:
    create_certificate(tmp_path / "certificate.pem")
    command = ["openssl", "verify", "-check_ss_sig", "-CAfile", "certificate.pem", "certificate.pem"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert shown.stdout == "certificate.pem: OK\n", shown.stderr


@settings(max_examples=10)
@given(st.integers(2, N - 2), st.integers(2, N - 2))
def test_multiples_of_the_base_point_are_a_group(first: int, second: int) -> None:
    x, y = _multiply(BASE, first)
    assert (y * y - (x**3 - 3 * x + B)) % P == 0
    if (first + second) % N and first != N - second:
        assert _add(_multiply(BASE, first), _multiply(BASE, second)) == _multiply(BASE, (first + second) % N)


def test_known_multiple() -> None:
    """The public key of RFC 6979, A.2.5."""
    key = 0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721
    assert _multiply(BASE, key) == (
        0x60FED4BA255A9D31C961EB74C6356D68C049B8923B61FA6CE669622E60F29FB6,
        0x7903FE1008B8BC99A41AE9E95628BC64F2F1B20C2D7E9F5177A3C294D4462299,
    )
