"""The original files of MNIST: read, fetched and checked. The web is a folder of tiny files here."""

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
from onefold.datasets.idx import FILES, IdxHome
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
def home(arrays: dict[str, np.ndarray], tmp_path: Path) -> IdxHome:
    (tmp_path / "web").mkdir()
    for field, array in arrays.items():
        (tmp_path / "web" / f"{FILES[field]}.gz").write_bytes(gzip.compress(packed(array)))
    sums = {field: hashlib.sha256(packed(array)).hexdigest() for field, array in arrays.items()}
    return IdxHome((tmp_path / "web").as_uri(), sums)


@pytest.mark.parametrize("shape", [(0,), (7,), (3, 4), (2, 3, 4)])
def test_an_idx_file_comes_back_as_it_was_written(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    np.testing.assert_array_equal(idx.read(packed(array)), array)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "starts with"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "starts with 00 00 08, but this one with 00 00 0d 01"),
        (b"\0\0\x08\x03\0\0", "16 bytes of header, not 6"),
        (packed(np.zeros((2, 3), np.uint8))[:-1], r"shape \(2, 3\) holds 6 bytes, not 5"),
        (packed(np.zeros((2, 3), np.uint8)) + b"x", "6 bytes, not 7"),
    ],
)
def test_what_is_no_idx_file_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(DatasetError, match=reason):
        idx.read(content)


def test_the_four_files_are_fetched(home: IdxHome, arrays: dict[str, np.ndarray]) -> None:
    fetched = home.download()
    assert fetched.keys() == arrays.keys()
    for field in arrays:
        np.testing.assert_array_equal(fetched[field], arrays[field])


def test_a_missing_set_is_downloaded_and_converted(
    home: IdxHome, chosen: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MNIST", replace(images.MNIST, download=home.download))
    data = datasets.mnist()
    assert data.train[0].shape == (50, 1, 28, 28)
    assert data.validation[0].shape == (10, 1, 28, 28)
    assert data.test[1].tolist() == [n % 10 for n in range(20)]
    assert (cache / "mnist.npz").is_file()


def test_other_content_than_the_original_is_refused(
    home: IdxHome, chosen: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = packed(np.zeros((20,), np.uint8))
    (tmp_path / "web" / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(forged))
    monkeypatch.setattr(images, "MNIST", replace(images.MNIST, download=home.download))
    with pytest.raises(DatasetError, match=r"t10k-labels-idx1-ubyte.gz is not the original: its SHA-256 is"):
        datasets.mnist()
    assert not cache.exists()


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"<html>Too many requests</html>",
        gzip.compress(b"some bytes", mtime=0)[:-9],
    ],  # the same whenever it is made
)
def test_a_home_that_serves_something_else_is_an_error(home: IdxHome, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "web" / "train-images-idx3-ubyte.gz"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"train-images-idx3-ubyte.gz cannot be downloaded"):
        home.download()


@pytest.mark.parametrize(("file", "home"), [("mnist.npz", idx.MNIST), ("fashion_mnist.npz", idx.FASHION_MNIST)])
def test_the_checksums_are_those_of_the_real_sets(file: str, home: IdxHome, needs: Callable[[str], Path]) -> None:
    with np.load(needs(file), allow_pickle=False) as real:
        assert {field: hashlib.sha256(packed(real[field])).hexdigest() for field in FILES} == home.sha256
