"""Many candidates that the cost model likes, of which only the middles of clusters are measured, as Chameleon does."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from onefold.kernels.cost_model import CostModel
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies.strategy import TRIES, drawn, unseen

DRAWN, LIKED = 8, 4  # for each that is wanted: how many are drawn, and how many of those go into clusters


class ClusterSampling:
    """Candidates that are alike are measured once."""

    def __init__(self, space: ScheduleSpace, model: CostModel, seen: set[str]) -> None:
        self.space, self.model, self.seen = space, model, seen
        self._best: list[tuple[float, Proposal]] = []

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """One of each cluster: the one nearest to its middle."""
        found = unseen(drawn(self._draw, TRIES * count), DRAWN * count, self.seen)
        if not self.model.is_ready or len(found) <= count:
            return found[: count + spare]
        scores = self.model.scores(self.space, found)
        liked = [found[at] for at in np.argsort(-scores)[: LIKED * count]]
        return _middles(liked, count)[: count + spare]

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """The model learns it."""
        self.model.learn(self.space, proposals, latencies)
        self._best += [(time, one) for one, time in zip(proposals, latencies) if time is not None]
        self._best = sorted(self._best, key=lambda pair: pair[0])[:8]

    def _draw(self) -> Proposal | None:
        if self._best and self.space.rng.random() < 0.5:
            return self.space.mutated(self._best[int(self.space.rng.integers(len(self._best)))][1])
        return self.space.random()


def _middles(proposals: Sequence[Proposal], count: int) -> list[Proposal]:
    """The one nearest to the middle of each of so many clusters, then the others."""
    from scipy.cluster.vq import kmeans2

    longest = max(len(one.decisions) for one in proposals)
    places: np.ndarray[Any, Any] = np.zeros((len(proposals), longest + 1))
    for at, one in enumerate(proposals):
        places[at, : len(one.decisions)] = np.log2(1 + np.abs(np.array(one.decisions, dtype=float)))
        places[at, -1] = 4.0 * one.sketch
    clusters = min(count, len(np.unique(places, axis=0)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "One of the clusters is empty")  # others are taken in its place below
        middles, cluster = kmeans2(places, clusters, minit="++", seed=0, missing="warn")
    chosen: dict[int, tuple[float, Proposal]] = {}
    for at, of in enumerate(int(one) for one in cluster):
        distance = float(np.linalg.norm(places[at] - middles[of]))
        if of not in chosen or distance < chosen[of][0]:
            chosen[of] = (distance, proposals[at])
    picked = [one for _, one in chosen.values()]
    others = [one for one in proposals if all(one is not other for other in picked)]
    return picked + others
