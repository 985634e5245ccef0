"""An even walk through the space.

A grid over two dozen tile sizes has millions of points, most of them invalid. Instead, valid samples are sorted by
their decisions and visited in steps that are halved after each pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies.strategy import repeat, unseen

POINTS = 128  # sampled and sorted at a time


class GridSearch:
    """Visits sorted samples from coarse to fine steps."""

    def __init__(self, space: ScheduleSpace, seen: set[str]) -> None:
        self.space, self.seen = space, seen
        self._walk: Iterator[Proposal] = iter(())

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """Return the next points; new ones are sampled at the end of the walk."""
        wanted = count + spare
        points = unseen(self._walk, wanted, self.seen)
        if len(points) < wanted:
            self._walk = self._new_walk()
            taken = self.seen | {point.key for point in points}
            points += unseen(self._walk, wanted - len(points), taken)
        self._walk = chain(points[count:], self._walk)  # spare points come again unless they were seen
        return points

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """Ignore the latencies."""

    def _new_walk(self) -> Iterator[Proposal]:
        points = unseen(repeat(self.space.sample, POINTS), POINTS, self.seen)
        points.sort(key=lambda one: (one.sketch, one.decisions[::-1]))  # by innermost tiles, which matter most
        step = max(1, len(points))
        visited: set[int] = set()
        while step >= 1:
            for at in range(0, len(points), step):
                if at not in visited:
                    visited.add(at)
                    yield points[at]
            step //= 2
