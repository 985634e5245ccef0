"""Candidates drawn at random."""

from __future__ import annotations

from collections.abc import Sequence

from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies.strategy import TRIES, drawn, unseen


class RandomSearch:
    """Draws from the space."""

    def __init__(self, space: ScheduleSpace, seen: set[str]) -> None:
        self.space, self.seen = space, seen

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """Unseen draws."""
        wanted = count + spare
        return unseen(drawn(self.space.random, TRIES * wanted), wanted, self.seen)

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """Chance does not learn."""
