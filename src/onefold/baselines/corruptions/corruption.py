"""The definition of an image corruption with five severities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Planes = NDArray[Any]  # images as float32 (N, channels, height, width), from 0 to 1
Change = Callable[[Planes, Any, np.random.RandomState], Planes]


@dataclass(frozen=True, eq=False, slots=True)
class Corruption:
    """A transformation with its parameters per severity, as in CIFAR-10-C; lengths in pixels.

    The result may exceed the range 0 to 1; the caller clips it.
    """

    name: str
    description: str
    levels: tuple[Any, ...]
    transform: Change


def normal(rng: np.random.RandomState, *shape: int) -> Planes:
    """Draw float32 standard normal numbers."""
    return rng.standard_normal(shape).astype(np.float32)


def luminance(planes: Planes) -> Planes:
    """Return the perceived brightness (N, 1, height, width); the channel mean of images that are not RGB."""
    if planes.shape[1] == 3:
        red, green, blue = (planes[:, [channel]] for channel in range(3))
        bright: Planes = 0.299 * red + 0.587 * green + 0.114 * blue
    else:
        bright = planes.mean(axis=1, keepdims=True)
    return bright


def tint(planes: Planes, color: tuple[float, float, float]) -> Planes:
    """Return an RGB color, 0 to 255, to blend into images; a gray of its brightness for images that are not RGB."""
    rgb = np.array(color, dtype=np.float32).reshape(1, 3, 1, 1) / 255
    return rgb if planes.shape[1] == 3 else luminance(rgb)
