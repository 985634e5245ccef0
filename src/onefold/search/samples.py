"""Configurations that depend only on a seed and a trial's number: pseudo-random or quasi-random."""

from __future__ import annotations

import hashlib
import random

from onefold.vocabulary.records import Config, Value
from onefold.vocabulary.space import Space

# Draws of one trial from a model; if all are refused or known already, the next ones are random.
MODEL_ATTEMPTS = 5


def derive_seed(seed: int, *purpose: int | str) -> int:
    """Return a 32-bit seed for one purpose, the same in every process and on every machine."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def random_config(space: Space, seed: int, number: int, attempt: int) -> Config:
    """Return the random configuration of trial `number` at this attempt."""
    return space.draw(random.Random(derive_seed(seed, number, attempt)))


def quasirandom_config(space: Space, seed: int, number: int) -> Config:
    """Return element `number` of a low-discrepancy sequence, whose every prefix covers the space evenly.

    This is the R sequence: each parameter advances by a power of the generalized golden ratio, modulo its range. The
    seed chooses the offsets and which parameter takes which power.
    """
    parameters = space.parameters
    rng = random.Random(derive_seed(seed, "spread"))
    powers = rng.sample(range(1, len(parameters) + 1), len(parameters))
    ratio = _golden_ratio(len(parameters))
    shares = {name: (rng.random() + number * ratio**-power) % 1 for name, power in zip(parameters, powers)}
    values: dict[str, Value] = {}
    for name in space.in_order():
        if space.is_active(name, values):
            values[name] = parameters[name].at(shares[name])
    return space.config(values)


def _golden_ratio(dimensions: int) -> float:
    """Return the root of x^(d+1) = x + 1."""
    ratio = 2.0
    for _ in range(64):
        ratio = (1 + ratio) ** (1 / (dimensions + 1))
    return ratio
