"""A population of the fastest measured schedules, and offspring of them."""

from __future__ import annotations

from collections.abc import Sequence

from onefold.kernels.schedule_space import Proposal, ScheduleSpace

CROSSOVER_SHARE, RESAMPLED_SHARE = 0.3, 0.3  # of the offspring; the rest are mutations


class Population:
    """Keeps the fastest schedules and creates offspring by mutation, crossover and resampling of one decision.

    Args:
        space: The search space.
        size: Number of parents.
        random_share: Share of offspring that are random samples instead.
    """

    def __init__(self, space: ScheduleSpace, size: int, random_share: float = 0.0) -> None:
        self.space, self.size, self.random_share = space, size, random_share
        self._parents: list[tuple[float, Proposal]] = []

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """Add measured schedules and keep the fastest."""
        self._parents += [(latency, proposal) for proposal, latency in zip(proposals, latencies) if latency is not None]
        self._parents = sorted(self._parents, key=lambda pair: pair[0])[: self.size]

    def offspring(self) -> Proposal | None:
        """Return a changed parent, or a random sample while there are fewer than two; None if it is invalid."""
        rng = self.space.rng
        if len(self._parents) < 2 or rng.random() < self.random_share:
            return self.space.sample()
        # Binary tournaments: the faster of two random parents.
        first, second = (self._parents[min(rng.integers(len(self._parents), size=2))][1] for _ in range(2))
        draw = rng.random()
        if draw < CROSSOVER_SHARE:
            return self.space.cross_over(first, second) or self.space.mutate(first)
        if draw < CROSSOVER_SHARE + RESAMPLED_SHARE:
            return self.space.resample_one(first)
        return self.space.mutate(first)
