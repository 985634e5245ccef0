"""Find earlier jobs that are similar to this one by clustering their profiles (the "ground truth" of PipeTune).

similar = SimilarJobs(memories).find(profile)        # None if no cluster is near
similar.memory.knobs, similar.confidence
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onefold.vocabulary.errors import InputError, suggestion
from onefold.vocabulary.knobs import JobProfile, KnobMemory

Points = NDArray[np.float64]
MAX_RADIUS = 0.25  # of a k-means cluster
KMEANS = "KMeans"
KMEANS_ITERATIONS = 50
MIN_CONFIDENCE = 0.5  # required to reuse the knobs of a similar job


class Clusterer(Protocol):
    """A clusterer of scikit-learn."""

    def fit_predict(self, points: Points) -> Any:
        """Return the label of each point; negative for outliers."""


def open_clusterer(name: str) -> Clusterer | None:
    """Return the scikit-learn clusterer of this name with default parameters; None for the k-means of this module.

    Raises InputError for an unknown name.
    """
    if name == KMEANS:
        return None
    from sklearn import cluster

    known = [candidate for candidate in cluster.__all__ if hasattr(getattr(cluster, candidate), "fit_predict")]
    if name not in known:
        raise InputError(f"unknown clusterer {name!r}{suggestion(name, known)}")
    return getattr(cluster, name)()  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class SimilarJob:
    """An earlier job that is similar to this one, with a confidence from 0 to 1."""

    memory: KnobMemory
    confidence: float


@dataclass(frozen=True, slots=True)
class _Cluster:
    members: tuple[int, ...]
    centroid: Points
    spread: float  # root mean squared distance from the centroid


class SimilarJobs:
    """Finds jobs similar to a given one. Profiles are clustered by k-means, or by a given clusterer."""

    def __init__(self, memories: Sequence[KnobMemory], clusterer: Clusterer | None = None) -> None:
        self._memories = tuple(memories)
        self._clusterer = clusterer

    def find(self, profile: JobProfile) -> SimilarJob | None:
        """Return the most similar job in the nearest cluster; None if the confidence is too low."""
        # Profiles from other sources have other features and cannot be compared.
        known = [memory for memory in self._memories if set(memory.profile.features) == set(profile.features)]
        if not known:
            return None
        names = sorted(profile.features)
        points = np.array([[memory.profile.features[name] for name in names] for memory in known])
        point = np.array([profile.features[name] for name in names])
        clusters = _clusters(points, self._clusterer)
        cluster = min(clusters, key=lambda cluster: float(np.linalg.norm(point - cluster.centroid)))
        distance = float(np.linalg.norm(point - cluster.centroid))
        # The confidence is 0.5 at twice the spread of the cluster; half the maximum radius is the least spread.
        scale = max(cluster.spread, MAX_RADIUS / 2)
        confidence = 1.0 / (1.0 + (distance / (2 * scale)) ** 2)
        if confidence < MIN_CONFIDENCE:
            return None
        nearest = min(cluster.members, key=lambda member: float(np.linalg.norm(point - points[member])))
        return SimilarJob(known[nearest], confidence)


def _clusters(points: Points, clusterer: Clusterer | None) -> tuple[_Cluster, ...]:
    labels = np.asarray(clusterer.fit_predict(points)) if clusterer is not None else _kmeans_labels(points)
    # Each outlier is a cluster with one member.
    labels = np.where(labels < 0, labels.max(initial=0) + 1 + np.arange(len(labels)), labels)
    return tuple(_cluster(points, np.flatnonzero(labels == label)) for label in np.unique(labels))


def _cluster(points: Points, members: NDArray[np.intp]) -> _Cluster:
    centroid = points[members].mean(axis=0)
    inertia = float(((points[members] - centroid) ** 2).sum())
    return _Cluster(tuple(int(member) for member in members), centroid, (inertia / len(members)) ** 0.5)


def _kmeans_labels(points: Points) -> NDArray[Any]:
    """Return the labels of the smallest number of clusters whose radius is at most MAX_RADIUS."""
    distinct = len(np.unique(points, axis=0))
    for k in range(1, distinct + 1):
        labels, centroids = _kmeans(points, k)
        if np.linalg.norm(points - centroids[labels], axis=1).max() <= MAX_RADIUS:
            return labels
    return np.arange(len(points))


def _kmeans(points: Points, k: int) -> tuple[NDArray[Any], Points]:
    """Return the label of each point and the centroids of k-means with farthest-point initialization.

    By hand, since a worker spends more time on importing scikit-learn than reused knobs may save.
    """
    initial = [int(np.linalg.norm(points - points.mean(axis=0), axis=1).argmin())]
    while len(initial) < k:
        initial.append(int(_distances(points, points[initial]).min(axis=1).argmax()))
    centroids = points[initial]
    labels = _distances(points, centroids).argmin(axis=1)
    for _ in range(KMEANS_ITERATIONS):
        centroids = np.array(
            [points[labels == i].mean(axis=0) if (labels == i).any() else centroids[i] for i in range(k)]
        )
        before, labels = labels, _distances(points, centroids).argmin(axis=1)
        if (labels == before).all():
            break
    return labels, centroids


def _distances(points: Points, centroids: Points) -> Points:
    """Return the distance of each point from each centroid."""
    return np.asarray(np.linalg.norm(points[:, None] - centroids[None], axis=2))
