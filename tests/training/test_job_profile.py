"""Profiles of similar jobs are near each other."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onefold.training.job_profile import Profiler, operator_kind
from onefold.vocabulary.knobs import JobProfile


def profile_of(model: nn.Module, *shape: int) -> JobProfile:
    inputs = torch.rand(*shape)
    profiler = Profiler()
    with profiler.operators():
        model(inputs).sum().backward()
    with profiler.steps(lambda: 3):
        for _ in range(3):
            model(inputs).sum().backward()
    return profiler.profile


def distance(one: JobProfile, other: JobProfile) -> float:
    return sum((one.features[name] - other.features[name]) ** 2 for name in one.features) ** 0.5


def convolutions(width: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(4))


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("aten.convolution_backward.default", "convolution"),
        ("aten.addmm.default", "matrix"),
        ("aten.mkldnn_rnn_layer.default", "recurrent"),
        ("aten.native_batch_norm.default", "norm"),
        ("aten.embedding_dense_backward.default", "embedding"),
        ("aten.max_pool2d_with_indices.default", "pool"),
        ("aten._log_softmax.default", "reduction"),
        ("aten.relu.default", "elementwise"),
    ],
)
def test_operators_have_kinds(operator: str, kind: str) -> None:
    assert operator_kind(operator) == kind


def test_a_profile_names_its_sources_and_contains_numbers_only() -> None:
    profile = profile_of(convolutions(4), 8, 1, 12, 12)
    assert profile.made_of[:2] == ("operators", "process")
    assert all(isinstance(value, float) for value in profile.features.values())
    shares = [value for name, value in profile.features.items() if name.endswith("_share") and name != "system_share"]
    assert sum(shares) == pytest.approx(1.0)
    assert profile.features["convolution_share"] > 0
    assert profile.features["log_flops"] > 0


def test_similar_jobs_have_similar_profiles() -> None:
    one, twin = (profile_of(convolutions(8), 16, 1, 16, 16) for _ in range(2))
    near = profile_of(convolutions(10), 16, 1, 16, 16)
    far = profile_of(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 4)), 16, 64)
    assert distance(one, near) < distance(one, far) / 2
    assert distance(one, twin) < distance(one, far) / 2
