"""Parse, download and verify the idx files of MNIST. A folder of tiny files stands for the web."""

from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onefold import datasets
from onefold.datasets import idx, images
from onefold.datasets.idx import FILES, IdxMirror
from onefold.vocabulary.errors import DatasetError


def packed(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.RandomState(0)
    sizes = {"train": 60, "test": 20}
    return {
        field: rng.randint(0, 256, (sizes[field[2:]], 28, 28)).astype(np.uint8)
        if field.startswith("x")
        else np.arange(sizes[field[2:]], dtype=np.uint8) % 10
        for field in FILES
    }


@pytest.fixture
def mirror(arrays: dict[str, np.ndarray], tmp_path: Path) -> IdxMirror:
    (tmp_path / "web").mkdir()
    for field, array in arrays.items():
        (tmp_path / "web" / f"{FILES[field]}.gz").write_bytes(gzip.compress(packed(array)))
    sums = {field: hashlib.sha256(packed(array)).hexdigest() for field, array in arrays.items()}
    return IdxMirror((tmp_path / "web").as_uri(), sums)


@pytest.mark.parametrize("shape", [(0,), (7,), (3, 4), (2, 3, 4)])
def test_idx_round_trip(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    np.testing.assert_array_equal(idx.parse(packed(array)), array)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "starts with"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "starts with 00 00 08, but got 00 00 0d 01"),
        (b"\0\0\x08\x03\0\0", "16 bytes, but the file has 6"),
        (packed(np.zeros((2, 3), np.uint8))[:-1], r"shape \(2, 3\) have 6 bytes, but got 5"),
        (packed(np.zeros((2, 3), np.uint8)) + b"x", "6 bytes, but got 7"),
    ],
)
def test_invalid_idx_is_rejected(content: bytes, reason: str) -> None:
    with pytest.raises(DatasetError, match=reason):
        idx.parse(content)


def test_download_returns_the_four_arrays(mirror: IdxMirror, arrays: dict[str, np.ndarray]) -> None:
    fetched = mirror.download()
    assert fetched.keys() == arrays.keys()
    for field in arrays:
        np.testing.assert_array_equal(fetched[field], arrays[field])


def test_missing_file_is_downloaded_and_converted(
    mirror: IdxMirror, data_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MNIST", replace(images.MNIST, download=mirror.download))
    data = datasets.mnist()
    assert data.train[0].shape == (50, 1, 28, 28)
    assert data.validation[0].shape == (10, 1, 28, 28)
    assert data.test[1].tolist() == [n % 10 for n in range(20)]
    assert (cache / "mnist.npz").is_file()


def test_wrong_checksum_is_rejected(
    mirror: IdxMirror, data_folder: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = packed(np.zeros((20,), np.uint8))
    (tmp_path / "web" / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(forged))
    monkeypatch.setattr(images, "MNIST", replace(images.MNIST, download=mirror.download))
    with pytest.raises(DatasetError, match=r"checksum of .*t10k-labels-idx1-ubyte.gz differs"):
        datasets.mnist()
    assert not cache.exists()


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"<html>Too many requests</html>",
        gzip.compress(b"some bytes", mtime=0)[:-9],
    ],  # mtime=0: reproducible bytes
)
def test_invalid_download_is_an_error(mirror: IdxMirror, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "web" / "train-images-idx3-ubyte.gz"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"train-images-idx3-ubyte.gz cannot be downloaded"):
        mirror.download()


@pytest.mark.parametrize(("file", "mirror"), [("mnist.npz", idx.MNIST), ("fashion_mnist.npz", idx.FASHION_MNIST)])
def test_checksums_match_the_real_files(file: str, mirror: IdxMirror, real_file: Callable[[str], Path]) -> None:
    with np.load(real_file(file), allow_pickle=False) as real:
        assert {field: hashlib.sha256(packed(real[field])).hexdigest() for field in FILES} == mirror.sha256
