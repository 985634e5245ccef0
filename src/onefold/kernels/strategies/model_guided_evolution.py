"""Many children of the best that were measured, of which the cost model picks those that are measured.

MetaSchedule breeds for generations inside its cost model, from many random candidates. Changing what is known to be
fast, once, takes a fifth of its time for as many candidates. The model likes most what is like that which it knows;
so a share of the candidates is picked from others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from onefold.kernels.cost_model import CostModel
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies.genetic import GeneticSearch
from onefold.kernels.strategies.strategy import drawn, unseen

LITTER = 5  # proposals for each candidate that is measured
STRANGERS = 0.25  # of the candidates have no parents


class ModelGuidedEvolution:
    """Breeds as the genetic search does; of an operator that nobody has measured, children are drawn at random."""

    def __init__(self, space: ScheduleSpace, model: CostModel, seen: set[str]) -> None:
        self.space, self.model, self.seen = space, model, seen
        self._family = GeneticSearch(space, seen, parents=8, fresh=0.0)

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """The most promising children, and the most promising of those that are nobody's."""
        if not self.model.is_ready:
            return self._family.propose(count, spare)
        strangers = round(STRANGERS * count)
        bred = count - strangers
        children = self._ranked(self._family.child, LITTER * bred, self.seen)
        known = self.seen | {one.key for one in children}
        others = self._ranked(self.space.random, LITTER * max(1, strangers), known)
        # Each by its place among its like, so that spare ones come in the same proportion.
        places = [((at + 0.5) / max(1, bred), one) for at, one in enumerate(children)]
        places += [((at + 0.5) / max(0.5, strangers), one) for at, one in enumerate(others)]
        return [one for _, one in sorted(places, key=lambda pair: pair[0])][: count + spare]

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """The fastest become parents, and the model learns."""
        self._family.tell(proposals, latencies)
        self.model.learn(self.space, proposals, latencies)

    def _ranked(self, draw: Callable[[], Proposal | None], count: int, seen: set[str]) -> list[Proposal]:
        """So many new ones, those that the model likes first."""
        found = unseen(drawn(draw, 2 * count), count, seen)
        if not found:
            return []
        return [found[int(at)] for at in np.argsort(-self.model.scores(self.space, found), kind="stable")]
