"""The headers of .npy and .npz files: what the arrays would take in memory, known before any of them is read.

Sizes in a file are claims of whoever wrote it. A header is read up to HEADER_BYTES, and an array that its file cannot
hold is refused, also a compressed one.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from onefold.vocabulary.documents import open_regular
from onefold.vocabulary.errors import DatasetError

HEADER_BYTES = 10_000  # numpy reads no longer header either
READ_ERRORS = (
    OSError, EOFError, ValueError, TypeError, KeyError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error
)  # fmt: skip
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those of numpy
MAX_RATIO = 1032  # of deflate, between the content and its compressed form
_READERS = {(1, 0): ("<H", npy.read_array_header_1_0), (2, 0): ("<I", npy.read_array_header_2_0)}


@dataclass(frozen=True)
class ArrayHeader:
    """An array in a file. `label` names it in messages."""

    label: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    header_bytes: int
    member: zipfile.ZipInfo | None = None  # of an .npz file

    @property
    def nbytes(self) -> int:
        """Return the bytes that the array takes in memory."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def is_compressed(self) -> bool:
        """Return whether rows can only be read in order."""
        return self.member is not None and self.member.compress_type != zipfile.ZIP_STORED


def open_descriptor(path: Path, label: str = "") -> int:
    """Open a file for reading; raise DatasetError for a folder, a device or a pipe, which might never end."""
    try:
        return open_regular(path)
    except OSError as error:
        raise DatasetError(f"{label or path} cannot be read: {error}") from error
    except ValueError:
        raise DatasetError(f"{label or path} cannot be read: {path} is not a regular file") from None


@contextmanager
def open_regular_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, as `open_descriptor` does, and close it after the block."""
    with os.fdopen(open_descriptor(path), "rb") as file:
        yield file


def read_headers(
    file: IO[bytes], path: Path, is_wanted: Callable[[str], bool] = lambda _: True
) -> dict[str, ArrayHeader]:
    """Return the headers of the wanted arrays of an .npz file by name, or of an .npy file, whose name is empty.

    Raises:
        DatasetError: It is neither, or claims more than it can hold.
    """
    try:
        file.seek(0)
        if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
            file.seek(0)
            return {"": read_header(file, str(path), os.fstat(file.fileno()).st_size)}
        with zipfile.ZipFile(file) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            wanted = {name: member for name, member in members.items() if is_wanted(name)}
            return {name: _member_header(archive, member, path) for name, member in wanted.items()}
    except READ_ERRORS as error:
        raise DatasetError(f"{path} is not an .npz or .npy file ({error}); write it with numpy.savez") from error


def _member_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> ArrayHeader:
    label = f"{member.filename} in {path}"
    if member.compress_type not in COMPRESSIONS:
        raise DatasetError(f"{label} is compressed with an unknown method; write {path} with numpy.savez")
    if member.file_size > MAX_RATIO * (member.compress_size + 1):
        raise DatasetError(f"{label} claims more bytes than its compressed form can hold; write {path} again")
    with archive.open(member) as content:
        return read_header(content, label, member.file_size, member)


def read_header(
    file: IO[bytes], label: str, file_bytes: int | None = None, member: zipfile.ZipInfo | None = None
) -> ArrayHeader:
    """Read the header of the .npy that starts here, and leave the file at its first value.

    `file_bytes` is the length of the .npy, header included, if it is known.

    Raises:
        DatasetError: This is no .npy of plain values, or it is shorter than its header says.
    """
    try:
        version = npy.read_magic(file)
        form, parse = _READERS[version]
        length = file.read(struct.calcsize(form))
        (header_bytes,) = struct.unpack(form, length)
        if header_bytes > HEADER_BYTES:
            raise ValueError(f"a header of {header_bytes} bytes")
        shape, is_fortran, dtype = parse(io.BytesIO(length + file.read(header_bytes)))
    except Exception as error:  # numpy parses the header as Python, which fails in many ways
        raise DatasetError(f"{label} is not an .npy file ({error}); write it with numpy.save") from error
    if dtype.hasobject:
        raise DatasetError(
            f"{label} must hold numbers in native byte order, but holds {dtype.str}; write it again with "
            "array.astype('float32') or array.astype('int64')"
        )
    if any(size < 0 for size in shape):
        raise DatasetError(f"{label} has a negative shape {shape}; write it again")
    header = ArrayHeader(label, shape, dtype, is_fortran, npy.MAGIC_LEN + len(length) + header_bytes, member)
    missing = 0 if file_bytes is None else header.header_bytes + header.nbytes - file_bytes
    if missing > 0:
        raise DatasetError(f"{label} is truncated: {missing} bytes are missing; copy or write it again")
    return header
