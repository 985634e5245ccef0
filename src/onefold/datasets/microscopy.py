"""Pictures of many things each, with a box around every one."""

from __future__ import annotations

import numpy as np

from onefold.datasets.folder import Source, read_arrays
from onefold.datasets.images import standardised
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.workload import Data

BCCD = Source(
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
    """364 pictures of blood, 205 to train, 87 to validate and 72 to test, with red cells, white cells and platelets.

    Pictures are (N, 3, 120, 160) float32, standardised over the training part. Targets are (N, most, 5) float32: for
    each box its class (0, 1, 2) and x0, y0, x1, y1 as shares of width and height; the rows left over have class -1. So
    no box is lost, and a detector of any grid can learn from them and be scored against them.
    """
    arrays = read_arrays(BCCD)
    index, split = arrays["image_index"], arrays["split"]
    height, width = arrays["images"].shape[1:3]
    if len(index) == 0 or index.min() < 0 or index.max() >= len(split):
        raise DatasetError(f"image_index in {BCCD.file} must lie between 0 and {len(split) - 1}")

    order = np.argsort(index, kind="stable")
    counts = np.bincount(index, minlength=len(split))
    row = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    targets = np.full((len(split), counts.max(), 5), NO_BOX, dtype=np.float32)
    targets[index[order], row, 0] = arrays["labels"][order]
    targets[index[order], row, 1:] = arrays["boxes"][order] / np.array([width, height] * 2, dtype=np.float32)

    parts = (np.flatnonzero(split == part) for part in range(3))
    return standardised(arrays["images"].transpose(0, 3, 1, 2), targets, *parts)
