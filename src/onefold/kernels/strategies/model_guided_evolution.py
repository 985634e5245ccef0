"""Evolves the fastest measured schedules and lets the cost model pick which offspring are measured.

MetaSchedule evolves many random schedules for several generations inside its cost model. One generation from schedules
that were measured to be fast takes a fifth of the time for as many candidates. The cost model prefers what resembles
its training data, so a share of the candidates is picked among random samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from onefold.kernels.cost_model import CostModel
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies.population import Population
from onefold.kernels.strategies.strategy import SAMPLES_PER_PROPOSAL, repeat, unseen

POPULATION_SIZE = 8
PROPOSALS_PER_CANDIDATE = 5
RANDOM_SHARE = 0.25  # of the candidates


class ModelGuidedEvolution:
    """The default strategy; random sampling until the cost model is trained."""

    def __init__(self, space: ScheduleSpace, model: CostModel, seen: set[str]) -> None:
        self.space, self.model, self.seen = space, model, seen
        self._population = Population(space, POPULATION_SIZE)

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """Return the offspring and the random samples with the best predicted scores."""
        if not self.model.is_ready:
            wanted = count + spare
            return unseen(repeat(self._population.offspring, SAMPLES_PER_PROPOSAL * wanted), wanted, self.seen)
        random_count = round(RANDOM_SHARE * count)
        evolved_count = count - random_count
        evolved = self._rank(self._population.offspring, PROPOSALS_PER_CANDIDATE * evolved_count, self.seen)
        known = self.seen | {proposal.key for proposal in evolved}
        sampled = self._rank(self.space.sample, PROPOSALS_PER_CANDIDATE * max(1, random_count), known)
        # Merged by relative rank, so that spare proposals come in the same proportion.
        ranked = [((at + 0.5) / max(1, evolved_count), proposal) for at, proposal in enumerate(evolved)]
        ranked += [((at + 0.5) / max(0.5, random_count), proposal) for at, proposal in enumerate(sampled)]
        return [proposal for _, proposal in sorted(ranked, key=lambda pair: pair[0])][: count + spare]

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """Update the population and the cost model."""
        self._population.tell(proposals, latencies)
        self.model.update(self.space, proposals, latencies)

    def _rank(self, sample: Callable[[], Proposal | None], count: int, seen: set[str]) -> list[Proposal]:
        """Return up to `count` unseen samples, those with the best predicted scores first."""
        samples = unseen(repeat(sample, 2 * count), count, seen)
        if not samples:
            return []
        scores = self.model.scores(self.space, samples)
        return [samples[int(at)] for at in np.argsort(-scores, kind="stable")]
