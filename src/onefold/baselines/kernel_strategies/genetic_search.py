"""A genetic search without a cost model."""

from __future__ import annotations

from collections.abc import Sequence

from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies.population import Population
from onefold.kernels.strategies.strategy import SAMPLES_PER_PROPOSAL, repeat, unseen

POPULATION_SIZE = 16
RANDOM_SHARE = 0.1  # of the candidates


class GeneticSearch:
    """Measures offspring of the fastest schedules; random samples until there are some."""

    def __init__(self, space: ScheduleSpace, seen: set[str]) -> None:
        self.space, self.seen = space, seen
        self._population = Population(space, POPULATION_SIZE, RANDOM_SHARE)

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """Return unseen offspring."""
        wanted = count + spare
        return unseen(repeat(self._population.offspring, SAMPLES_PER_PROPOSAL * wanted), wanted, self.seen)

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """Update the population."""
        self._population.tell(proposals, latencies)
