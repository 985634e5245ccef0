"""Resampling of images: resizing, zooming, warping.

Linear resizing is separable, so it is two products with small matrices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.baselines.corruptions.corruption import Planes

Weights = NDArray[Any]  # (new, old): contribution of each old pixel of a line to each new one


def linear(positions: NDArray[Any], size: int) -> Weights:
    """Return the weights of linear interpolation of `size` pixels at these positions; edge pixels are repeated."""
    inside = np.clip(positions, 0, size - 1)
    left = np.floor(inside).astype(np.intp)
    right = np.minimum(left + 1, size - 1)
    weights = np.zeros((len(inside), size), dtype=np.float32)
    lines = np.arange(len(inside))
    weights[lines, left] += 1 - (inside - left)
    weights[lines, right] += inside - left
    return weights


def stretched(new: int, old: int) -> Weights:
    """Return the weights of linear upsampling."""
    return linear((np.arange(new) + 0.5) * old / new - 0.5, old)


def repeated(new: int, old: int) -> Weights:
    """Return the weights of nearest-neighbor upsampling."""
    weights: Weights = np.eye(old, dtype=np.float32)[((np.arange(new) + 0.5) * old / new).astype(np.intp)]
    return weights


def areas(new: int, old: int) -> Weights:
    """Return the weights of area downsampling."""
    edges = np.arange(new + 1)[:, None] * old / new
    pixels = np.arange(old)
    covered = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
    weights: Weights = (np.maximum(covered, 0) * new / old).astype(np.float32)
    return weights


def resampled(planes: Planes, rows: Weights, columns: Weights) -> Planes:
    """Resample images (…, height, width) with weights for rows and columns."""
    resized: Planes = rows @ (planes @ columns.T)
    return resized


def magnified(planes: Planes, factor: float) -> Planes:
    """Zoom into the center of images, keeping their size."""

    def weights(size: int) -> Weights:
        middle = (size - 1) / 2
        return linear((np.arange(size) - middle) / factor + middle, size)

    return resampled(planes, weights(planes.shape[-2]), weights(planes.shape[-1]))


def read_at(planes: Planes, rows: NDArray[Any], columns: NDArray[Any]) -> Planes:
    """Sample each image at its own positions (N, height, width) bilinearly; outside, images are mirrored."""
    count, channels, height, width = planes.shape
    flat = planes.reshape(count, channels, height * width)
    row, column = _mirrored(rows, height), _mirrored(columns, width)
    top, left = np.floor(row).astype(np.intp), np.floor(column).astype(np.intp)
    below, aside = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    down, right = (row - top).astype(np.float32), (column - left).astype(np.float32)

    def corner(row: NDArray[np.intp], column: NDArray[np.intp], weight: NDArray[Any]) -> Planes:
        sampled = np.take_along_axis(flat, (row * width + column).reshape(count, 1, -1), axis=2)
        weighted: Planes = sampled * weight.reshape(count, 1, -1)
        return weighted

    read = corner(top, left, (1 - down) * (1 - right)) + corner(top, aside, (1 - down) * right)
    read += corner(below, left, down * (1 - right)) + corner(below, aside, down * right)
    return read.reshape(planes.shape)


def _mirrored(positions: NDArray[Any], size: int) -> NDArray[Any]:
    last = size - 1
    if last == 0:
        return np.zeros_like(positions)
    mirrored: NDArray[Any] = np.abs((positions + last) % (2 * last) - last)
    return mirrored
