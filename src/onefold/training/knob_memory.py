"""Which earlier job is like this one: profiles are grouped, and a job is known when it lies near the middle of a group.

recall = Recall(remembered)
found = recall.like(profile)        # None when no group is near
found.remembered.knobs, found.confidence
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onefold.vocabulary.errors import InputError, suggestion
from onefold.vocabulary.knobs import Profile, Remembered

Points = NDArray[np.float64]
REACH = 0.25  # nobody lies farther from the middle of a group that k-means made
KMEANS = "KMeans"
ROUNDS = 50  # of k-means, at most
ENOUGH = 0.5  # a lower confidence is not acted on


class Clusterer(Protocol):
    """Any clusterer of scikit-learn."""

    def fit_predict(self, points: Points) -> Any:
        """The number of each point's group; below 0 for a point that is in none."""


def clusterer(name: str) -> Clusterer | None:
    """The clusterer of scikit-learn of that name, as it comes; None for k-means, whose groups are counted here."""
    if name == KMEANS:
        return None
    from sklearn import cluster

    known = [each for each in cluster.__all__ if hasattr(getattr(cluster, each), "fit_predict")]
    if name not in known:
        raise InputError(f"the clusterer {name!r} is not known{suggestion(name, known)}")
    return getattr(cluster, name)()  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Likeness:
    """An earlier job that is like this one, and how sure that is, from 0 to 1."""

    remembered: Remembered
    confidence: float


@dataclass(frozen=True, slots=True)
class _Group:
    members: tuple[int, ...]
    middle: Points
    spread: float  # root of the mean squared distance from the middle: of the group's inertia


class Recall:
    """Finds jobs like a given one. Profiles are grouped by k-means, or by a clusterer of scikit-learn that is given."""

    def __init__(self, remembered: Sequence[Remembered], clusterer: Clusterer | None = None) -> None:
        self._remembered = tuple(remembered)
        self._clusterer = clusterer

    def like(self, profile: Profile) -> Likeness | None:
        """The job that is most like this one, if any group is near enough."""
        # What is made of other things cannot be compared.
        known = [one for one in self._remembered if set(one.profile.features) == set(profile.features)]
        if not known:
            return None
        names = sorted(profile.features)
        points = np.array([[one.profile.features[name] for name in names] for one in known])
        point = np.array([profile.features[name] for name in names])
        groups = _groups(points, self._clusterer)
        group = min(groups, key=lambda group: float(np.linalg.norm(point - group.middle)))
        distance = float(np.linalg.norm(point - group.middle))
        # At the group's own spread, or within half of what any group may reach, nothing speaks against it.
        scale = max(group.spread, REACH / 2)
        confidence = 1.0 / (1.0 + (distance / (2 * scale)) ** 2)
        if confidence < ENOUGH:
            return None
        nearest = min(group.members, key=lambda place: float(np.linalg.norm(point - points[place])))
        return Likeness(known[nearest], confidence)


def _groups(points: Points, clusterer: Clusterer | None) -> tuple[_Group, ...]:
    labels = np.asarray(clusterer.fit_predict(points)) if clusterer is not None else _by_k_means(points)
    alone = labels < 0
    labels = np.where(alone, labels.max(initial=0) + 1 + np.arange(len(labels)), labels)
    return tuple(_group(points, np.flatnonzero(labels == label)) for label in np.unique(labels))


def _group(points: Points, members: NDArray[np.intp]) -> _Group:
    middle = points[members].mean(axis=0)
    inertia = float(((points[members] - middle) ** 2).sum())
    return _Group(tuple(int(place) for place in members), middle, (inertia / len(members)) ** 0.5)


def _by_k_means(points: Points) -> NDArray[Any]:
    """As few groups as let nobody lie farther than REACH from the middle of its own."""
    distinct = len(np.unique(points, axis=0))
    for groups in range(1, distinct + 1):
        labels, middles = _k_means(points, groups)
        if np.linalg.norm(points - middles[labels], axis=1).max() <= REACH:
            return labels
    return np.arange(len(points))


def _k_means(points: Points, groups: int) -> tuple[NDArray[Any], Points]:
    """Which group each point is in, and their middles.

    By hand, since importing scikit-learn takes a worker longer than what it recalls may save. The first middles are the
    point nearest to all, and then always the one farthest from those there are.
    """
    chosen = [int(np.linalg.norm(points - points.mean(axis=0), axis=1).argmin())]
    while len(chosen) < groups:
        chosen.append(int(_distances(points, points[chosen]).min(axis=1).argmax()))
    middles = points[chosen]
    labels = _distances(points, middles).argmin(axis=1)
    for _ in range(ROUNDS):
        middles = np.array(
            [points[labels == g].mean(axis=0) if (labels == g).any() else middles[g] for g in range(groups)]
        )
        before, labels = labels, _distances(points, middles).argmin(axis=1)
        if (labels == before).all():
            break
    return labels, middles


def _distances(points: Points, middles: Points) -> Points:
    """Of each point from each middle."""
    return np.asarray(np.linalg.norm(points[:, None] - middles[None], axis=2))
