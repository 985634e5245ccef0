"""Models and inputs on a board, named by the SHA-256 of their content."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CHUNK_BYTES = 1 << 18
RESERVE_BYTES = 16_000_000  # of the disk, which are left to others


class FileRefused(Exception):
    """A file that is not kept: `reason` is too large, no space or wrong content."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class FileStore:
    """The files of a folder, which together take at most `quota_bytes`.

    A file appears under its name only once it is complete and its content has that hash. To make room, the files that
    were not used for the longest time are removed; those that are `held` stay.
    """

    def __init__(self, folder: Path, quota_bytes: int) -> None:
        self._folder, self._incoming = folder / "files", folder / "incoming"
        self._quota_bytes = quota_bytes
        self._lock = threading.Lock()
        self._held: list[str] = []
        self._arriving_bytes = 0
        shutil.rmtree(self._incoming, ignore_errors=True)  # left by an agent that was killed
        for each in (self._folder, self._incoming):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Return where the file with this hash is, or would be."""
        return self._folder / digest

    def has(self, digest: str) -> bool:
        """Return whether the file is complete here, and count it as used."""
        try:
            _mark_used(self.path(digest))
        except OSError:
            return False
        return True

    @property
    def used_bytes(self) -> int:
        """Return what all files take."""
        return sum(size for _, size, _ in self._files())

    @contextmanager
    def held(self, digests: list[str]) -> Iterator[None]:
        """Keep files inside the block."""
        with self._lock:
            self._held += digests
        try:
            yield
        finally:
            with self._lock:
                for digest in digests:
                    self._held.remove(digest)

    def make_room(self, length: int) -> None:
        """Remove files until one of this length fits. Raises FileRefused if it cannot."""
        with self._lock:
            self._make_room(length)

    def receive(self, digest: str, length: int, read: Callable[[int], bytes]) -> None:
        """Store `length` bytes under their hash; they are read even if they are not needed.

        Raises:
            FileRefused: The file is too large, does not fit on the disk, or has another hash.
            EOFError: It ends early.
        """
        with self._room(length):
            new = self._incoming / f"{digest}.{secrets.token_hex(8)}"
            try:
                if _copy(new, length, read) != digest:
                    raise FileRefused("wrong content", f"the content does not have the hash {digest}")
                _mark_used(new)
                new.replace(self.path(digest))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise _no_space(length) from error
            finally:
                new.unlink(missing_ok=True)

    @contextmanager
    def _room(self, length: int) -> Iterator[None]:
        """Reserve room for a file that arrives inside the block."""
        with self._lock:
            self._make_room(length)
            self._arriving_bytes += length
        try:
            yield
        finally:
            with self._lock:
                self._arriving_bytes -= length

    def _make_room(self, length: int) -> None:
        if length > self._quota_bytes:
            raise FileRefused("too large", f"a file of {length} bytes exceeds the quota of {self._quota_bytes} bytes")
        files = sorted(self._files())
        used = sum(size for _, size, _ in files) + self._arriving_bytes
        while True:
            free = shutil.disk_usage(self._folder).free - self._arriving_bytes - RESERVE_BYTES
            if used + length <= self._quota_bytes and length <= free:
                return
            removable = [entry for entry in files if entry[2].name not in self._held]
            if not removable:
                raise _no_space(length)
            files.remove(removable[0])
            _, size, oldest = removable[0]
            oldest.unlink(missing_ok=True)
            used -= size

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Yield the time of the last use, the size and the path of each file."""
        for path in self._folder.iterdir():
            try:
                status = path.stat()
            except OSError:  # removed meanwhile
                continue
            yield status.st_mtime, status.st_size, path


def _mark_used(path: Path) -> None:
    """Record that a file is used now; the clock of the file system is too coarse to order quick uses."""
    now = time.time_ns()
    os.utime(path, ns=(now, now))


def _no_space(length: int) -> FileRefused:
    return FileRefused("no space", f"there is no space for {length} bytes; free some on the disk, or raise the quota")


def _copy(target: Path, length: int, read: Callable[[int], bytes]) -> str:
    """Write what is read to a file, and return its hash."""
    hashed, left = hashlib.sha256(), length
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while left:
            chunk = read(min(CHUNK_BYTES, left))
            if not chunk:
                raise EOFError(f"{left} bytes are missing")
            hashed.update(chunk)
            file.write(chunk)
            left -= len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return hashed.hexdigest()
