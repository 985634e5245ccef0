"""Blur."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from onefold.baselines.corruptions.corruption import Corruption, Planes
from onefold.baselines.corruptions.resampling import magnified

MAX_MOTION_ANGLE = 45  # degrees from the horizontal
NEGLIGIBLE = 1e-3  # weight, relative to the first


def softened(planes: Planes, sigma: float) -> Planes:
    """Apply a Gaussian filter; edge pixels are repeated."""
    soft: Planes = ndimage.gaussian_filter(planes, (0, 0, sigma, sigma), mode="nearest")
    return soft


def streaked(planes: Planes, degrees: NDArray[Any], radius: int, sigma: float) -> Planes:
    """Blur each image along its own direction with half a Gaussian of at most 2 * radius + 1 pixels."""
    count, channels, height, width = planes.shape
    flat = planes.reshape(count, channels, height * width)
    rows, columns = np.arange(height)[:, None], np.arange(width)
    down, right = (turn(np.radians(degrees))[:, None, None] for turn in (np.sin, np.cos))
    weights = [math.exp(-((step / sigma) ** 2) / 2) for step in range(2 * radius + 1)]
    weights = [weight for weight in weights if weight > NEGLIGIBLE]
    smeared = np.zeros_like(flat)
    for step, weight in enumerate(weights):
        row = np.clip(rows + np.rint(step * down).astype(np.intp), 0, height - 1)
        column = np.clip(columns + np.rint(step * right).astype(np.intp), 0, width - 1)
        sampled = np.take_along_axis(flat, (row * width + column).reshape(count, 1, -1), axis=2)
        smeared += weight / sum(weights) * sampled
    return smeared.reshape(planes.shape)


def _gaussian(planes: Planes, sigma: float, _: np.random.RandomState) -> Planes:
    return softened(planes, sigma)


def _defocus(planes: Planes, level: tuple[float, float], _: np.random.RandomState) -> Planes:
    radius, sigma = level
    reach = np.arange(-int(radius) - 1, int(radius) + 2)
    disc = (reach**2 + reach[:, None] ** 2 <= radius**2).astype(np.float32)
    bell = np.exp(-((np.arange(-1, 2) / sigma) ** 2) / 2)
    lens = ndimage.convolve(disc, np.outer(bell, bell), mode="constant")  # anti-aliased
    blurred: Planes = ndimage.convolve(planes, (lens / lens.sum())[None, None], mode="mirror")
    return blurred


def _motion(planes: Planes, level: tuple[int, float], rng: np.random.RandomState) -> Planes:
    return streaked(planes, rng.uniform(-MAX_MOTION_ANGLE, MAX_MOTION_ANGLE, len(planes)), *level)


def _zoom(planes: Planes, percent: int, _: np.random.RandomState) -> Planes:
    total = planes.copy()
    for more in range(percent + 1):
        total += magnified(planes, 1 + more / 100)
    total /= percent + 2
    return total


KINDS = (
    Corruption("gaussian_blur", "Gaussian filter", (0.4, 0.6, 0.7, 0.8, 1.0), _gaussian),
    Corruption("defocus_blur", "out of focus: disc filter",
               ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)), _defocus),
    Corruption("motion_blur", "sideways camera motion", ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)), _motion),
    Corruption("zoom_blur", "camera motion toward the object", (5, 10, 15, 20, 25), _zoom),
)  # fmt: skip
