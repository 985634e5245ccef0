"""Samples tile sizes and related decisions that suit the processor.

Most random tilings are slow for one of four reasons: the innermost tile of the contiguous loop does not fill a vector
register, the accumulators of a tile exceed the registers or leave them idle, short reductions are interrupted and
spilled, or the short window of a kernel is split. Samples that avoid these are fast several times as often. Short
reductions, such as those of a depthwise convolution, are fast if they are unrolled and if the padding of their input is
computed one row of the window at a time.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Any

import numpy as np

MIN_SPATIAL_TILES = 3  # spatial loops are split into at least this many tiles, reduction loops into fewer
VECTORS = (1, 2)  # vector registers filled by the innermost tile of the contiguous loop
MAX_ACCUMULATORS = 8  # product of the innermost tiles of all other spatial loops
FULL_REGISTERS_SHARE = 0.8  # of samples with long reductions use all accumulators
SHORT_REDUCTION, UNINTERRUPTED_SHARE = 256, 0.8  # most elements of one; share of samples that complete it in one go
UNROLLED_SHARE, ROW_PADDING_SHARE = 0.8, 0.5  # of samples with short reductions: unrolled; padded by rows
MAX_WINDOW, WHOLE_WINDOW_SHARE = 7, 0.5  # longest window loop; share of samples that do not split it

TILING, UNROLLING, COMPUTE_LOCATION = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"

Instruction = Any  # of a TVM trace
Decision = list[int] | int


def sample_decisions(
    trace: Any, lanes: int, rng: np.random.Generator, kept: Container[Instruction] = ()
) -> dict[Instruction, Decision]:
    """Return decisions for a sketch that suit the processor and are compatible with the `kept` ones.

    Outer tiles and all instructions without a decision here are left to TVM's own sampling.
    """
    tiles = {
        instruction: [int(tile) for tile in trace.get_decision(instruction)]
        for instruction in trace.insts
        if _kind(instruction) == TILING
    }
    spatial = [instruction for instruction, tile in tiles.items() if len(tile) >= MIN_SPATIAL_TILES]
    if not spatial:
        return {}
    *others, contiguous = spatial
    reduction = math.prod(math.prod(tile) for tile in tiles.values() if len(tile) < MIN_SPATIAL_TILES)
    is_short = reduction <= SHORT_REDUCTION
    is_uninterrupted = is_short and rng.random() < UNINTERRUPTED_SHARE
    fills_registers = not is_short and rng.random() < FULL_REGISTERS_SHARE
    width = _vector_tile(math.prod(tiles[contiguous]), lanes, rng)
    decisions: dict[Instruction, Decision] = {contiguous: split(tiles[contiguous], width, rng, is_uninterrupted)}
    left = MAX_ACCUMULATORS // math.prod(tiles[instruction][-1] for instruction in others if instruction in kept)
    open_loops = [instruction for instruction in others if instruction not in kept]
    # In random order, but loops of one iteration first: the last loop takes the remaining registers.
    order = sorted(rng.permutation(len(open_loops)), key=lambda at: math.prod(tiles[open_loops[at]]) > 1)
    for at in order:
        tile = tiles[open_loops[at]]
        choices = _divisors(math.prod(tile), max(1, left))
        innermost = choices[-1] if fills_registers and at == order[-1] else _choose(choices, rng)
        decisions[open_loops[at]] = split(tile, innermost, rng, is_uninterrupted)
        left //= innermost
    for instruction, tile in tiles.items():
        is_window = len(tile) < MIN_SPATIAL_TILES and 1 < math.prod(tile) <= MAX_WINDOW
        if is_window and rng.random() < WHOLE_WINDOW_SHARE:
            decisions[instruction] = split(tile, math.prod(tile), rng)
    if is_short:
        decisions |= _short_reduction_decisions(trace.insts, tiles, 2 * len(spatial), rng)
    return {instruction: decision for instruction, decision in decisions.items() if instruction not in kept}


def _short_reduction_decisions(
    instructions: Sequence[Instruction],
    tiles: dict[Instruction, list[int]],
    first_reduction: int,
    rng: np.random.Generator,
) -> dict[Instruction, Decision]:
    """Return decisions that unroll a short reduction and compute its padding inside the first reduction loop.

    `first_reduction` is the index of that loop, which follows two tiles of each spatial loop. It becomes the unsplit
    loop over the rows of the window.
    """
    decisions: dict[Instruction, Decision] = {}
    rows = next(
        (instruction for instruction, tile in tiles.items() if len(tile) < MIN_SPATIAL_TILES and math.prod(tile) > 1),
        None,
    )
    for instruction in instructions:
        if _kind(instruction) == UNROLLING and rng.random() < UNROLLED_SHARE:
            choices = len(instruction.attrs[0])  # ascending unroll limits, beginning with none
            decisions[instruction] = int(rng.integers(choices // 2, choices))
        elif _kind(instruction) == COMPUTE_LOCATION and rows is not None and rng.random() < ROW_PADDING_SHARE:
            decisions[instruction] = first_reduction
            decisions[rows] = [math.prod(tiles[rows]), *[1] * (len(tiles[rows]) - 1)]
    return decisions


def _kind(instruction: Instruction) -> str:
    return str(instruction.kind.name)


def split(tiles: list[int], innermost: int, rng: np.random.Generator, is_uninterrupted: bool = False) -> list[int]:
    """Return the same loop split into as many tiles, with the given innermost tile and the others at random.

    The tile before the innermost one moves on to other outputs while a reduction is incomplete; it stays 1 if the
    reduction is to be uninterrupted.
    """
    sizes = [1] * (len(tiles) - 1) + [innermost]
    for factor in prime_factors(math.prod(tiles) // innermost):
        sizes[int(rng.integers(len(tiles) - 1 - is_uninterrupted))] *= factor
    return sizes


def prime_factors(number: int) -> list[int]:
    """Return the prime factors in ascending order, with multiplicity."""
    factors, prime = [], 2
    while prime * prime <= number:
        if number % prime:
            prime += 1
        else:
            factors.append(prime)
            number //= prime
    return [*factors, number] if number > 1 else factors


def _vector_tile(length: int, lanes: int, rng: np.random.Generator) -> int:
    """Return a tile that fills whole vectors, else half a vector, else the largest divisor that fits a vector."""
    full = [vectors * lanes for vectors in VECTORS if length % (vectors * lanes) == 0]
    half = [lanes // 2] if lanes > 1 and length % (lanes // 2) == 0 else []
    return _choose(full or half or _divisors(length, lanes)[-1:], rng)


def _divisors(length: int, largest: int) -> list[int]:
    return [divisor for divisor in range(1, min(length, largest) + 1) if length % divisor == 0]


def _choose(values: Sequence[int], rng: np.random.Generator) -> int:
    return values[int(rng.integers(len(values)))]
