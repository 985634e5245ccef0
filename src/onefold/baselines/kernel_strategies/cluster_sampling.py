"""Measures one schedule per cluster of those with good predictions, as Chameleon's adaptive sampling does."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from onefold.kernels.cost_model import CostModel
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies.strategy import SAMPLES_PER_PROPOSAL, repeat, unseen

SAMPLED, CLUSTERED = 8, 4  # per wanted candidate: schedules sampled, and the best predicted of them that are clustered
PARENTS = 8
SKETCH_SCALE = 4.0  # distance between sketches, in units of log2 of a tile size


class ClusterSampling:
    """Avoids measuring similar schedules."""

    def __init__(self, space: ScheduleSpace, model: CostModel, seen: set[str]) -> None:
        self.space, self.model, self.seen = space, model, seen
        self._best: list[tuple[float, Proposal]] = []

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """Return the schedule nearest to the center of each cluster."""
        samples = unseen(repeat(self._sample, SAMPLES_PER_PROPOSAL * count), SAMPLED * count, self.seen)
        if not self.model.is_ready or len(samples) <= count:
            return samples[: count + spare]
        scores = self.model.scores(self.space, samples)
        best = [samples[at] for at in np.argsort(-scores)[: CLUSTERED * count]]
        return _nearest_to_centers(best, count)[: count + spare]

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """Update the cost model and the fastest schedules."""
        self.model.update(self.space, proposals, latencies)
        self._best += [(latency, proposal) for proposal, latency in zip(proposals, latencies) if latency is not None]
        self._best = sorted(self._best, key=lambda pair: pair[0])[:PARENTS]

    def _sample(self) -> Proposal | None:
        if self._best and self.space.rng.random() < 0.5:
            return self.space.mutate(self._best[int(self.space.rng.integers(len(self._best)))][1])
        return self.space.sample()


def _nearest_to_centers(proposals: Sequence[Proposal], count: int) -> list[Proposal]:
    """Return the proposal nearest to the center of each of `count` clusters, then the others."""
    from scipy.cluster.vq import kmeans2

    longest = max(len(proposal.decisions) for proposal in proposals)
    points: np.ndarray[Any, Any] = np.zeros((len(proposals), longest + 1))
    for at, proposal in enumerate(proposals):
        points[at, : len(proposal.decisions)] = np.log2(1 + np.abs(np.array(proposal.decisions, dtype=float)))
        points[at, -1] = SKETCH_SCALE * proposal.sketch
    clusters = min(count, len(np.unique(points, axis=0)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "One of the clusters is empty")
        centers, labels = kmeans2(points, clusters, minit="++", seed=0, missing="warn")
    nearest: dict[int, tuple[float, Proposal]] = {}
    for at, label in enumerate(int(label) for label in labels):
        distance = float(np.linalg.norm(points[at] - centers[label]))
        if label not in nearest or distance < nearest[label][0]:
            nearest[label] = (distance, proposals[at])
    chosen = [proposal for _, proposal in nearest.values()]
    others = [proposal for proposal in proposals if all(proposal is not other for other in chosen)]
    return chosen + others
