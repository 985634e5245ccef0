"""Steps over the cost model: always towards the faster, and to the slower less and less often."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onefold.kernels.cost_model import CostModel
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies.strategy import TRIES, drawn, unseen

WALKERS, STEPS = 24, 6
HOT, COOL = 1.0, 0.1  # temperatures, in what scores differ by


class SimulatedAnnealing:
    """Several walkers at a time, each of which keeps to where it has got."""

    def __init__(self, space: ScheduleSpace, model: CostModel, seen: set[str]) -> None:
        self.space, self.model, self.seen = space, model, seen
        self._walkers: list[Proposal] = []

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """The best places that the walkers came past."""
        if not self.model.is_ready:
            return unseen(drawn(self.space.random, TRIES * (count + spare)), count + spare, self.seen)
        walkers = self._walkers or unseen(drawn(self.space.random, TRIES * WALKERS), WALKERS, set())
        if not walkers:
            return []
        scores = self.model.scores(self.space, walkers)
        passed = {one.key: (float(score), one) for one, score in zip(walkers, scores)}
        for step in range(STEPS):
            heat = HOT * (COOL / HOT) ** (step / max(1, STEPS - 1))
            moved = [self.space.mutated(one) or one for one in walkers]
            reached = self.model.scores(self.space, moved)
            passed |= {one.key: (float(score), one) for one, score in zip(moved, reached)}
            for at, (old, new) in enumerate(zip(scores, reached)):
                if new >= old or self.space.rng.random() < math.exp((new - old) / heat):
                    walkers[at], scores[at] = moved[at], new
        self._walkers = walkers
        best = sorted(passed.values(), key=lambda pair: -pair[0])
        return unseen(iter([one for _, one in best]), count + spare, self.seen)

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """The model learns it."""
        self.model.learn(self.space, proposals, latencies)
