"""BCCD: every box is in the targets exactly once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onefold import datasets
from onefold.vocabulary.errors import DatasetError

BOXES = {0: [(0, 16, 12, 32, 24)], 1: [], 2: [(2, 0, 0, 160, 120), (1, 80, 60, 120, 90)]}  # class, x0, y0, x1, y1


def write(folder: Path, index: list[int] | None = None) -> None:
    np.savez(
        folder / "bccd.npz",
        images=np.random.RandomState(0).randint(0, 256, (3, 120, 160, 3)).astype(np.uint8),
        boxes=np.array([box[1:] for boxes in BOXES.values() for box in boxes], dtype=np.float32),
        labels=np.array([box[0] for boxes in BOXES.values() for box in boxes], dtype=np.uint8),
        image_index=np.array(index or [image for image, boxes in BOXES.items() for _ in boxes], dtype=np.int32),
        split=np.array([1, 2, 0], dtype=np.uint8),
    )


def test_boxes_are_relative_to_the_image(data_folder: Path, cache: Path) -> None:
    write(data_folder)
    data = datasets.bccd()
    assert data.train[0].shape == (1, 3, 120, 160)
    np.testing.assert_allclose(data.train[1], [[[2, 0, 0, 1, 1], [1, 0.5, 0.5, 0.75, 0.75]]])
    np.testing.assert_allclose(data.validation[1], [[[0, 0.1, 0.1, 0.2, 0.2], [-1] * 5]])
    np.testing.assert_allclose(data.test[1], [[[-1] * 5, [-1] * 5]])
    assert data.train[1].dtype == np.float32


def test_boxes_may_be_in_any_order(data_folder: Path, cache: Path) -> None:
    write(data_folder, index=[2, 0, 2])
    data = datasets.bccd()
    np.testing.assert_allclose(data.train[1][0, :, 0], [0, 1])
    np.testing.assert_allclose(data.validation[1][0, :, 0], [2, -1])


def test_box_without_image_is_rejected(data_folder: Path, cache: Path) -> None:
    write(data_folder, index=[0, 1, 3])
    with pytest.raises(DatasetError, match=r"image_index in bccd.npz must lie between 0 and 2"):
        datasets.bccd()


def test_missing_file_error_names_the_origin(data_folder: Path, cache: Path) -> None:
    with pytest.raises(DatasetError, match=r"bccd.npz is missing: .*boxes: float32 \(N, 4\).*Shenggan/BCCD_Dataset"):
        datasets.bccd()


def test_real_file(real_file: Callable[[str], Path]) -> None:
    path = real_file("bccd.npz")
    data = datasets.bccd()
    parts = (data.train, data.validation, data.test)
    assert [images.shape for images, _ in parts] == [(205, 3, 120, 160), (87, 3, 120, 160), (72, 3, 120, 160)]
    kept = np.concatenate([targets[targets[..., 0] >= 0] for _, targets in parts])
    with np.load(path, allow_pickle=False) as real:
        assert np.bincount(kept[:, 0].astype(int)).tolist() == np.bincount(real["labels"]).tolist()
        np.testing.assert_allclose(
            np.sort(kept[:, 1:] * [160, 120, 160, 120], axis=0), np.sort(real["boxes"], axis=0), atol=1e-3
        )
