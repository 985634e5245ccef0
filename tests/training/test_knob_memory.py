"""Similar jobs are found by clustering profiles."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import DBSCAN, AgglomerativeClustering

from onefold.training.knob_memory import MAX_RADIUS, MIN_CONFIDENCE, SimilarJobs, open_clusterer
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
    jobs = SimilarJobs([memory(0.0, threads=1), memory(0.1, threads=1), memory(3.0, threads=2)], clusterer)
    near = jobs.find(profile(3.05))
    assert near is not None
    assert near.memory.knobs.threads == 2
    assert jobs.find(profile(1.5)) is None


def test_outliers_of_a_clusterer_are_clusters_of_one() -> None:
    jobs = SimilarJobs([memory(0.0, threads=1), memory(3.0, threads=2)], DBSCAN(eps=0.2, min_samples=5))
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


def test_a_clusterer_is_opened_by_its_name() -> None:
    assert open_clusterer("KMeans") is None
    assert isinstance(open_clusterer("DBSCAN"), DBSCAN)
    with pytest.raises(InputError, match="did you mean 'DBSCAN'"):
        open_clusterer("DBSCANN")
