"""How loops are cut into parts, so that the innermost ones fit the processor.

Almost all ways to cut the loops of an operator are slow for one of four reasons: the innermost part of the loop over
neighbours in memory does not fill a vector, so many numbers are summed up at a time that they do not fit the
registers, or so few that registers are idle, sums that are soon complete are put aside in between, or a kernel's short
window is torn apart. A draw that avoids these is fast several times as often. Short sums, as those of a convolution
that takes each channel by itself, are fast where they are written out without loops, and where the edges around their
input are added a row of the window at a time.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Any

import numpy as np

TILED = 3  # parts at least: a loop over answers; those over what is summed up for one answer are cut into fewer
VECTORS = (1, 2)  # in the innermost part of the loop over neighbours
REGISTERS = 8  # answers of all the other loops that are summed up at a time, at most
FILLED = 0.8  # how often it is as many as there is room for, where sums are long
SOON, ALONE = 256, 0.8  # numbers that a short sum is of, at most; how often nothing else is begun until it is complete
WRITTEN_OUT, BY_ROWS = 0.8, 0.5  # how often a short sum is; how often what it takes is made a row at a time
WINDOW, WHOLE = 7, 0.5  # the longest loop over a window; how often it is left whole

CUTS, UNROLLS, PLACES = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"  # kinds of steps

Step = Any  # of the compiler's
Decision = list[int] | int


def fitting(trace: Any, lanes: int, rng: np.random.Generator, kept: Container[Step] = ()) -> dict[Step, Decision]:
    """Decisions for the steps of an outline that fit those that are kept: how loops are cut, and what short sums need.
    The outer parts are left to chance, as all that has no decision here."""
    tiles = {one: [int(part) for part in trace.get_decision(one)] for one in trace.insts if _kind(one) == CUTS}
    over_answers = [one for one, now in tiles.items() if len(now) >= TILED]
    if not over_answers:
        return {}
    *others, neighbours = over_answers
    summed = math.prod(math.prod(now) for now in tiles.values() if len(now) < TILED)
    is_short = summed <= SOON
    is_alone = is_short and rng.random() < ALONE
    is_filled = not is_short and rng.random() < FILLED
    width = _filling(math.prod(tiles[neighbours]), lanes, rng)
    found: dict[Step, Decision] = {neighbours: cut(tiles[neighbours], width, rng, is_alone)}
    left = REGISTERS // math.prod(tiles[one][-1] for one in others if one in kept)
    open_ones = [one for one in others if one not in kept]
    # In any order, but those that are run once before the others: the last one takes what is left of the registers.
    order = sorted(rng.permutation(len(open_ones)), key=lambda at: math.prod(tiles[open_ones[at]]) > 1)
    for at in order:
        now = tiles[open_ones[at]]
        choices = _divisors(math.prod(now), max(1, left))
        last = choices[-1] if is_filled and at == order[-1] else _any_of(choices, rng)
        found[open_ones[at]] = cut(now, last, rng, is_alone)
        left //= last
    for one, now in tiles.items():
        if len(now) < TILED and 1 < math.prod(now) <= WINDOW and rng.random() < WHOLE:
            found[one] = cut(now, math.prod(now), rng)
    if is_short:
        found |= _for_short_sums(trace.insts, tiles, 2 * len(over_answers), rng)
    return {one: decision for one, decision in found.items() if one not in kept}


def _for_short_sums(
    steps: Sequence[Step], tiles: dict[Step, list[int]], first: int, rng: np.random.Generator
) -> dict[Step, Decision]:
    """Loops written out, and what is made beforehand made inside the `first` loop over what is summed up, which comes
    after two parts of each loop over answers. That loop is then the one over the rows of a window, undivided."""
    found: dict[Step, Decision] = {}
    rows = next((one for one, now in tiles.items() if len(now) < TILED and math.prod(now) > 1), None)
    for one in steps:
        if _kind(one) == UNROLLS and rng.random() < WRITTEN_OUT:
            choices = len(one.attrs[0])  # from not at all to very long ones
            found[one] = int(rng.integers(choices // 2, choices))
        elif _kind(one) == PLACES and rows is not None and rng.random() < BY_ROWS:
            found |= {one: first, rows: [math.prod(tiles[rows]), *[1] * (len(tiles[rows]) - 1)]}
    return found


def _kind(step: Step) -> str:
    return str(step.kind.name)


def cut(now: list[int], last: int, rng: np.random.Generator, is_alone: bool = False) -> list[int]:
    """The same loop in as many parts, of which the last is given and the others are drawn; with nothing in the part
    before the last, which goes on to other answers while sums are incomplete, where the last is to be alone."""
    found = [1] * (len(now) - 1) + [last]
    for factor in factors(math.prod(now) // last):
        found[int(rng.integers(len(now) - 1 - is_alone))] *= factor
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
    """A part that fills vectors, or half of one, or else as much of one as the length lets it."""
    full = [vectors * lanes for vectors in VECTORS if length % (vectors * lanes) == 0]
    half = [lanes // 2] if lanes > 1 and length % (lanes // 2) == 0 else []
    return _any_of(full or half or _divisors(length, lanes)[-1:], rng)


def _divisors(length: int, most: int) -> list[int]:
    return [one for one in range(1, min(length, most) + 1) if length % one == 0]


def _any_of(some: Sequence[int], rng: np.random.Generator) -> int:
    return some[int(rng.integers(len(some)))]
