"""Blocks of writes that succeed or fail as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onefold.vocabulary.errors import StoreError


class Blocks:
    """`together()` for a store that can begin, commit and roll back.

    Inner blocks join the outermost one. Whatever fails inside undoes the whole of it: should the caller have caught the
    failure and gone on, the end of the outermost block raises StoreError, for half a block is never kept.
    """

    def __init__(self, begin: Callable[[], None], commit: Callable[[], None], rollback: Callable[[], None]) -> None:
        self._begin, self._commit, self._rollback = begin, commit, rollback
        self._depth = 0
        self._failure: BaseException | None = None

    @property
    def are_open(self) -> bool:
        """Whether the caller is inside a block."""
        return self._depth > 0

    @contextmanager
    def block(self) -> Iterator[None]:
        """One block; a store runs each of its writes inside one, too."""
        self._depth += 1
        outermost = self._depth == 1
        try:
            if outermost:
                self._begin()
            yield
            if outermost:
                self._end()
        except BaseException as error:
            self._failure = self._failure or error
            if outermost:
                self._rollback()
            raise
        finally:
            self._depth -= 1
            if outermost:
                self._failure = None

    def _end(self) -> None:
        if self._failure is not None:
            message = f"nothing of this block was saved, since a part of it failed: {self._failure}"
            raise StoreError(message) from self._failure
        self._commit()
