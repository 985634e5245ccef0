"""Shares of the data: fixed, nested, balanced; and batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onefold.training.splits import ArraySplit, DatasetSplit, Loading, balanced_order, split_of
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
def test_a_share_has_the_proportions_of_the_classes(targets: list[int], share: float) -> None:
    chosen = members(split(targets).share(share))
    assert len(chosen) == max(1, round(share * len(targets)))
    for label in set(targets):
        expected = targets.count(label) * len(chosen) / len(targets)
        assert abs(sum(targets[i] == label for i in chosen) - expected) <= len(set(targets))


@given(targets=labels)
def test_the_order_is_a_fixed_permutation(targets: list[int]) -> None:
    order = balanced_order(torch.tensor(targets))
    assert sorted(order.tolist()) == list(range(len(targets)))
    assert torch.equal(order, balanced_order(torch.tensor(targets)))


@given(targets=st.lists(st.integers(0, 3), min_size=5, max_size=200))
def test_keeping_data_back_splits_without_overlap(targets: list[int]) -> None:
    rest, back = split(targets).parted(0.2)
    assert sorted(members(rest) + members(back)) == list(range(len(targets)))
    assert len(back) == max(1, round(0.2 * len(targets)))


def test_training_batches_are_shuffled_and_leave_out_a_last_single_sample() -> None:
    part = split([0] * 9)
    batches = list(part.batches(4, torch.Generator().manual_seed(1)))
    assert [len(batch[0]) for batch in batches] == [4, 4]
    assert members(part) == list(range(9))


SIZES = [(9, 4, [4, 4]), (10, 4, [4, 4, 2]), (3, 1, [1, 1, 1]), (1, 1, [1]), (1, 4, [1]), (4, 4, [4])]


@pytest.mark.parametrize(("samples", "size", "lengths"), SIZES)
def test_only_a_last_single_sample_after_larger_batches_is_left_out(
    samples: int, size: int, lengths: list[int]
) -> None:
    part = split([0] * samples)
    pairs = torch.utils.data.TensorDataset(*part.tensors)
    whole = [len(batch) for batch in torch.split(torch.arange(samples), size)]
    for one in (part, DatasetSplit(pairs, CPU)):
        shuffled = one.batches(size, torch.Generator().manual_seed(1))
        assert [len(batch[0]) for batch in shuffled] == lengths
        assert [len(batch[0]) for batch in one.batches(size)] == whole


def test_a_share_keeps_a_least_number() -> None:
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


def test_a_torch_dataset_is_shared_out_alike() -> None:
    part = split_of(Squares(), CPU, "train")
    assert isinstance(part, DatasetSplit)
    assert members(part) == list(range(30))
    third = part.share(1 / 3)
    assert [int(Squares.targets[i]) for i in sorted(members(third))].count(0) in (3, 4)
    rest, back = part.parted(0.2)
    assert sorted(members(rest) + members(back)) == list(range(30))
    shuffled = [int(i) for batch in part.batches(7, torch.Generator().manual_seed(0)) for i in batch[0]]
    assert sorted(shuffled) == list(range(30))


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ((np.zeros(3), np.zeros(4)), "equal lengths"),
        ((np.zeros(0), np.zeros(0)), "no samples"),
        (5, "tuple of arrays"),
        ((np.zeros(3),), "tuple of arrays"),
    ],
)
def test_odd_data_is_refused_with_the_rule(part: object, complaint: str) -> None:
    with pytest.raises(WorkloadError, match=complaint):
        split_of(part, CPU, "train")


class Places(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(place)]), place % 3


def test_the_batches_are_the_same_whoever_reads_them_also_when_that_changes_on_the_way() -> None:
    def read(workers: int, change: dict[int, int]) -> list[torch.Tensor]:
        loading = Loading(workers)
        part = DatasetSplit(Places(), CPU, loading=loading)
        read = []
        for place, (places, _) in enumerate(part.batches(6, torch.Generator().manual_seed(1))):
            read.append(places)
            loading.workers = change.get(place, loading.workers)
        return read

    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    alone = torch.cat(read(0, {}))
    assert sorted(alone.flatten().tolist()) == [float(i) for i in range(40)]
    assert torch.equal(torch.cat(read(1, {})), alone)
    assert torch.equal(torch.cat(read(0, {1: 2, 3: 0})), alone)
    assert torch.equal(torch.random.get_rng_state(), before), "nothing is drawn that the trial would draw"
