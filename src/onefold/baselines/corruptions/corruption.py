"""What a corruption is: a change of pictures that comes in five severities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Planes = NDArray[Any]  # pictures as float32 (N, channels, height, width), from 0 to 1
Change = Callable[[Planes, Any, np.random.RandomState], Planes]


@dataclass(frozen=True, eq=False, slots=True)
class Corruption:
    """A change with what it is told at each severity: the figures of CIFAR-10-C, lengths in pixels.

    A change may leave values below 0 and above 1; whoever calls it clips them.
    """

    name: str
    what: str
    levels: tuple[Any, ...]
    change: Change


def normal(rng: np.random.RandomState, *shape: int) -> Planes:
    """Standard normal numbers in the precision of the pictures."""
    return rng.standard_normal(shape).astype(np.float32)


def luminance(planes: Planes) -> Planes:
    """How bright each pixel is to the eye, (N, 1, height, width); the mean where there are no three colours."""
    if planes.shape[1] == 3:
        red, green, blue = (planes[:, [channel]] for channel in range(3))
        bright: Planes = 0.299 * red + 0.587 * green + 0.114 * blue
    else:
        bright = planes.mean(axis=1, keepdims=True)
    return bright


def tint(planes: Planes, colour: tuple[float, float, float]) -> Planes:
    """A colour, each from 0 to 255, to mix into the pictures; a grey of its brightness where they have no colours."""
    one = np.array(colour, dtype=np.float32).reshape(1, 3, 1, 1) / 255
    return one if planes.shape[1] == 3 else luminance(one)
