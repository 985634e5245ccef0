"""Similar jobs are found by clustering profiles."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import DBSCAN, AgglomerativeClustering

from onefold.training import job_clusters
from onefold.training.job_clusters import CLUSTERERS, MAX_RADIUS, Labels, Points, kmeans_labels, open_clusterer
from onefold.training.knob_memory import MAX_JOBS, MIN_CONFIDENCE, SimilarJobs, group_numbers
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.knobs import JobProfile, KnobMemory
from onefold.vocabulary.records import Config


def profile(*features: float) -> JobProfile:
    return JobProfile({f"f{i}": value for i, value in enumerate(features)}, ("operators",))


def memory(*features: float, threads: int = 1) -> KnobMemory:
    return KnobMemory("here", "time", False, profile(*features), Config(threads=threads), 2.0, 1.0)


def test_without_memories_no_job_is_similar() -> None:
    assert SimilarJobs([]).find(profile(0.5)) is None


def test_an_identical_job_has_full_confidence() -> None:
    similar = SimilarJobs([memory(0.1, 0.9, threads=2), memory(3.0, 2.0)]).find(profile(0.1, 0.9))
    assert similar is not None
    assert similar.memory.knobs.threads == 2
    assert similar.confidence == pytest.approx(1.0)


def test_a_job_far_from_every_cluster_is_unknown() -> None:
    memories = [memory(0.0, 0.0), memory(0.05, 0.0), memory(2.0, 2.0)]
    assert SimilarJobs(memories).find(profile(0.0, 1.0)) is None
    assert SimilarJobs(memories).find(profile(2.0, 2.0 + 3 * MAX_RADIUS)) is None


def test_the_nearest_member_of_the_cluster_is_returned() -> None:
    memories = [memory(0.0, threads=1), memory(0.2, threads=2), memory(5.0, threads=4)]
    similar = SimilarJobs(memories).find(profile(0.18))
    assert similar is not None
    assert similar.memory.knobs.threads == 2


def test_profiles_with_other_features_are_not_compared() -> None:
    assert SimilarJobs([memory(0.0, 0.0)]).find(profile(0.0)) is None


@pytest.mark.parametrize("clusterer", [DBSCAN(eps=0.2, min_samples=1), AgglomerativeClustering(2)])
def test_any_clusterer_of_scikit_learn_can_be_used(clusterer: Any) -> None:
    jobs = SimilarJobs([memory(0.0, threads=1), memory(0.1, threads=1), memory(3.0, threads=2)], clusterer.fit_predict)
    near = jobs.find(profile(3.05))
    assert near is not None
    assert near.memory.knobs.threads == 2
    assert jobs.find(profile(1.5)) is None


def test_outliers_of_a_clusterer_are_clusters_of_one() -> None:
    jobs = SimilarJobs([memory(0.0, threads=1), memory(3.0, threads=2)], DBSCAN(eps=0.2, min_samples=5).fit_predict)
    similar = jobs.find(profile(3.0))
    assert similar is not None
    assert similar.memory.knobs.threads == 2


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8), st.floats(-2, 12))
def test_confidence_falls_with_distance(positions: list[float], position: float) -> None:
    similar = SimilarJobs([memory(other) for other in positions]).find(profile(position))
    if min(abs(other - position) for other in positions) > 3 * MAX_RADIUS:
        assert similar is None
    if similar is not None:
        assert MIN_CONFIDENCE <= similar.confidence <= 1.0
    assert SimilarJobs([memory(position)]).find(profile(position)) is not None


def test_an_unknown_clusterer_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'DBSCAN'"):
        open_clusterer("DBSCANN")
    with pytest.raises(InputError, match="unknown clusterer"):
        open_clusterer("SpectralClustering")


@pytest.mark.parametrize("jobs", [1, 2, 3, 10])
@pytest.mark.parametrize("name", CLUSTERERS)
def test_every_clusterer_groups_histories_of_any_size(name: str, jobs: int) -> None:
    history = [memory(3.0 * number, 1.0, threads=number) for number in range(jobs)]
    twins = SimilarJobs([*history, *history], open_clusterer(name))
    similar = SimilarJobs(history, open_clusterer(name))
    for known in (similar, twins):
        similar_job = known.find(profile(3.0 * (jobs - 1) + 0.01, 1.0))
        assert known.failure == ""
        assert similar_job is not None
        assert similar_job.memory.knobs.threads == jobs - 1
        assert known.find(profile(0.0, 9.0)) is None


def test_the_jobs_are_clustered_in_another_thread() -> None:
    is_allowed, threads = threading.Event(), []

    def clusterer(points: Points) -> Labels:
        threads.append(threading.current_thread())
        is_allowed.wait()
        return kmeans_labels(points)

    jobs = SimilarJobs([memory(0.1)], clusterer)
    assert not jobs.is_ready
    is_allowed.set()
    assert jobs.find(profile(0.1)) is not None
    assert jobs.is_ready
    assert threads != [threading.current_thread()]


def test_a_clusterer_that_fails_is_replaced_by_kmeans() -> None:
    def clusterer(points: Points) -> Labels:
        raise ValueError(f"{len(points)} points are too few")

    jobs = SimilarJobs([memory(0.1)], clusterer)
    assert jobs.find(profile(0.1)) is not None
    assert jobs.failure == "ValueError: 1 points are too few"


def test_the_work_of_kmeans_does_not_depend_on_the_number_of_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    passes, plain = [], job_clusters._nearest

    def counted(points: Points, centroids: Points) -> Labels:
        passes.append(len(centroids))
        return plain(points, centroids)

    monkeypatch.setattr(job_clusters, "_nearest", counted)
    points = np.random.default_rng(0).random((300, 40)) * 5
    assert len(set(kmeans_labels(points))) > 250
    assert len(passes) <= job_clusters.KMEANS_ITERATIONS + 1


def test_only_the_latest_jobs_are_clustered() -> None:
    jobs = SimilarJobs([memory(9.0), *(memory(float(number % 7)) for number in range(MAX_JOBS))])
    assert jobs.find(profile(9.0)) is None
    assert jobs.find(profile(6.0)) is not None


def test_jobs_are_numbered_by_the_size_of_their_group() -> None:
    elsewhere = replace(memory(0.0, 0.0), machine="there")
    jobs = [memory(5.0, 0.0), memory(0.0, 0.0), memory(0.1, 0.0), elsewhere, memory(0.0)]
    numbers = group_numbers(jobs)
    assert numbers[1] == numbers[2] == 1
    assert sorted(numbers) == [1, 1, 2, 3, 4]
    assert group_numbers([]) == []
