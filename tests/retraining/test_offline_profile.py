"""The profile of a model for later retrainings: measured without changing the model, and checked when it is read."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import KINDS

from onefold.retraining.identity import network_signature
from onefold.retraining.offline_profile import OfflineProfile, profile_offline, read_profile, shifted, write_profile
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.records import Config, to_json
from onefold.vocabulary.retraining import MemoryLesson, RetrainingPlan
from onefold.vocabulary.workload import Workload

PLENTY_S = 20.0  # for a busy machine; all epochs over the few samples are done before
LESSON = MemoryLesson("here", "this", RetrainingPlan(8), 10, 10, 0.5)


def test_a_network_is_profiled_and_stays_as_it_is() -> None:
    kind = KINDS["perceptron"]
    network = kind.network().eval()
    before = copy.deepcopy(network.state_dict())
    profile = profile_offline(network, kind.batch(64), Workload(), Config(), PLENTY_S)
    assert profile is not None
    assert len({lesson.plan for lesson in profile.lessons}) >= 2
    assert {lesson.model for lesson in profile.lessons} == {network_signature(network)}
    assert all(lesson.gain_per_s is not None for lesson in profile.lessons)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_without_time_or_samples_there_is_no_profile() -> None:
    kind = KINDS["perceptron"]
    assert profile_offline(kind.network(), kind.batch(64), Workload(), Config(), 1e-3) is None
    assert profile_offline(kind.network(), kind.batch(4), Workload(), Config(), PLENTY_S) is None


def test_inputs_are_shifted_but_tokens_are_not() -> None:
    values = torch.randn(100, 3)
    assert 0.1 < float((shifted(values) - values).abs().mean()) < 1.0
    tokens = torch.arange(10)
    assert torch.equal(shifted(tokens), tokens)


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    profile = OfflineProfile((LESSON, replace(LESSON, gain_per_s=None)))
    write_profile(profile, tmp_path / "profile.json")
    assert read_profile(tmp_path / "profile.json") == profile


@pytest.mark.parametrize(
    "changed",
    [
        {"measured_bytes": -5}, {"gain_per_s": float("nan")}, {"plan": replace(LESSON.plan, lr=0.0)},
        {"plan": replace(LESSON.plan, optimizer="lion")}, {"plan": replace(LESSON.plan, freeze_rate=2.0)},
    ],
)  # fmt: skip
def test_impossible_numbers_are_rejected(changed: dict[str, Any], tmp_path: Path) -> None:
    write_profile(OfflineProfile((replace(LESSON, **changed),)), tmp_path / "profile.json")
    with pytest.raises(ModelError, match="cannot be read"):
        read_profile(tmp_path / "profile.json")


def test_a_profile_of_a_later_version_is_ignored(tmp_path: Path) -> None:
    later = {**to_json(OfflineProfile((LESSON,))), "version": 2, "lessons": "in another form"}
    (tmp_path / "profile.json").write_text(json.dumps(later))
    assert read_profile(tmp_path / "profile.json").lessons == ()
