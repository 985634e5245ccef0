"""The reference set: stratified, bounded in size, and readable as data of a retraining."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from onefold.datasets import read_data
from onefold.training import reference_set
from onefold.training.reference_set import write_samples
from onefold.training.splits import ArraySplit, StreamSplit


def split(count: int = 2000, *shape: int) -> ArraySplit:
    targets = torch.arange(count) % 10
    return ArraySplit((targets.float().reshape(-1, *[1] * len(shape)).expand(count, *shape).clone(), targets))


def test_a_reference_set_is_stratified_and_bounded(tmp_path: Path) -> None:
    assert write_samples(split(2000, 3), tmp_path / "reference.npz") == reference_set.MAX_SAMPLES
    inputs, targets = read_data(tmp_path / "reference.npz").train
    labels = np.asarray(targets[:])
    assert np.bincount(labels).tolist() == [reference_set.MAX_SAMPLES // 10] * 10
    assert np.array_equal(inputs[:][:, 0], labels)


def test_large_samples_make_a_smaller_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_set, "MAX_BYTES", 5000)
    assert 2 < write_samples(split(100, 30), tmp_path / "reference.npz") < 45
    assert (tmp_path / "reference.npz").stat().st_size < 6000
    assert write_samples(split(100, 3000), tmp_path / "none.npz") == 0
    assert not (tmp_path / "none.npz").exists()


def test_several_inputs_are_kept_apart(tmp_path: Path) -> None:
    first, targets = split(50, 2).tensors
    write_samples(ArraySplit((first, -first, targets)), tmp_path / "reference.npz")
    one, other, _ = read_data(tmp_path / "reference.npz").train
    assert np.array_equal(one[:], -other[:])


def test_the_reference_set_of_a_stream_has_its_first_samples(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[tuple[torch.Tensor, int]]):
        def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
            for number in itertools.count():  # never ends
                yield torch.full((3,), float(number)), number % 10

    stream = StreamSplit(Stream(), torch.device("cpu"))
    assert write_samples(stream, tmp_path / "reference.npz") == reference_set.MAX_SAMPLES
    inputs, _ = read_data(tmp_path / "reference.npz").train
    assert inputs[:][:, 0].tolist() == list(range(reference_set.MAX_SAMPLES))
