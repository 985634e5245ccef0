"""Microscope images with bounding boxes."""

from __future__ import annotations

import numpy as np

from onefold.datasets.data_files import DataFile, read_arrays
from onefold.datasets.images import standardize
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.workload import Data

BCCD = DataFile(
    "bccd.npz",
    {
        "images": "uint8 (N, 120, 160, 3)",
        "boxes": "float32 (N, 4)",
        "labels": "uint8 (N)",
        "image_index": "int32 (N)",
        "split": "uint8 (N)",
    },
    "github.com/Shenggan/BCCD_Dataset, images and boxes scaled to 160x120",
)
NO_BOX = -1.0


def bccd() -> Data:
    """Return BCCD: 364 blood smear images (205 train, 87 validation, 72 test) of red cells, white cells and platelets.

    Images are (N, 3, 120, 160) float32, standardized over the training split. Targets are (N, max_boxes, 5) float32:
    class (0, 1, 2), then x0, y0, x1, y1 relative to width and height; padding rows have class -1. The format depends on
    no detector, so that any grid can be trained on it and scored against it.
    """
    arrays = read_arrays(BCCD)
    index, split = arrays["image_index"], arrays["split"]
    height, width = arrays["images"].shape[1:3]
    if len(index) == 0 or index.min() < 0 or index.max() >= len(split):
        raise DatasetError(f"image_index in {BCCD.name} must lie between 0 and {len(split) - 1}")

    order = np.argsort(index, kind="stable")
    counts = np.bincount(index, minlength=len(split))
    row = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    targets = np.full((len(split), counts.max(), 5), NO_BOX, dtype=np.float32)
    targets[index[order], row, 0] = arrays["labels"][order]
    targets[index[order], row, 1:] = arrays["boxes"][order] / np.array([width, height] * 2, dtype=np.float32)

    splits = (np.flatnonzero(split == number) for number in range(3))
    return standardize(arrays["images"].transpose(0, 3, 1, 2), targets, *splits)
