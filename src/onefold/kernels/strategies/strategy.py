"""The seam between a survey and the search for candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from onefold.kernels.schedule_space import Proposal

TRIES = 8  # draws for each candidate that is wanted, before a space counts as used up


class CandidateStrategy(Protocol):
    """Proposes candidates for one operator and hears what became of them.

    It proposes nothing that is in `seen`, which whoever holds it fills, and fewer than it is asked for only where it
    finds no more. What it proposes follows from its space's seed and from what it was told.
    """

    seen: set[str]

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """Up to so many that have not been seen, each of them once; then others, should some of them be dropped."""

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """What was measured, also by others; None: it failed."""


def unseen(draws: Iterator[Proposal | None], count: int, seen: set[str]) -> list[Proposal]:
    """The first so many of some draws that are valid, new, and different from each other."""
    found: dict[str, Proposal] = {}
    for one in draws if count > 0 else ():
        if one is not None and one.key not in seen:
            found.setdefault(one.key, one)
        if len(found) >= count:
            break
    return list(found.values())


def drawn(draw: Callable[[], Proposal | None], tries: int) -> Iterator[Proposal | None]:
    """So many draws."""
    for _ in range(tries):
        yield draw()
