from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import DBSCAN, AgglomerativeClustering

from onefold.training.knob_memory import ENOUGH, REACH, Recall, clusterer
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.knobs import Profile, Remembered
from onefold.vocabulary.records import Config


def profile(*features: float) -> Profile:
    return Profile({f"f{i}": value for i, value in enumerate(features)}, ("operators",))


def job(*features: float, threads: int = 1) -> Remembered:
    return Remembered("here", "time", False, profile(*features), Config(threads=threads), 2.0, 1.0)


def test_nothing_is_like_anything_before_something_is_known():
    assert Recall([]).like(profile(0.5)) is None


def test_the_same_job_is_known_for_sure():
    like = Recall([job(0.1, 0.9, threads=2), job(3.0, 2.0)]).like(profile(0.1, 0.9))
    assert like is not None
    assert like.remembered.knobs.threads == 2
    assert like.confidence == pytest.approx(1.0)


def test_what_is_far_from_every_group_is_not_known():
    known = [job(0.0, 0.0), job(0.05, 0.0), job(2.0, 2.0)]
    assert Recall(known).like(profile(0.0, 1.0)) is None
    assert Recall(known).like(profile(2.0, 2.0 + 3 * REACH)) is None


def test_the_nearest_of_a_group_lends_its_knobs():
    like = Recall([job(0.0, threads=1), job(0.2, threads=2), job(5.0, threads=4)]).like(profile(0.18))
    assert like is not None
    assert like.remembered.knobs.threads == 2


def test_a_profile_that_is_made_of_other_things_is_not_compared():
    assert Recall([job(0.0, 0.0)]).like(profile(0.0)) is None


@pytest.mark.parametrize("clusterer", [DBSCAN(eps=0.2, min_samples=1), AgglomerativeClustering(2)])
def test_any_clusterer_of_scikit_learn_will_do(clusterer):
    recall = Recall([job(0.0, threads=1), job(0.1, threads=1), job(3.0, threads=2)], clusterer)
    near = recall.like(profile(3.05))
    assert near is not None
    assert near.remembered.knobs.threads == 2
    assert recall.like(profile(1.5)) is None


def test_points_that_a_clusterer_leaves_alone_are_groups_of_their_own():
    recall = Recall([job(0.0, threads=1), job(3.0, threads=2)], DBSCAN(eps=0.2, min_samples=5))
    like = recall.like(profile(3.0))
    assert like is not None
    assert like.remembered.knobs.threads == 2


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8), st.floats(-2, 12))
def test_confidence_is_a_share_and_falls_with_distance(places, at):
    like = Recall([job(place) for place in places]).like(profile(at))
    nearest = min(abs(place - at) for place in places)
    if nearest > 3 * REACH:
        assert like is None
    if like is not None:
        assert ENOUGH <= like.confidence <= 1.0
    assert Recall([job(at)]).like(profile(at)) is not None


def test_a_clusterer_is_known_by_its_name():
    assert clusterer("KMeans") is None
    assert isinstance(clusterer("DBSCAN"), DBSCAN)
    with pytest.raises(InputError, match="did you mean 'DBSCAN'"):
        clusterer("DBSCANN")
