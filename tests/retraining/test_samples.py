"""Splitting and batching of new data."""

from __future__ import annotations

from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onefold.datasets.rows import Rows
from onefold.retraining.samples import (
    MIN_SAMPLES,
    VALIDATION_SHARE,
    BatchOrder,
    NewData,
    Samples,
    split_new_data,
    split_reference,
)
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.workload import Data

CPU = torch.device("cpu")


def of(inputs: Any, targets: Any) -> NewData:
    return split_new_data(Data(train=(inputs, targets)), CPU)


def numbered(targets: np.ndarray) -> NewData:
    """Return samples whose input is their index."""
    return of(np.arange(len(targets), dtype=np.float32)[:, None], targets)


@given(counts=st.lists(st.integers(1, 60), min_size=1, max_size=6).filter(lambda counts: sum(counts) >= MIN_SAMPLES))
def test_each_class_of_a_reference_set_is_judged_and_replayed(counts: list[int]) -> None:
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    reference = split_reference(Data((np.arange(len(targets), dtype=np.float32)[:, None], targets)), CPU)
    judged, replayed = (Counter(targets[part.rows].tolist()) for part in (reference.judged, reference.replayed))
    assert sorted([*reference.judged.rows, *reference.replayed.rows]) == list(range(len(targets)))
    assert all(judged[label] - replayed[label] in (0, 1) for label in range(len(counts)))


@given(counts=st.lists(st.integers(1, 60), min_size=1, max_size=6).filter(lambda counts: sum(counts) >= MIN_SAMPLES))
def test_the_validation_split_is_stratified(counts: list[int]) -> None:
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    data = numbered(targets)
    back = round(VALIDATION_SHARE * len(targets))
    assert len(data.validation) == back
    assert len(data.train) == len(targets) - back
    assert sorted([*data.train.rows, *data.validation.rows]) == list(range(len(targets)))  # each sample in one part
    kept = Counter(targets[data.validation.rows].tolist())
    for label, count in enumerate(counts):
        assert (
            abs(kept[label] - VALIDATION_SHARE * count) <= (len(counts) + 1) / 2
        )  # small classes cannot be split exactly


@given(
    labels=st.lists(st.integers(0, 3), min_size=MIN_SAMPLES, max_size=80),
    share=st.integers(1, 80),
)
def test_every_prefix_is_stratified(labels: list[int], share: int) -> None:
    targets = np.array(labels)
    whole = split_new_data(Data(train=(targets[:, None], targets), validation=(targets[:, None], targets)), CPU).train
    first = whole.first(share)
    assert len(first) == min(share, len(labels))
    result = Counter(targets[first.rows].tolist())
    for label, count in Counter(labels).items():
        assert abs(result[label] - len(first) * count / len(labels)) <= 2.5


def test_the_order_is_always_the_same() -> None:
    targets = np.random.default_rng(1).integers(0, 4, 100)
    one, other = numbered(targets), numbered(targets.copy())
    assert np.array_equal(one.train.rows, other.train.rows)
    assert np.array_equal(one.validation.rows, other.validation.rows)
    first, again, different = (BatchOrder(one.train, seed).take(30) for seed in (7, 7, 8))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, different)


@given(count=st.integers(2, 90), sizes=st.lists(st.integers(2, 40), min_size=1, max_size=4))
def test_every_sample_comes_once_per_epoch_for_any_batch_size(count: int, sizes: list[int]) -> None:
    numbers = np.arange(count)
    order, wanted = BatchOrder(Samples((numbers, numbers), numbers, CPU), 0), cycle(sizes)  # plans change on the way
    passes = []
    for _ in range(2):
        passed: list[int] = []
        while len(passed) < count - 1:  # a last one alone is left out
            size = next(wanted)
            result = order.take(size)
            assert 2 <= len(result) <= size
            passed += result.tolist()
        assert len(passed) == len(set(passed))
        assert set(passed) <= set(range(count))
        passes.append(passed)
    assert count < 10 or passes[0] != passes[1]


def test_a_given_validation_split_is_used() -> None:
    inputs, targets = np.random.rand(20, 3), np.arange(20) % 2
    data = split_new_data(Data(train=(inputs, targets), validation=(inputs[:6], targets[:6])), CPU)
    assert len(data.train) == 20
    assert len(data.validation) == 6


def test_regression_targets_are_split() -> None:
    data = of(np.random.rand(50, 2), np.random.rand(50))
    assert len(data.validation) == 10
    assert set(data.validation.rows).isdisjoint(data.train.rows)
    many = of(np.random.rand(50, 2), np.random.randint(0, 2, (50, 7)))
    assert many.train.batch(slice(0, 3))[1].shape == (3, 7)


def test_batches_cover_all_samples_in_order() -> None:
    data = numbered(np.arange(23) % 3)
    batches = list(data.train.batches(5))
    assert [len(targets) for _, targets in batches] == [5, 5, 5, 3]
    numbers = torch.cat([inputs for inputs, _ in batches])[:, 0].long()
    assert numbers.tolist() == data.train.rows.tolist()
    assert torch.equal(torch.cat([targets for _, targets in batches]), numbers % 3)
    places = np.array([4, 0, 2])
    assert data.train.batch(places)[0][:, 0].tolist() == data.train.rows[places].tolist()


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"])
def test_integers_become_int64(kind: str) -> None:
    data = of(np.random.rand(10, 2).astype(np.float32), np.arange(10).astype(kind) % 2)
    assert data.train.batch(slice(0, 2))[1].dtype == torch.int64


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_floats_become_float32(kind: str) -> None:
    data = of(np.random.rand(10, 2).astype(kind), np.random.rand(10).astype(kind))
    assert [part.dtype for part in data.train.batch(slice(0, 2))] == [torch.float32, torch.float32]


def test_tensors_and_several_inputs() -> None:
    data = split_new_data(Data(train=(torch.rand(10, 2), np.arange(10), torch.arange(10) % 2)), CPU)
    one, other, targets = data.train.batch(slice(0, 3))
    assert one.shape == (3, 2)
    assert torch.equal(other % 2, targets)


def test_images_can_be_channels_last() -> None:
    data = of(np.random.rand(10, 3, 4, 5), np.arange(10) % 2)
    plain, (images, targets) = data.train.batch(slice(0, 4)), data.with_channels_last().train.batch(slice(0, 4))
    assert torch.equal(images, plain[0])
    assert torch.equal(targets, plain[1])
    assert images.is_contiguous(memory_format=torch.channels_last)
    (shared, _), *_ = data.with_channels_last().validation.first(2).batches(2)
    assert shared.is_contiguous(memory_format=torch.channels_last)


def test_rows_of_files_are_read_lazily(tmp_path: Path) -> None:
    inputs, targets = np.random.rand(40, 3, 4), (np.arange(40) % 4).astype(np.int32)
    np.save(tmp_path / "x.npy", inputs)
    np.save(tmp_path / "y.npy", targets)
    data = of(Rows(tmp_path / "x.npy"), Rows(tmp_path / "y.npy"))
    there = of(inputs, targets)
    for item, other in ((data.train, there.train), (data.validation, there.validation)):
        assert np.array_equal(item.rows, other.rows)
        for mine, same in zip(item.batches(7), other.batches(7)):
            assert all(torch.equal(a, b) for a, b in zip(mine, same))


@pytest.mark.parametrize("train", [np.zeros((9, 2)), (np.zeros((9, 2)),), torch.zeros(9, 2)])
def test_a_single_array_has_no_labels(train: Any) -> None:
    data = split_new_data(Data(train), CPU)
    assert not data.has_labels
    assert numbered(np.zeros(9, np.int64)).has_labels
    inputs, targets = data.train.batch(slice(0, 3))
    assert inputs.shape == (3, 2)
    assert targets.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ((np.zeros((9, 2)), np.zeros(8)), "equal, non-zero"),
        ((np.zeros((0, 2)), np.zeros(0)), "equal, non-zero"),
        (np.zeros(9), "inputs first"),
        (([1, 2, 3], [0, 1, 0]), "inputs first"),
        ("train.npz", "inputs first"),
        (None, "inputs first"),
        ((np.zeros((4, 2)), np.zeros(4)), "at least 5 samples.*got 4"),
    ],
)
def test_malformed_data_is_rejected(train: Any, said: str) -> None:
    with pytest.raises(DatasetError, match=said) as error:
        split_new_data(Data(train=train), CPU)
    assert "\n" not in str(error.value)


def test_a_malformed_validation_split_is_rejected() -> None:
    good = (np.zeros((9, 2)), np.zeros(9))
    with pytest.raises(DatasetError, match="equal, non-zero"):
        split_new_data(Data(train=good, validation=(np.zeros((3, 2)), np.zeros(2))), CPU)


def test_a_prefix_of_a_split_is_a_subset() -> None:
    data = numbered(np.arange(50) % 5)
    part = data.validation.first(4)
    assert isinstance(part, Samples)
    assert len(part) == 4
    assert set(part.rows) <= set(data.validation.rows)


# Regressions


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_samples_are_rejected_with_a_validation_split_too(count: int) -> None:
    part = (np.zeros((9, 2)), np.zeros(9))
    with pytest.raises(DatasetError, match="samples"):
        split_new_data(Data(train=(part[0][:count], part[1][:count]), validation=part), CPU)


def test_tensor_types_are_converted() -> None:
    data = of(torch.rand(10, 2, dtype=torch.float64), torch.arange(10, dtype=torch.int32) % 2)
    assert [part.dtype for part in data.train.batch(slice(0, 2))] == [torch.float32, torch.int64]


def test_a_scalar_target_is_rejected() -> None:
    with pytest.raises(DatasetError):
        of(np.zeros((9, 2)), np.array(3))
