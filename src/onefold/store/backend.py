"""What differs between databases: how to connect, how transactions begin and end, what errors mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from onefold.store.errors import OTHER_HOME
from onefold.vocabulary.errors import StoreError


class Backend(Protocol):
    """A database that `SqlStore` can use."""

    @property
    def location(self) -> str:
        """Return the address of the database as messages show it, without a password."""

    def connect(self) -> Connection:
        """Open a connection on which the methods below control the transactions."""

    def begin(self, connection: Connection) -> None:
        """Begin a transaction that is sure to be able to write."""

    def begin_snapshot(self, connection: Connection) -> None:
        """Begin a transaction whose reads all see the same moment."""

    def commit(self, connection: Connection) -> None:
        """Make the transaction durable."""

    def rollback(self, connection: Connection) -> None:
        """Undo the transaction; do nothing if the database has done so by itself."""

    def explain(self, error: BaseException | None) -> str:
        """Say what a driver's error means and what to do, as a predicate: "is damaged; …"."""


@contextmanager
def mapped_errors(backend: Backend) -> Iterator[None]:
    """Raise errors of the database and of the file system as StoreErrors that say what to do."""
    try:
        yield
    except DBAPIError as error:
        raise StoreError(f"the store {backend.location} {backend.explain(error.orig)}") from error
    except SQLAlchemyError as error:
        raise StoreError(f"the store {backend.location} cannot be used: {error}") from error
    except OSError as error:
        reason = error.strerror or error
        raise StoreError(f"the store {backend.location} cannot be opened: {reason}; {OTHER_HOME}") from error
