"""The new data in two parts: what is learned from, and what is kept back."""

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
from onefold.retraining.samples import FEWEST, KEPT_BACK, BatchOrder, NewData, Samples, split_new_data
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.workload import Data

CPU = torch.device("cpu")


def of(inputs: Any, targets: Any) -> NewData:
    return split_new_data(Data(train=(inputs, targets)), CPU)


def numbered(targets: np.ndarray) -> NewData:
    """Samples that are their own numbers."""
    return of(np.arange(len(targets), dtype=np.float32)[:, None], targets)


@given(counts=st.lists(st.integers(1, 60), min_size=1, max_size=6).filter(lambda counts: sum(counts) >= FEWEST))
def test_what_is_kept_back_has_the_proportions_of_the_classes(counts: list[int]) -> None:
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    data = numbered(targets)
    back = round(KEPT_BACK * len(targets))
    assert len(data.validation) == back
    assert len(data.train) == len(targets) - back
    assert sorted([*data.train.rows, *data.validation.rows]) == list(range(len(targets)))  # each sample in one part
    kept = Counter(targets[data.validation.rows].tolist())
    for label, count in enumerate(counts):
        assert abs(kept[label] - KEPT_BACK * count) <= (len(counts) + 1) / 2  # small classes cannot be parted finely


@given(
    labels=st.lists(st.integers(0, 3), min_size=FEWEST, max_size=80),
    share=st.integers(1, 80),
)
def test_every_beginning_of_a_part_has_the_proportions_of_the_whole(labels: list[int], share: int) -> None:
    targets = np.array(labels)
    whole = split_new_data(Data(train=(targets[:, None], targets), validation=(targets[:, None], targets)), CPU).train
    first = whole.share(share)
    assert len(first) == min(share, len(labels))
    found = Counter(targets[first.rows].tolist())
    for label, count in Counter(labels).items():
        assert abs(found[label] - len(first) * count / len(labels)) <= 2.5


def test_the_order_is_always_the_same() -> None:
    targets = np.random.default_rng(1).integers(0, 4, 100)
    one, other = numbered(targets), numbered(targets.copy())
    assert np.array_equal(one.train.rows, other.train.rows)
    assert np.array_equal(one.validation.rows, other.validation.rows)
    first, again, different = (BatchOrder(one.train, seed).following(30) for seed in (7, 7, 8))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, different)


@given(count=st.integers(2, 90), sizes=st.lists(st.integers(2, 40), min_size=1, max_size=4))
def test_every_sample_comes_once_in_each_pass_however_many_are_taken_at_once(count: int, sizes: list[int]) -> None:
    numbers = np.arange(count)
    order, wanted = BatchOrder(Samples((numbers, numbers), numbers, CPU), 0), cycle(sizes)  # plans change on the way
    passes = []
    for _ in range(2):
        passed: list[int] = []
        while len(passed) < count - 1:  # a last one alone is left out
            size = next(wanted)
            found = order.following(size)
            assert 2 <= len(found) <= size
            passed += found.tolist()
        assert len(passed) == len(set(passed))
        assert set(passed) <= set(range(count))
        passes.append(passed)
    assert count < 10 or passes[0] != passes[1]


def test_data_that_come_with_a_validation_part_are_not_parted() -> None:
    inputs, targets = np.random.rand(20, 3), np.arange(20) % 2
    data = split_new_data(Data(train=(inputs, targets), validation=(inputs[:6], targets[:6])), CPU)
    assert len(data.train) == 20
    assert len(data.validation) == 6


def test_numbers_to_be_predicted_are_parted_too() -> None:
    data = of(np.random.rand(50, 2), np.random.rand(50))
    assert len(data.validation) == 10
    assert set(data.validation.rows).isdisjoint(data.train.rows)
    many = of(np.random.rand(50, 2), np.random.randint(0, 2, (50, 7)))
    assert many.train.batch(slice(0, 3))[1].shape == (3, 7)


def test_batches_are_all_samples_as_they_stand_and_belong_together() -> None:
    data = numbered(np.arange(23) % 3)
    batches = list(data.train.batches(5))
    assert [len(targets) for _, targets in batches] == [5, 5, 5, 3]
    numbers = torch.cat([inputs for inputs, _ in batches])[:, 0].long()
    assert numbers.tolist() == data.train.rows.tolist()
    assert torch.equal(torch.cat([targets for _, targets in batches]), numbers % 3)
    places = np.array([4, 0, 2])
    assert data.train.batch(places)[0][:, 0].tolist() == data.train.rows[places].tolist()


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"])
def test_whole_numbers_become_long_ones(kind: str) -> None:
    data = of(np.random.rand(10, 2).astype(np.float32), np.arange(10).astype(kind) % 2)
    assert data.train.batch(slice(0, 2))[1].dtype == torch.int64


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_broken_numbers_become_single_ones(kind: str) -> None:
    data = of(np.random.rand(10, 2).astype(kind), np.random.rand(10).astype(kind))
    assert [part.dtype for part in data.train.batch(slice(0, 2))] == [torch.float32, torch.float32]


def test_tensors_and_several_inputs_are_taken_as_well() -> None:
    data = split_new_data(Data(train=(torch.rand(10, 2), np.arange(10), torch.arange(10) % 2)), CPU)
    one, other, targets = data.train.batch(slice(0, 3))
    assert one.shape == (3, 2)
    assert torch.equal(other % 2, targets)


def test_pictures_can_be_laid_out_channels_last() -> None:
    data = of(np.random.rand(10, 3, 4, 5), np.arange(10) % 2)
    plain, (pictures, targets) = data.train.batch(slice(0, 4)), data.with_channels_last().train.batch(slice(0, 4))
    assert torch.equal(pictures, plain[0])
    assert torch.equal(targets, plain[1])
    assert pictures.is_contiguous(memory_format=torch.channels_last)
    (shared, _), *_ = data.with_channels_last().validation.share(2).batches(2)
    assert shared.is_contiguous(memory_format=torch.channels_last)


def test_rows_of_files_are_read_as_they_are_needed(tmp_path: Path) -> None:
    inputs, targets = np.random.rand(40, 3, 4), (np.arange(40) % 4).astype(np.int32)
    np.save(tmp_path / "x.npy", inputs)
    np.save(tmp_path / "y.npy", targets)
    data = of(Rows(tmp_path / "x.npy"), Rows(tmp_path / "y.npy"))
    there = of(inputs, targets)
    for one, other in ((data.train, there.train), (data.validation, there.validation)):
        assert np.array_equal(one.rows, other.rows)
        for mine, same in zip(one.batches(7), other.batches(7)):
            assert all(torch.equal(a, b) for a, b in zip(mine, same))


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ((np.zeros((9, 2)), np.zeros(8)), "equally many"),
        ((np.zeros((0, 2)), np.zeros(0)), "not none"),
        ((np.zeros((9, 2)),), "inputs first"),
        (np.zeros((9, 2)), "inputs first"),
        (([1, 2, 3], [0, 1, 0]), "inputs first"),
        ("train.npz", "inputs first"),
        (None, "inputs first"),
        (torch.utils.data.TensorDataset(torch.zeros(9, 2), torch.zeros(9)), "inputs first"),
        ((np.zeros((4, 2)), np.zeros(4)), "5 samples at least.*has 4"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_in_a_sentence(train: Any, said: str) -> None:
    with pytest.raises(DatasetError, match=said) as error:
        split_new_data(Data(train=train), CPU)
    assert "\n" not in str(error.value)


def test_a_wrong_validation_part_is_refused_too() -> None:
    good = (np.zeros((9, 2)), np.zeros(9))
    with pytest.raises(DatasetError, match="equally many"):
        split_new_data(Data(train=good, validation=(np.zeros((3, 2)), np.zeros(2))), CPU)


def test_a_share_of_a_part_is_of_that_part() -> None:
    data = numbered(np.arange(50) % 5)
    part = data.validation.share(4)
    assert isinstance(part, Samples)
    assert len(part) == 4
    assert set(part.rows) <= set(data.validation.rows)


# What is wrong


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_samples_to_learn_from_are_refused_beside_a_validation_part_too(count: int) -> None:
    part = (np.zeros((9, 2)), np.zeros(9))
    with pytest.raises(DatasetError, match="samples"):
        split_new_data(Data(train=(part[0][:count], part[1][:count]), validation=part), CPU)


def test_tensors_of_other_kinds_become_what_networks_take() -> None:
    data = of(torch.rand(10, 2, dtype=torch.float64), torch.arange(10, dtype=torch.int32) % 2)
    assert [part.dtype for part in data.train.batch(slice(0, 2))] == [torch.float32, torch.int64]


def test_a_number_in_the_place_of_targets_is_refused() -> None:
    with pytest.raises(DatasetError):
        of(np.zeros((9, 2)), np.array(3))
