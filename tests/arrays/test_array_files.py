"""Arrays are read within a memory limit, whatever their files claim."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib import format as npy

from onefold.arrays.files import array_headers, check_samples, read_arrays
from onefold.vocabulary.errors import DatasetError

INPUTS = np.arange(60, dtype=np.float32).reshape(10, 3, 2)
SAVES = [np.savez, np.savez_compressed]


def npy_bytes(shape: tuple[int, ...], values: bytes = b"", descr: str = "<f4") -> bytes:
    """Return an .npy with a header of this shape, whatever follows it."""
    content = io.BytesIO()
    npy.write_array_header_1_0(content, {"descr": descr, "fortran_order": False, "shape": shape})
    return content.getvalue() + values


def write_bomb(path: Path, values: int) -> Path:
    """Write a small compressed file with many zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("inputs.npy", "w") as member:
        member.write(npy_bytes((values,), descr="|u1"))
        for _ in range(values // 2**20):
            member.write(bytes(2**20))
    return path


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize(
    "array", [INPUTS, np.asfortranarray(INPUTS), INPUTS[0, 0, 0], INPUTS[:0], np.array(["a", "b"])]
)
def test_arrays_round_trip(tmp_path: Path, save: Callable[..., None], array: np.ndarray) -> None:
    save(tmp_path / "some.npz", one=array, two=INPUTS > 3)
    read_back = read_arrays(tmp_path / "some.npz")
    np.testing.assert_array_equal(read_back["one"], array)
    np.testing.assert_array_equal(read_back["two"], INPUTS > 3)
    assert list(read_arrays(tmp_path / "some.npz", ["two"])) == ["two"]
    np.save(tmp_path / "one.npy", array)
    np.testing.assert_array_equal(read_arrays(tmp_path / "one.npy")[""], array)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("order", ["C", "F"])
@given(rows=st.integers(0, 12))
def test_the_first_rows_are_those_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, save: Callable[..., None], order: str, rows: int
) -> None:
    path = tmp_path_factory.mktemp("rows") / "some.npz"
    save(path, inputs=np.asarray(INPUTS, order=order), number=np.float32(3))  # type: ignore[call-overload]
    read_back = read_arrays(path, rows=rows)
    np.testing.assert_array_equal(read_back["inputs"], INPUTS[:rows])
    assert read_back["number"] == 3


@pytest.mark.parametrize("save", SAVES)
def test_more_than_the_limit_is_refused_with_what_to_do(tmp_path: Path, save: Callable[..., None]) -> None:
    save(tmp_path / "some.npz", one=INPUTS, two=INPUTS)
    with pytest.raises(DatasetError, match=r"some.npz needs 480 B of memory, but 479 B are left within the limit"):
        read_arrays(tmp_path / "some.npz", memory_bytes=479)
    assert read_arrays(tmp_path / "some.npz", rows=9, memory_bytes=479).keys() == {"one", "two"}
    assert read_arrays(tmp_path / "some.npz", memory_bytes=480).keys() == {"one", "two"}


def test_a_compressed_bomb_takes_no_memory(tmp_path: Path) -> None:
    """In a process of its own, whose high-water mark is that of its own address space."""
    path = write_bomb(tmp_path / "bomb.npz", 2**28)
    assert path.stat().st_size < 2**19
    program = """
import sys
from onefold.arrays.files import read_arrays
from onefold.meter.memory import high_water_bytes
from onefold.vocabulary.errors import DatasetError
before_bytes = high_water_bytes()
try:
    read_arrays(sys.argv[1], memory_bytes=10**8)
except DatasetError as error:
    print(error)
assert read_arrays(sys.argv[1], rows=5)["inputs"].tolist() == [0] * 5
assert high_water_bytes() - before_bytes < 20e6
"""
    ran = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert "bomb.npz needs 256 MiB of memory, but 95.4 MiB are left within the limit" in ran.stdout


def test_the_default_limit_is_what_is_free(tmp_path: Path) -> None:
    with (tmp_path / "sparse.npy").open("wb") as file:
        file.write(npy_bytes((2**41,)))
        file.truncate(2**43 + 2**20)
    with pytest.raises(DatasetError, match=r"sparse.npy needs 8 TiB of memory, but .* are free; give a file with"):
        read_arrays(tmp_path / "sparse.npy")
    with pytest.raises(DatasetError, match=r"needs 8 TiB of memory"):
        check_samples(tmp_path / "sparse.npy")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (npy_bytes((10**12,), b"1234"), r"is truncated: \d+ bytes are missing"),
        (npy_bytes((-1, -4), b"1234" * 4), r"negative shape \(-1, -4\)"),
        (npy_bytes((2,), b"12345678", descr="|O"), r"must hold numbers"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 50, r"is not an .npy file \(a header of 4294967295 bytes\)"),
        (b"\x93NUMPY\x01\x00v\x00" + b"(" * 0x76, r"is not an .npy file"),
        (b"", r"is not an .np"),
        (b"<html>", r"is not an .np"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "alone.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "some.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inputs.npy", content)
    for name in ("alone.npy", "some.npz"):
        with pytest.raises(DatasetError, match=why):
            read_arrays(tmp_path / name)


def test_a_false_size_in_the_directory_does_not_help(tmp_path: Path) -> None:
    """A member that claims to be larger than deflate can make it is refused, and one that is shorter is corrupt."""
    true_size = len(npy_bytes((2**20,), bytes(4 * 2**20)))
    with zipfile.ZipFile(tmp_path / "some.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inputs.npy", npy_bytes((2**30,), bytes(4 * 2**20)))
    content = (tmp_path / "some.npz").read_bytes()
    for claimed, why in ((2**32 - 2, "claims more bytes than its compressed form can hold"), (true_size, "truncated")):
        changed = content.replace(true_size.to_bytes(4, "little"), claimed.to_bytes(4, "little"))
        (tmp_path / "false.npz").write_bytes(changed)
        with pytest.raises(DatasetError, match=why):
            read_arrays(tmp_path / "false.npz")


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", one=INPUTS)
    with pytest.raises(DatasetError, match=r"some.npz has no array 'two'; write it with one, two"):
        array_headers(tmp_path / "some.npz", ["one", "two"])


def test_files_that_never_end_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    for path in (tmp_path / "pipe.npz", Path("/dev/zero"), tmp_path):
        with pytest.raises(DatasetError, match="is not a regular file"):
            read_arrays(path)
    with pytest.raises(DatasetError, match=r"absent.npz cannot be read: .*No such file"):
        read_arrays(tmp_path / "absent.npz")


@given(st.data())
def test_changed_files_never_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("changed") / "some.npz"
    data.draw(st.sampled_from(SAVES))(path, one=INPUTS, two=INPUTS)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(DatasetError):
        read_arrays(path, memory_bytes=10**6)
