"""Find earlier jobs that are similar to this one by clustering their profiles (the "ground truth" of PipeTune).

similar_jobs = SimilarJobs(memories)                  # clusters them in another thread
similar = similar_jobs.find(profile)                  # None if no cluster is near
similar.memory.knobs, similar.confidence
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onefold.training.job_clusters import MAX_RADIUS, Clusterer, Labels, Points, kmeans_labels
from onefold.vocabulary.knobs import JobProfile, KnobMemory

MIN_CONFIDENCE = 0.5  # required to reuse the knobs of a similar job
MAX_JOBS = 2000  # that are clustered, the latest ones


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


@dataclass(frozen=True, slots=True)
class JobGroups:
    """Jobs whose profiles have the same features, in clusters."""

    memories: tuple[KnobMemory, ...]
    points: Points
    clusters: tuple[_Cluster, ...]

    def find(self, point: Points, load: float) -> SimilarJob | None:
        """Return the most similar job in the nearest cluster; None if the confidence is too low.

        Of several jobs that trained under other loads, the ones whose load was the nearest are preferred.
        """
        cluster = min(self.clusters, key=lambda cluster: float(np.linalg.norm(point - cluster.centroid)))
        distance = float(np.linalg.norm(point - cluster.centroid))
        # The confidence is 0.5 at twice the spread of the cluster; half the maximum radius is the least spread.
        scale = max(cluster.spread, MAX_RADIUS / 2)
        confidence = 1.0 / (1.0 + (distance / (2 * scale)) ** 2)
        if confidence < MIN_CONFIDENCE:
            return None

        def distances(member: int) -> tuple[int, float]:
            load_change = round(abs(self.memories[member].load - load))
            return load_change, float(np.linalg.norm(point - self.points[member]))

        return SimilarJob(self.memories[min(cluster.members, key=distances)], confidence)


class SimilarJobs:
    """Finds jobs similar to a given one. Profiles are clustered in a thread of their own by k-means or as given."""

    def __init__(self, memories: Sequence[KnobMemory], clusterer: Clusterer = kmeans_labels) -> None:
        self._clusterer = clusterer
        self._groups: dict[frozenset[str], JobGroups] = {}
        self._finished = threading.Event()
        self.failure = ""  # why the clusterer was replaced by k-means; empty if it was not
        if memories:
            # A daemon: a process that ends does not wait for it.
            threading.Thread(target=self._cluster, args=(tuple(memories[-MAX_JOBS:]),), daemon=True).start()
        else:
            self._finished.set()

    @property
    def is_ready(self) -> bool:
        """Return whether `find` returns without waiting."""
        return self._finished.is_set()

    def find(self, profile: JobProfile, load: float = 0.0) -> SimilarJob | None:
        """Return the most similar job, if possible under the same load; None if there is none.

        `load` is the number of cores that other processes keep busy. Waits until the jobs are clustered.
        """
        self._finished.wait()
        # Profiles from other sources have other features and cannot be compared.
        group = self._groups.get(frozenset(profile.features))
        return group.find(_point(profile), load) if group is not None else None

    def _cluster(self, memories: tuple[KnobMemory, ...]) -> None:
        by_features: dict[frozenset[str], list[KnobMemory]] = {}
        for memory in memories:
            by_features.setdefault(frozenset(memory.profile.features), []).append(memory)
        try:
            self._groups = {names: grouped(known, self._clusterer) for names, known in by_features.items()}
        except Exception as error:  # noqa: BLE001 - a clusterer may raise anything
            self.failure = f"{type(error).__name__}: {error}"
            self._groups = {names: grouped(known) for names, known in by_features.items()}
        finally:
            self._finished.set()


def group_numbers(memories: Sequence[KnobMemory], clusterer: Clusterer = kmeans_labels) -> list[int]:
    """Return the number of each job's group, from 1 for the largest; jobs of a group have similar profiles.

    Jobs of different machines, and with profiles from different sources, are in different groups.
    """
    comparable: dict[tuple[str, frozenset[str]], list[int]] = {}
    for index, memory in enumerate(memories):
        comparable.setdefault((memory.machine, frozenset(memory.profile.features)), []).append(index)
    groups: list[list[int]] = []
    for indices in comparable.values():
        clusters = grouped([memories[index] for index in indices], clusterer).clusters
        groups += [[indices[member] for member in cluster.members] for cluster in clusters]
    numbers = dict.fromkeys(range(len(memories)), 0)
    for number, members in enumerate(sorted(groups, key=lambda members: (-len(members), members)), start=1):
        numbers.update(dict.fromkeys(members, number))
    return [numbers[index] for index in range(len(memories))]


def grouped(memories: Sequence[KnobMemory], clusterer: Clusterer = kmeans_labels) -> JobGroups:
    """Return jobs whose profiles have the same features in clusters."""
    points = np.array([_point(memory.profile) for memory in memories])
    return JobGroups(tuple(memories), points, _clusters(points, clusterer(points)))


def _point(profile: JobProfile) -> Points:
    return np.array([profile.features[name] for name in sorted(profile.features)])


def _clusters(points: Points, labels: Labels) -> tuple[_Cluster, ...]:
    # Each outlier is a cluster with one member.
    labels = np.where(labels < 0, labels.max(initial=0) + 1 + np.arange(len(labels)), labels)
    return tuple(_cluster(points, np.flatnonzero(labels == label)) for label in np.unique(labels))


def _cluster(points: Points, members: Labels) -> _Cluster:
    centroid = points[members].mean(axis=0)
    inertia = float(((points[members] - centroid) ** 2).sum())
    return _Cluster(tuple(int(member) for member in members), centroid, (inertia / len(members)) ** 0.5)
