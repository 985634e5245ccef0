"""Subsets of the data are fixed, nested and stratified; batches are the same whichever process loads them."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onefold import Data
from onefold.testing.toy import Spirals
from onefold.training.splits import (
    ArraySplit,
    DatasetSplit,
    LoaderSettings,
    StreamSplit,
    open_split,
    open_splits,
    stratified_order,
)
from onefold.vocabulary.errors import WorkloadError

CPU = torch.device("cpu")
labels = st.lists(st.integers(0, 4), min_size=2, max_size=300)


def split(targets: list[int]) -> ArraySplit:
    return ArraySplit((torch.arange(len(targets)), torch.tensor(targets)))


def members(part: ArraySplit | DatasetSplit) -> list[int]:
    return [int(i) for batch in part.batches(7) for i in batch[0]]


@given(targets=labels, shares=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)))
def test_the_larger_share_contains_the_smaller(targets: list[int], shares: tuple[float, float]) -> None:
    small, large = (set(members(split(targets).share(share))) for share in sorted(shares))
    assert small <= large


@given(targets=labels, share=st.floats(0.01, 1))
def test_a_share_is_stratified(targets: list[int], share: float) -> None:
    chosen = members(split(targets).share(share))
    assert len(chosen) == max(1, round(share * len(targets)))
    for label in set(targets):
        expected = targets.count(label) * len(chosen) / len(targets)
        assert abs(sum(targets[i] == label for i in chosen) - expected) <= len(set(targets))


@given(targets=labels)
def test_the_order_is_a_fixed_permutation(targets: list[int]) -> None:
    order = stratified_order(torch.tensor(targets))
    assert sorted(order.tolist()) == list(range(len(targets)))
    assert torch.equal(order, stratified_order(torch.tensor(targets)))


@given(targets=st.lists(st.integers(0, 3), min_size=5, max_size=200))
def test_holding_out_splits_without_overlap(targets: list[int]) -> None:
    rest, held_out = split(targets).hold_out(0.2)
    assert sorted(members(rest) + members(held_out)) == list(range(len(targets)))
    assert len(held_out) == max(1, round(0.2 * len(targets)))


def test_training_batches_are_shuffled_and_drop_a_last_single_sample() -> None:
    part = split([0] * 9)
    batches = list(part.batches(4, torch.Generator().manual_seed(1)))
    assert [len(batch[0]) for batch in batches] == [4, 4]
    assert members(part) == list(range(9))


SIZES = [(9, 4, [4, 4]), (10, 4, [4, 4, 2]), (3, 1, [1, 1, 1]), (1, 1, [1]), (1, 4, [1]), (4, 4, [4])]


@pytest.mark.parametrize(("samples", "size", "lengths"), SIZES)
def test_only_a_last_single_sample_after_larger_batches_is_dropped(samples: int, size: int, lengths: list[int]) -> None:
    part = split([0] * samples)
    pairs = torch.utils.data.TensorDataset(*part.tensors)
    in_order = [len(batch) for batch in torch.split(torch.arange(samples), size)]
    for either in (part, DatasetSplit(pairs, CPU)):
        shuffled = either.batches(size, torch.Generator().manual_seed(1))
        assert [len(batch[0]) for batch in shuffled] == lengths
        assert [len(batch[0]) for batch in either.batches(size)] == in_order


def test_a_share_has_a_minimum_size() -> None:
    assert len(split([0] * 50).share(0.1, at_least=20)) == 20
    assert len(split([0] * 50).share(0.1, at_least=1000)) == 50


class Squares(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    targets = torch.arange(30) % 3

    def __len__(self) -> int:
        return 30

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        if i >= 30:
            raise IndexError
        return torch.tensor(i), self.targets[i]


def test_a_torch_dataset_is_split_like_arrays() -> None:
    part = open_split(Squares(), CPU, "train")
    assert isinstance(part, DatasetSplit)
    assert members(part) == list(range(30))
    third = part.share(1 / 3)
    assert [int(Squares.targets[i]) for i in sorted(members(third))].count(0) in (3, 4)
    rest, held_out = part.hold_out(0.2)
    assert sorted(members(rest) + members(held_out)) == list(range(30))
    shuffled = [int(i) for batch in part.batches(7, torch.Generator().manual_seed(0)) for i in batch[0]]
    assert sorted(shuffled) == list(range(30))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ((np.zeros(3), np.zeros(4)), "equal lengths"),
        ((np.zeros(0), np.zeros(0)), "no samples"),
        (5, "tuple of arrays"),
        ((np.zeros(3),), "tuple of arrays"),
    ],
)
def test_invalid_data_is_refused(part: object, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        open_split(part, CPU, "train")


class Numbers(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index)]), index % 3


def test_batches_do_not_depend_on_the_number_of_loader_workers() -> None:
    def load(workers: int, changes: dict[int, int]) -> torch.Tensor:
        loader = LoaderSettings(workers)
        loaded = []
        split = DatasetSplit(Numbers(), CPU, loader=loader)
        for number, (numbers, _) in enumerate(split.batches(6, torch.Generator().manual_seed(1))):
            loaded.append(numbers)
            loader.workers = changes.get(number, loader.workers)
        return torch.cat(loaded)

    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    expected = load(0, {})
    assert sorted(expected.flatten().tolist()) == [float(i) for i in range(24)]
    assert torch.equal(load(0, {0: 1, 2: 0}), expected)
    assert torch.equal(torch.random.get_rng_state(), before), "the random numbers of the trial are untouched"


class Stream(torch.utils.data.IterableDataset):
    """Samples with their positions."""

    def __init__(self, count: int = 100) -> None:
        self.count = count

    def __iter__(self):
        return iter((torch.tensor([float(position)]), position % 2) for position in range(self.count))


def test_a_stream_is_split_into_batches_and_nested_shares() -> None:
    split = open_split(Stream(), torch.device("cpu"), "train")
    assert isinstance(split, StreamSplit)
    batches = list(split.batches(32, torch.Generator()))
    assert [len(labels) for _, labels in batches] == [32, 32, 32, 4]
    shares = [
        {int(value) for values, _ in split.share(fraction).batches(10) for value in values}
        for fraction in (0.1, 0.3, 1.0)
    ]
    assert shares[0] < shares[1] < shares[2] == set(range(100))
    assert [len(share) for share in shares[:2]] == pytest.approx([10, 30], abs=2)
    assert len({int(v) for values, _ in split.share(0.01, at_least=20).batches(10) for v in values}) >= 20


def test_a_stream_needs_validation_data() -> None:
    class Streamed(Spirals):
        def data(self) -> Data:
            return Data(train=Stream())

    with pytest.raises(WorkloadError, match="give a validation part"):
        open_splits(Streamed(), torch.device("cpu"))


Pair = namedtuple("Pair", "values labels")


@pytest.mark.parametrize("kind", [dict, Pair])
def test_batches_of_a_dataset_keep_their_type(kind: type) -> None:
    class Items(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            return kind(values=torch.zeros(3), labels=index)

    split = open_split(Items(), torch.device("cpu"), "train")
    batch = next(split.batches(4))
    assert type(batch) is kind
    assert (batch["values"] if kind is dict else batch.values).shape == (4, 3)
