"""Nested transactions over a store that can begin, commit and roll back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onefold.vocabulary.errors import StoreError


class Transactions:
    """Let inner transactions join the outermost one.

    A failure anywhere inside rolls back all of it. If the caller caught the failure and went on, the end of the
    outermost block raises StoreError, since half a transaction is never kept.
    """

    def __init__(self, begin: Callable[[], None], commit: Callable[[], None], rollback: Callable[[], None]) -> None:
        self._begin, self._commit, self._rollback = begin, commit, rollback
        self._depth = 0
        self._failure: BaseException | None = None

    @property
    def is_open(self) -> bool:
        """Return whether the caller is inside a transaction."""
        return self._depth > 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block as a transaction or as part of the one that is open."""
        self._depth += 1
        is_outermost = self._depth == 1
        try:
            if is_outermost:
                self._begin()
            yield
            if is_outermost:
                self._end()
        except BaseException as error:
            self._failure = self._failure or error
            if is_outermost:
                self._rollback()
            raise
        finally:
            self._depth -= 1
            if is_outermost:
                self._failure = None

    def _end(self) -> None:
        if self._failure is not None:
            message = f"the transaction was rolled back, since a part of it failed: {self._failure}"
            raise StoreError(message) from self._failure
        self._commit()
