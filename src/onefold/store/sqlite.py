"""SQLite: pragmas, transactions and errors. In WAL mode readers and the writer do not wait for each other."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from pathlib import Path

from sqlalchemy import URL, Connection, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from onefold.store.errors import OTHER_HOME
from onefold.store.file_identity import FileIdentity
from onefold.store.read_only import connect_read_only, is_writable
from onefold.vocabulary.errors import StoreError

BUSY_TIMEOUT_S = 30.0
RETRY_S = 0.01
RESCUE_TIMEOUT_MS = 1000  # for readers of a store that is lost
# WAL lets others read meanwhile; FULL makes every commit wait for the disk.
PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON")

_FULL = "has no room to grow; free some space, nothing saved so far is lost"
_DAMAGED = f"is damaged; move it away (`sqlite3 FILE .recover` can rescue what it still holds), or {OTHER_HOME}"
_READ_ONLY = f"cannot be written; make the file and its folder writable, or {OTHER_HOME}"
_LOCKED = "stayed locked by another process; wait until that one is done, or end it, and try again"

# By SQLite's primary result codes; extended ones carry more detail in their upper bits.
_SENTENCES = {
    sqlite3.SQLITE_NOTADB: f"is not a store of Onefold; move it away, or {OTHER_HOME}",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: f"cannot be opened; check that its folder exists and may be written, or {OTHER_HOME}",
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_IOERR: f"cannot be read or written on this disk; check the disk and its space, or {OTHER_HOME}; "
    "nothing saved so far is lost",
}
# What the system answers when a quota or a limit on file sizes is reached, besides a full disk.
_EXTENDED_SENTENCES = dict.fromkeys(
    (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_TRUNCATE, sqlite3.SQLITE_IOERR_SHMSIZE), _FULL
)


class SqliteBackend:
    """The database in the file at `path`, which is created with its folders if it does not exist.

    Several processes may use the file; a write waits up to `busy_timeout_s` for another process to end its own. If the
    file or its folder cannot be written, or the disk is full, it can still be read.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.path = Path(path)
        self._busy_timeout_s = busy_timeout_s
        self._read_only = ""  # why nothing can be written
        self._files: list[FileIdentity] = []  # the database and its write-ahead log, once they are open
        self._loss = ""  # what happened to them, once it is known

    @property
    def location(self) -> str:
        return str(self.path)

    def connect(self) -> Connection:
        if self.path.is_file() and not is_writable(self.path):
            return self._connect_read_only(_READ_ONLY)
        try:
            return self._connect_writable()
        except DBAPIError as error:
            if not self.path.is_file() or _result(error.orig) not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise
            return self._connect_read_only(self.explain(error.orig))  # the disk is full, say

    def _connect_read_only(self, reason: str) -> Connection:
        self._read_only = reason
        return create_engine(
            "sqlite://", creator=lambda: connect_read_only(self.path), poolclass=NullPool, isolation_level="AUTOCOMMIT"
        ).connect()

    def _connect_writable(self) -> Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # AUTOCOMMIT leaves BEGIN and COMMIT to this class: the driver's own BEGIN is late, and missing for reads.
        engine = create_engine(
            URL.create("sqlite", database=str(self.path)),
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={"timeout": self._busy_timeout_s},
        )
        connection = engine.connect()
        try:
            for pragma in PRAGMAS:
                self._set(connection, pragma)
        except BaseException:
            connection.close()
            raise
        self._files = [FileIdentity(self.path)]
        return connection

    def _set(self, connection: Connection, pragma: str) -> None:
        """Set a pragma. SQLite itself does not wait if several processes that create a store switch to WAL at once."""
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                connection.exec_driver_sql(f"PRAGMA {pragma}")
                return
            except DBAPIError as error:
                if _result(error.orig) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)

    def begin(self, connection: Connection) -> None:
        if self._read_only:
            raise StoreError(f"the store {self.path} {self._read_only}")
        self._check_files(connection)
        # IMMEDIATE takes the write lock at once: a transaction that began by reading might not get it later.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        if len(self._files) == 1:  # the log exists from the first transaction on
            self._files.append(FileIdentity(self.path.with_name(f"{self.path.name}-wal")))

    def begin_snapshot(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    def commit(self, connection: Connection) -> None:
        connection.exec_driver_sql("COMMIT")

    def rollback(self, connection: Connection) -> None:
        # After some errors, such as a full disk, SQLite has rolled back by itself.
        driver = None if connection.closed else connection.connection.driver_connection
        if driver is not None and driver.in_transaction:
            connection.exec_driver_sql("ROLLBACK")

    def _check_files(self, connection: Connection) -> None:
        """Raise StoreError if the files are not those that were opened: what is written would be lost with them."""
        if not self._loss:
            changes = ((file.path.name, file.change) for file in self._files)
            self._loss = next((f"{name} {change}" for name, change in changes if change), "")
            if not self._loss:
                return
            self._loss += f" while it was in use; nothing more is written. {self._rescue(connection)}"
        raise StoreError(f"the store {self.path} cannot be used any more: {self._loss}")

    def _rescue(self, connection: Connection) -> str:
        """Copy what the open files hold beside the path, and say what to do."""
        folder = self.path.parent if self.path.parent.is_dir() else Path(tempfile.gettempdir())
        copy = folder / f"{self.path.stem}-rescued-{os.getpid()}-{time.time_ns()}{self.path.suffix}"
        try:
            connection.exec_driver_sql("VACUUM INTO ?", (str(copy),))
            # A log with content would be applied to whatever is put at the path, and damage it.
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {RESCUE_TIMEOUT_MS}")
            is_busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar()
        except DBAPIError as error:
            return f"Put the files back, then resume; they could not be copied ({error.orig})"
        move = f"move the copy to {self.path}"
        if is_busy:  # another process reads the log
            move = f"remove {self.path}-wal and {self.path.name}-shm and {move}"
        return f"All that was recorded is in {copy}: put the files back, or {move}, then resume"

    def explain(self, error: BaseException | None) -> str:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            return f"cannot be used: {error}"
        sentence = _EXTENDED_SENTENCES.get(code) or _SENTENCES.get(_result(error))
        return sentence or f"cannot be used: {error} ({getattr(error, 'sqlite_errorname', code)})"


def _result(error: BaseException | None) -> int:
    """Return SQLite's primary result code of an error; that of success if it has none."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)) & 0xFF
