"""Image corruptions: noise, blur, weather and digital artifacts.

The corruptions of CIFAR-10-C (Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions
and perturbations", 2019) with its parameters for images of 32x32 pixels, reimplemented with numpy and scipy. They have
the same kinds and strengths, but are not bit-identical; the ice of `frost` is procedural instead of photographed.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.baselines.corruptions import blur, digital, noise, weather
from onefold.baselines.corruptions.corruption import Corruption
from onefold.vocabulary.errors import InputError, unknown

__all__ = ["CORRUPTIONS", "FAMILIES", "NATURAL", "SEVERITIES", "check", "corrupted"]

NATURAL = "natural"
SEVERITIES = range(1, 6)
FAMILIES: dict[str, tuple[Corruption, ...]] = {
    "none": (Corruption(NATURAL, "unchanged", (None,) * len(SEVERITIES), lambda planes, *_: planes),),
    "noise": noise.KINDS,
    "blur": blur.KINDS,
    "weather": weather.KINDS,
    "digital": digital.KINDS,
}
_KINDS = {kind.name: kind for kinds in FAMILIES.values() for kind in kinds}
CORRUPTIONS: tuple[str, ...] = tuple(_KINDS)
CHUNK_VALUES = 1 << 19  # processed together, to bound memory for any number of images


def check(kind: str, severity: int, seed: int = 0) -> None:
    """Raise InputError for an unknown corruption, or a severity or seed out of range."""
    if kind not in _KINDS:
        raise InputError(unknown("corruption", kind, CORRUPTIONS))
    if severity not in SEVERITIES:
        raise InputError(f"severity must be from 1 to 5, got {severity}")
    if not 0 <= seed < 1 << 32:
        raise InputError(f"seed must be from 0 to {(1 << 32) - 1}, got {seed}")


def corrupted(images: NDArray[Any], kind: str, severity: int, seed: int = 0) -> NDArray[np.uint8]:
    """Corrupt uint8 images of shape (N, height, width) or (N, height, width, channels).

    Images are reproducible by seed. All severities draw the same random numbers, so that they can be compared.
    """
    check(kind, severity, seed)
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape[1:]:
        raise InputError(
            "images must be uint8 of shape (N, height, width) or (N, height, width, channels), "
            f"got {images.dtype} {images.shape}"
        )
    changed = images.copy()
    if kind == NATURAL:
        return changed
    corruption = _KINDS[kind]
    chunk = max(1, CHUNK_VALUES // max(1, images[:1].size))
    for number, start in enumerate(range(0, len(images), chunk)):
        part = images[start : start + chunk]
        planes = (part[..., None] if part.ndim == 3 else part).transpose(0, 3, 1, 2).astype(np.float32, order="C")
        # RandomState is guaranteed to draw the same numbers in every version of numpy.
        rng = np.random.RandomState([seed, zlib.crc32(kind.encode()), number])
        result = corruption.transform(planes / 255, corruption.levels[severity - 1], rng)
        result = np.rint(np.clip(result, 0, 1) * 255).transpose(0, 2, 3, 1)
        changed[start : start + chunk] = result.reshape(part.shape)
    return changed
