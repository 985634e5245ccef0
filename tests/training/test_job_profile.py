"""Profiles of similar jobs are near each other."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import nn

from onefold import meter
from onefold.training.job_profile import OperatorCounter, Profiler, operator_kind
from onefold.training.knob_memory import SimilarJobs
from onefold.training.knob_session import KnobSession
from onefold.training.knobs import TrainingContext
from onefold.training.splits import ArraySplit
from onefold.vocabulary.knobs import JobProfile, KnobMemory, KnobOptions
from onefold.vocabulary.records import Config, Epoch, Measurement


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


def trained_profile(model: nn.Module, rows: int, shape: tuple[int, ...]) -> JobProfile:
    """Return the profile of a session that trains a network on an array with `rows` rows."""
    split = ArraySplit((torch.rand(rows, *shape), torch.arange(rows) % 4))
    context = TrainingContext(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.device("cpu"), (0,))
    session = KnobSession(context, KnobOptions("recall"), meter=meter.choose("cpu"), machine="here")
    shuffle = torch.Generator().manual_seed(0)
    for inputs, labels in session.tuned(islice(split.batches(32, shuffle), 12)):
        context.optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        context.optimizer.step()
    profile = session.report(Epoch(0, 1, 0, {}, Measurement.nothing())).profile
    assert profile is not None
    return profile


def test_profiles_describe_the_network_and_not_the_array_that_it_is_trained_on() -> None:
    def perceptron() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.Tanh(), nn.Linear(64, 4))

    shape = (1, 12, 12)
    small, large = (trained_profile(convolutions(8), rows, shape) for rows in (2_000, 60_000))
    other = trained_profile(perceptron(), 60_000, shape)

    def recalls(known: JobProfile, new: JobProfile) -> bool:
        return SimilarJobs([KnobMemory("here", "time", False, known, Config(), 1.0, 1.0)]).find(new) is not None

    assert recalls(small, large)
    assert recalls(large, small)
    assert not recalls(large, other)
    assert not recalls(other, large)
    assert large.features["embedding_share"] == 0.0


def test_gathered_elements_count_but_not_those_of_their_source() -> None:
    table = torch.rand(10_000, 8)
    with OperatorCounter() as counter:
        table[torch.arange(5)] + 1.0
    assert counter.elements["embedding"] == 2 * 5 * 8
    assert sum(counter.elements.values()) < 200
