"""Draws that depend on nothing but a seed and what they are for: at random, or evenly spread."""

from __future__ import annotations

import hashlib
import random

from onefold.vocabulary.records import Config, Value
from onefold.vocabulary.space import Space

# A model that had this many draws of one trial turned down is left aside, and the rest are drawn at random.
PATIENCE = 5


def seed_for(seed: int, *purpose: int | str) -> int:
    """A seed of 32 bits for one purpose: the same in every process and on every machine."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def draw(space: Space, seed: int, number: int, attempt: int) -> Config:
    """The random configuration of trial `number` at this attempt."""
    return space.draw(random.Random(seed_for(seed, number, attempt)))


def spread(space: Space, seed: int, number: int) -> Config:
    """The configuration of trial `number` in a sequence whose every beginning covers the space evenly.

    Each parameter steps round its range by a power of the generalised golden ratio (the R sequence), from a place that
    the seed chooses; which parameter takes which power is the seed's choice too.
    """
    parameters = space.parameters
    rng = random.Random(seed_for(seed, "spread"))
    powers = rng.sample(range(1, len(parameters) + 1), len(parameters))
    ratio = _golden_ratio(len(parameters))
    shares = {name: (rng.random() + number * ratio**-power) % 1 for name, power in zip(parameters, powers)}
    values: dict[str, Value] = {}
    for name in space.in_order():
        if space.is_active(name, values):
            values[name] = parameters[name].at(shares[name])
    return space.config(values)


def _golden_ratio(dimensions: int) -> float:
    """The root of x^(d+1) = x + 1."""
    ratio = 2.0
    for _ in range(64):
        ratio = (1 + ratio) ** (1 / (dimensions + 1))
    return ratio
