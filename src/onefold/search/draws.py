"""Random draws that depend on nothing but a seed and what they are for."""

from __future__ import annotations

import hashlib
import random

from onefold.records import Config
from onefold.space import Space

# A model that had this many draws of one trial turned down is left aside, and the rest are drawn at random.
PATIENCE = 5


def seed_for(seed: int, *purpose: int | str) -> int:
    """A seed of 32 bits for one purpose: the same in every process and on every machine."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def draw(space: Space, seed: int, number: int, attempt: int) -> Config:
    """The random configuration of trial `number` at this attempt."""
    return space.draw(random.Random(seed_for(seed, number, attempt)))
