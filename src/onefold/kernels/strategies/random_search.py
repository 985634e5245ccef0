"""Random sampling: the trivial strategy."""

from __future__ import annotations

from collections.abc import Sequence

from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies.strategy import SAMPLES_PER_PROPOSAL, repeat, unseen


class RandomSearch:
    """Samples the space at random."""

    def __init__(self, space: ScheduleSpace, seen: set[str]) -> None:
        self.space, self.seen = space, seen

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """Return unseen samples."""
        wanted = count + spare
        return unseen(repeat(self.space.sample, SAMPLES_PER_PROPOSAL * wanted), wanted, self.seen)

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """Ignore the latencies."""
