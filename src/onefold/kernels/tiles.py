"""How loops are cut into parts, so that the innermost ones fit the processor.

Almost all ways to cut the loops of an operator are slow for one of three reasons: the innermost part of the loop over
neighbours in memory does not fill a vector, so many numbers are summed up at a time that they do not fit the
registers, or a kernel's short window is torn apart. A draw that avoids these is fast several times as often.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Any

import numpy as np

TILED = 3  # parts at least: a loop over answers; those over what is summed up for one answer are cut into fewer
VECTORS = (0.5, 1, 2)  # in the innermost part of the loop over neighbours
REGISTERS = 8  # answers of all the other loops that are summed up at a time, at most
WINDOW, WHOLE = 7, 0.5  # the longest loop over a window; how often it is left whole

Step = Any  # of the compiler's


def fitting(trace: Any, lanes: int, rng: np.random.Generator, kept: Container[Step] = ()) -> dict[Step, list[int]]:
    """For the steps of an outline that cut loops: cuts that fit those that are kept. The outer parts are left to
    chance."""
    tiles = {
        one: [int(part) for part in trace.get_decision(one)]
        for one in trace.insts
        if str(one.kind.name) == "SamplePerfectTile"
    }
    over_answers = [one for one, now in tiles.items() if len(now) >= TILED]
    if not over_answers:
        return {}
    *others, neighbours = over_answers
    found = {neighbours: cut(tiles[neighbours], _filling(math.prod(tiles[neighbours]), lanes, rng), rng)}
    left = REGISTERS // math.prod(tiles[one][-1] for one in others if one in kept)
    open_ones = [one for one in others if one not in kept]
    for at in rng.permutation(len(open_ones)):
        now = tiles[open_ones[at]]
        last = _any_of(_divisors(math.prod(now), max(1, left)), rng)
        found[open_ones[at]] = cut(now, last, rng)
        left //= last
    for one, now in tiles.items():
        if len(now) < TILED and 1 < math.prod(now) <= WINDOW and rng.random() < WHOLE:
            found[one] = cut(now, math.prod(now), rng)
    return {one: now for one, now in found.items() if one not in kept}


def cut(now: list[int], last: int, rng: np.random.Generator) -> list[int]:
    """The same loop in as many parts, of which the last is given and the others are drawn."""
    found = [1] * (len(now) - 1) + [last]
    for factor in factors(math.prod(now) // last):
        found[int(rng.integers(len(now) - 1))] *= factor
    return found


def factors(number: int) -> list[int]:
    """Its prime factors, each as often as it is one."""
    found, prime = [], 2
    while prime * prime <= number:
        if number % prime:
            prime += 1
        else:
            found.append(prime)
            number //= prime
    return [*found, number] if number > 1 else found


def divisions(length: int, parts: int) -> int:
    """In how many ways a loop can be cut into so many parts, in order."""
    known = factors(length)
    return math.prod(math.comb(known.count(prime) + parts - 1, parts - 1) for prime in set(known))


def _filling(length: int, lanes: int, rng: np.random.Generator) -> int:
    """A part that fills vectors, or else as much of one as the length lets it."""
    full = [one for one in sorted({max(1, int(vectors * lanes)) for vectors in VECTORS}) if length % one == 0]
    return _any_of(full or _divisors(length, lanes)[-1:], rng)


def _divisors(length: int, most: int) -> list[int]:
    return [one for one in range(1, min(length, most) + 1) if length % one == 0]


def _any_of(some: Sequence[int], rng: np.random.Generator) -> int:
    return some[int(rng.integers(len(some)))]
