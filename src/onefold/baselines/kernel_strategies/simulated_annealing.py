"""Simulated annealing over the predictions of the cost model."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onefold.kernels.cost_model import CostModel
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies.strategy import SAMPLES_PER_PROPOSAL, repeat, unseen

CHAINS, STEPS = 24, 6
FIRST_TEMPERATURE, LAST_TEMPERATURE = 1.0, 0.1  # in units of the predicted score


class SimulatedAnnealing:
    """Runs several Markov chains, which continue from where the previous batch ended."""

    def __init__(self, space: ScheduleSpace, model: CostModel, seen: set[str]) -> None:
        self.space, self.model, self.seen = space, model, seen
        self._chains: list[Proposal] = []

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """Return the schedules with the best predicted scores that the chains visited."""
        if not self.model.is_ready:
            wanted = count + spare
            return unseen(repeat(self.space.sample, SAMPLES_PER_PROPOSAL * wanted), wanted, self.seen)
        chains = self._chains or unseen(repeat(self.space.sample, SAMPLES_PER_PROPOSAL * CHAINS), CHAINS, set())
        if not chains:
            return []
        scores = self.model.scores(self.space, chains)
        visited = {proposal.key: (float(score), proposal) for proposal, score in zip(chains, scores)}
        for step in range(STEPS):
            decay = step / max(1, STEPS - 1)
            temperature = FIRST_TEMPERATURE * (LAST_TEMPERATURE / FIRST_TEMPERATURE) ** decay
            neighbors = [self.space.mutate(proposal) or proposal for proposal in chains]
            neighbor_scores = self.model.scores(self.space, neighbors)
            visited |= {neighbor.key: (float(score), neighbor) for neighbor, score in zip(neighbors, neighbor_scores)}
            for at, (old, new) in enumerate(zip(scores, neighbor_scores)):
                if new >= old or self.space.rng.random() < math.exp((new - old) / temperature):
                    chains[at], scores[at] = neighbors[at], new
        self._chains = chains
        ranked = sorted(visited.values(), key=lambda pair: -pair[0])
        return unseen(iter([proposal for _, proposal in ranked]), count + spare, self.seen)

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """Update the cost model."""
        self.model.update(self.space, proposals, latencies)
