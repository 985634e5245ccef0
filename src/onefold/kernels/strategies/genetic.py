"""Candidates bred from the best that were measured."""

from __future__ import annotations

from collections.abc import Sequence

from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies.strategy import TRIES, drawn, unseen

PARENTS = 16
FRESH = 0.1  # of the candidates are drawn at random
CROSSED, REDRAWN = 0.3, 0.3  # of the others have two parents, or one decision drawn anew; the rest mutate


class GeneticSearch:
    """Mutates, crosses and redraws the fastest; draws until there are some."""

    def __init__(self, space: ScheduleSpace, seen: set[str], parents: int = PARENTS, fresh: float = FRESH) -> None:
        self.space, self.seen = space, seen
        self.parents, self.fresh = parents, fresh
        self._best: list[tuple[float, Proposal]] = []

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """Children of the best."""
        wanted = count + spare
        return unseen(drawn(self.child, TRIES * wanted), wanted, self.seen)

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """The fastest become parents."""
        self._best += [(time, one) for one, time in zip(proposals, latencies) if time is not None]
        self._best = sorted(self._best, key=lambda pair: pair[0])[: self.parents]

    def child(self) -> Proposal | None:
        """One of two of the best, changed a little; now and then one that has nothing to do with them."""
        rng = self.space.rng
        if len(self._best) < 2 or rng.random() < self.fresh:
            return self.space.random()
        # The better of two parents drawn at random: the best have the most children.
        first, second = (self._best[min(rng.integers(len(self._best), size=2))][1] for _ in range(2))
        way = rng.random()
        if way < CROSSED:
            return self.space.crossed(first, second) or self.space.mutated(first)
        return self.space.redrawn(first) if way < CROSSED + REDRAWN else self.space.mutated(first)
