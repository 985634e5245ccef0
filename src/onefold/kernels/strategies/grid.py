"""The space walked through evenly.

A grid over two dozen tile sizes would have millions of points, most of them invalid. Here many valid ones are drawn,
laid out by how they cut the loops, and every so many of them is taken, coarse steps first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies.strategy import drawn, unseen

POINTS = 128  # laid out at a time


class GridSearch:
    """Walks in steps that are halved each time it comes to the end."""

    def __init__(self, space: ScheduleSpace, seen: set[str]) -> None:
        self.space, self.seen = space, seen
        self._walk: Iterator[Proposal] = iter(())

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """The next points of the walk; a new one is laid out where it ends."""
        wanted = count + spare
        found = unseen(self._walk, wanted, self.seen)
        if len(found) < wanted:
            self._walk = self._laid_out()
            taken = self.seen | {one.key for one in found}
            found += unseen(self._walk, wanted - len(found), taken)
        self._walk = chain(found[count:], self._walk)  # those that nobody needed come next time
        return found

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """A grid does not learn."""

    def _laid_out(self) -> Iterator[Proposal]:
        points = unseen(drawn(self.space.random, POINTS), POINTS, self.seen)
        points.sort(key=lambda one: (one.sketch, one.decisions[::-1]))  # the innermost tiles, which do most, first
        step = max(1, len(points))
        given: set[int] = set()
        while step >= 1:
            for place in range(0, len(points), step):
                if place not in given:
                    given.add(place)
                    yield points[place]
            step //= 2
