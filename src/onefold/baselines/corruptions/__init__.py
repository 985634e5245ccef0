"""Pictures as a model meets them later: noisy, blurred, in bad weather, badly coded.

The corruptions are those of CIFAR-10-C (Hendrycks and Dietterich, "Benchmarking neural network robustness to common
corruptions and perturbations", 2019) with its figures for pictures of 32x32 pixels, written anew with numpy and scipy.
They are of the same kinds and strengths, and not the same to the bit; the ice of `frost` is grown and not photographed.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.baselines.corruptions import blur, digital, noise, weather
from onefold.baselines.corruptions.corruption import Corruption
from onefold.vocabulary.errors import InputError, suggestion

__all__ = ["CORRUPTIONS", "FAMILIES", "NATURAL", "SEVERITIES", "check", "corrupted"]

NATURAL = "natural"
SEVERITIES = range(1, 6)
FAMILIES: dict[str, tuple[Corruption, ...]] = {
    "none": (Corruption(NATURAL, "nothing changes", (None,) * len(SEVERITIES), lambda planes, *_: planes),),
    "noise": noise.KINDS,
    "blur": blur.KINDS,
    "weather": weather.KINDS,
    "digital": digital.KINDS,
}
_KINDS = {kind.name: kind for kinds in FAMILIES.values() for kind in kinds}
CORRUPTIONS: tuple[str, ...] = tuple(_KINDS)
AT_ONCE = 1 << 19  # values that are worked on together: some megabytes of floats, whatever the number of pictures


def check(kind: str, severity: int, seed: int = 0) -> None:
    """Tells the first mistake."""
    if kind not in _KINDS:
        raise InputError(f"the corruption {kind!r} is not known{suggestion(kind, CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise InputError(f"the severity of a corruption goes from 1 to 5, but got {severity}")
    if not 0 <= seed < 1 << 32:
        raise InputError(f"the seed must be from 0 to {(1 << 32) - 1}, but got {seed}")


def corrupted(images: NDArray[Any], kind: str, severity: int, seed: int = 0) -> NDArray[np.uint8]:
    """The same pictures, uint8 (N, height, width) or (N, height, width, channels), corrupted.

    The same seed gives the same pictures. It draws the same numbers at every severity, so severities can be compared.
    """
    check(kind, severity, seed)
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape[1:]:
        raise InputError(
            "pictures must be uint8 (N, height, width) or (N, height, width, channels), "
            f"but are {images.dtype} {images.shape}"
        )
    changed = images.copy()
    if kind == NATURAL:
        return changed
    found = _KINDS[kind]
    some = max(1, AT_ONCE // max(1, images[:1].size))
    for number, start in enumerate(range(0, len(images), some)):
        part = images[start : start + some]
        planes = (part[..., None] if part.ndim == 3 else part).transpose(0, 3, 1, 2).astype(np.float32, order="C")
        # RandomState, because its numbers are promised to stay the same in every version of numpy.
        rng = np.random.RandomState([seed, zlib.crc32(kind.encode()), number])
        result = found.change(planes / 255, found.levels[severity - 1], rng)
        result = np.rint(np.clip(result, 0, 1) * 255).transpose(0, 2, 3, 1)
        changed[start : start + some] = result.reshape(part.shape)
    return changed
