"""Cluster the profiles of jobs, by k-means or by a clusterer of scikit-learn.

labels = open_clusterer("DBSCAN")(points)       # one label per point; negative for outliers
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.vocabulary.errors import InputError, unknown

Points = NDArray[np.float64]
Labels = NDArray[np.int64]
Clusterer = Callable[[Points], Labels]

MAX_RADIUS = 0.25  # of a cluster: profiles that differ more are those of different jobs
KMEANS = "KMeans"
KMEANS_ITERATIONS = 10
# Clusterers of scikit-learn that work for any number of jobs and find the number of clusters, with their parameters.
# The others raise for histories that are smaller than the number of clusters that they require.
SKLEARN_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "AgglomerativeClustering": {"n_clusters": None, "distance_threshold": 2 * MAX_RADIUS},
    "Birch": {"threshold": MAX_RADIUS, "n_clusters": None},
    "DBSCAN": {"eps": MAX_RADIUS, "min_samples": 1},
    "HDBSCAN": {"min_cluster_size": 2, "min_samples": 1, "copy": True},
    "MeanShift": {"bandwidth": MAX_RADIUS},
    "OPTICS": {"min_samples": 2, "cluster_method": "dbscan", "eps": MAX_RADIUS},
}
CLUSTERERS = (KMEANS, *SKLEARN_PARAMETERS)


def open_clusterer(name: str) -> Clusterer:
    """Return the clusterer of this name; scikit-learn is imported when it is first used.

    Raises InputError for an unknown name.
    """
    if name not in CLUSTERERS:
        raise InputError(unknown("clusterer", name, CLUSTERERS))
    return kmeans_labels if name == KMEANS else lambda points: _sklearn_labels(name, points)


def kmeans_labels(points: Points) -> Labels:
    """Return the labels of k-means with as many clusters as points that are further than MAX_RADIUS from each other.

    By hand, since importing scikit-learn takes longer than reused knobs may save. One pass finds the initial centroids,
    so that the time grows with the number of points times the number of clusters.
    """
    centroids = points[:1]
    for point in points[1:]:
        if float(np.linalg.norm(centroids - point, axis=1).min()) > MAX_RADIUS:
            centroids = np.vstack([centroids, point])
    labels = _nearest(points, centroids)
    for _ in range(KMEANS_ITERATIONS):
        sizes = np.bincount(labels, minlength=len(centroids))[:, None]
        sums = np.zeros_like(centroids)
        np.add.at(sums, labels, points)
        centroids = np.where(sizes > 0, sums / np.maximum(sizes, 1), centroids)
        before, labels = labels, _nearest(points, centroids)
        if (labels == before).all():
            break
    return labels


def _nearest(points: Points, centroids: Points) -> Labels:
    """Return the index of the nearest centroid of each point."""
    return np.asarray(((centroids**2).sum(axis=1) - 2 * points @ centroids.T).argmin(axis=1), dtype=np.int64)


def _sklearn_labels(name: str, points: Points) -> Labels:
    if len(points) < 2:  # some require two
        return np.zeros(len(points), dtype=np.int64)
    from sklearn import cluster

    return np.asarray(getattr(cluster, name)(**SKLEARN_PARAMETERS[name]).fit_predict(points), dtype=np.int64)
