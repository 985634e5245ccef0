"""The one place where errors of SQLite and of the file system become StoreErrors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from onefold.vocabulary.errors import StoreError

_ELSEWHERE = "point --home elsewhere"
_FULL = "has no room to grow; free some space, nothing saved so far is lost"
_DAMAGED = f"is damaged; move it away (`sqlite3 FILE .recover` can rescue what it still holds), or {_ELSEWHERE}"
_READ_ONLY = f"cannot be written; make the file and its folder writable, or {_ELSEWHERE}"

# By SQLite's primary result codes; extended ones carry more detail in their upper bits.
_SENTENCES = {
    sqlite3.SQLITE_NOTADB: f"is not a store of Onefold; move it away, or {_ELSEWHERE}",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: f"cannot be opened; check that its folder exists and may be written, or {_ELSEWHERE}",
    sqlite3.SQLITE_BUSY: "stayed locked by another process; wait until that one is done, or end it, and try again",
    sqlite3.SQLITE_LOCKED: "stayed locked by another process; wait until that one is done, or end it, and try again",
    sqlite3.SQLITE_IOERR: f"cannot be read or written on this disk; check the disk and its space, or {_ELSEWHERE}; "
    "nothing saved so far is lost",
}
# What the system answers when a quota or a limit on file sizes is reached, besides a full disk.
_EXTENDED_SENTENCES = {sqlite3.SQLITE_IOERR_WRITE: _FULL, sqlite3.SQLITE_IOERR_TRUNCATE: _FULL}


@contextmanager
def trouble(path: Path) -> Iterator[None]:
    """Turns what goes wrong with the file at `path` inside the block into a StoreError that says what to do."""
    try:
        yield
    except DBAPIError as error:
        raise StoreError(f"the store {path} {_sentence(error.orig)}") from error
    except SQLAlchemyError as error:
        raise StoreError(f"the store {path} cannot be used: {error}") from error
    except OSError as error:
        raise StoreError(f"the store {path} cannot be opened: {error.strerror or error}; {_ELSEWHERE}") from error


def _sentence(error: BaseException | None) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return f"cannot be used: {error}"
    known = _EXTENDED_SENTENCES.get(code) or _SENTENCES.get(code & 0xFF)
    return known or f"cannot be used: {error} ({getattr(error, 'sqlite_errorname', code)})"
