"""Sampling of tile sizes that suit the processor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.device.catalog import device
from onefold.kernels.schedule_space import ScheduleSpace
from onefold.kernels.targets import Target, target_of
from onefold.kernels.tile_sizes import (
    FULL_REGISTERS_SHARE,
    MAX_ACCUMULATORS,
    MIN_SPATIAL_TILES,
    ROW_PADDING_SHARE,
    SHORT_REDUCTION,
    UNINTERRUPTED_SHARE,
    UNROLLED_SHARE,
    VECTORS,
    prime_factors,
    sample_decisions,
    split,
)
from onefold.vocabulary.kernels import Operator

Operators = dict[str, tuple[Operator, Any]]


class Kind:
    def __init__(self, name: str) -> None:
        self.name = name


class FakeInstruction:
    """A fake trace instruction."""

    def __init__(self, kind: str, attrs: tuple[Any, ...] = ()) -> None:
        self.kind, self.attrs = Kind(kind), attrs


class FakeTrace:
    """A fake trace: tiled loops and, if `more`, an unroll limit and a compute location."""

    def __init__(self, *loops: list[int], more: bool = False) -> None:
        self.decisions: dict[FakeInstruction, Any] = {FakeInstruction("SamplePerfectTile"): loop for loop in loops}
        if more:
            self.unrolls, self.places = (
                FakeInstruction("SampleCategorical", ((0, 16, 64, 512),)),
                FakeInstruction("SampleComputeLocation"),
            )
            self.decisions |= {self.unrolls: 0, self.places: -1}
        self.insts = list(self.decisions)

    def get_decision(self, step: FakeInstruction) -> Any:
        return self.decisions[step]


lengths = st.sampled_from((1, 2, 3, 5, 7, 8, 10, 12, 16, 48, 56, 72, 96, 192, 224, 1000))


@given(number=st.integers(1, 5000))
def test_factors_are_prime_and_multiply_to_the_number(number: int) -> None:
    result = prime_factors(number)
    assert math.prod(result) == number
    assert all(
        candidate > 1 and all(candidate % other for other in range(2, math.isqrt(candidate) + 1))
        for candidate in result
    )


@given(length=lengths, last=st.integers(1, 64), parts=st.integers(2, 5), seed=st.integers(0, 99))
def test_a_split_loop_keeps_its_length(length: int, last: int, parts: int, seed: int) -> None:
    last = math.gcd(length, last)
    for is_alone in (False, parts > 2):
        result = split([length] + [1] * (parts - 1), last, np.random.default_rng(seed), is_alone)
        assert len(result) == parts
        assert result[-1] == last
        assert math.prod(result) == length
        assert not is_alone or result[-2] == 1


@given(
    rows=lengths, columns=lengths, channels=lengths, window=lengths, lanes=st.sampled_from((1, 4, 8, 16)),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_tiles_fill_vectors_and_fit_the_registers(
    rows: int, columns: int, channels: int, window: int, lanes: int, seed: int
) -> None:
    outline = FakeTrace([1, rows, 1, 1], [1, 1, columns, 1], [channels, 1, 1, 1], [window, 1])
    result = sample_decisions(outline, lanes, np.random.default_rng(seed))
    assert all(math.prod(now) == math.prod(outline.decisions[step]) for step, now in result.items())
    row, column, channel, summed = outline.insts
    assert result[row][-1] * result[column][-1] <= MAX_ACCUMULATORS
    widths = {vectors * lanes for vectors in VECTORS}
    width = result[channel][-1]
    if any(channels % item == 0 for item in widths):
        assert width in widths
    elif lanes > 1 and channels % (lanes // 2) == 0:
        assert width == lanes // 2
    else:
        assert width == max(item for item in range(1, lanes + 1) if channels % item == 0)
    if summed in result:
        assert result[summed] == [1, window]


@pytest.mark.parametrize(("summed", "share"), [(SHORT_REDUCTION, UNINTERRUPTED_SHARE), (2 * SHORT_REDUCTION, 0.0)])
def test_short_reductions_are_mostly_uninterrupted(summed: int, share: float) -> None:
    outline = FakeTrace([1, 64, 1, 1], [1, 64, 1, 1], [64, 1, 1, 1], [summed, 1])
    rng = np.random.default_rng(0)
    draws = [sample_decisions(outline, 4, rng) for _ in range(200)]
    alone = [all(now[-2] == 1 for now in decisions.values() if len(now) >= MIN_SPATIAL_TILES) for decisions in draws]
    assert sum(alone) / len(alone) == pytest.approx(share, abs=0.12)


@pytest.mark.parametrize(("summed", "least"), [(4 * SHORT_REDUCTION, FULL_REGISTERS_SHARE), (SHORT_REDUCTION, 0.0)])
def test_long_reductions_mostly_fill_the_registers(summed: int, least: float) -> None:
    outline = FakeTrace([1, 1, 1, 1], [1, 64, 1, 1], [1, 64, 1, 1], [64, 1, 1, 1], [summed, 1])
    _, row, column, *_ = outline.insts
    rng = np.random.default_rng(0)
    draws = [sample_decisions(outline, 4, rng) for _ in range(200)]
    filled = sum(result[row][-1] * result[column][-1] == MAX_ACCUMULATORS for result in draws)  # type: ignore[index]
    assert filled / len(draws) == pytest.approx(least + 0.52 * (1 - least), abs=0.1)  # about half of them by chance


def test_short_reductions_are_unrolled_and_padded_by_rows() -> None:
    outline = FakeTrace([1, 16, 1, 1], [1, 16, 1, 1], [16, 1, 1, 1], [1, 3], [3, 1], more=True)
    rows = outline.insts[3]
    rng = np.random.default_rng(0)
    draws = [sample_decisions(outline, 4, rng) for _ in range(400)]
    written_out = [result for result in draws if outline.unrolls in result]
    by_rows = [result for result in draws if outline.places in result]
    assert {result[outline.unrolls] for result in written_out} == {2, 3}
    assert len(written_out) / len(draws) == pytest.approx(UNROLLED_SHARE, abs=0.08)
    assert {result[outline.places] for result in by_rows} == {6}  # after two parts of each of three loops
    assert all(result[rows] == [3, 1] for result in by_rows)
    assert len(by_rows) / len(draws) == pytest.approx(ROW_PADDING_SHARE, abs=0.08)


def test_long_reductions_are_not_unrolled() -> None:
    outline = FakeTrace([1, 16, 1, 1], [16, 1, 1, 1], [1, 3], [2 * SHORT_REDUCTION, 1], more=True)
    rng = np.random.default_rng(0)
    assert not any({outline.unrolls, outline.places} & set(sample_decisions(outline, 4, rng)) for _ in range(50))


def test_traces_without_spatial_tiling_get_no_decisions() -> None:
    assert sample_decisions(FakeTrace([16, 1]), 16, np.random.default_rng(0)) == {}
    assert sample_decisions(FakeTrace(), 16, np.random.default_rng(0)) == {}


@pytest.mark.parametrize("kind", ["conv2d", "matmul"])
def test_most_samples_of_a_real_operator_suit_the_processor(kind: str, operators: Operators, here: Target) -> None:
    space = ScheduleSpace(*operators[kind], here)
    some = [item for item in (space.sample() for _ in range(40)) if item is not None]
    assert len(some) > 30
    fits = []
    for proposal in some:
        trace = proposal.schedule.trace
        cuts = [trace.get_decision(step) for step in trace.insts if step.kind.name == "SamplePerfectTile"]
        tiled = [[int(part) for part in now] for now in cuts if len(now) >= MIN_SPATIAL_TILES]
        if tiled:
            *others, neighbors = tiled
            widest = max(width for width in range(1, here.vector_lanes + 1) if math.prod(neighbors) % width == 0)
            fills = neighbors[-1] >= min(widest, here.vector_lanes // 2)
            fits.append(fills and math.prod(now[-1] for now in others) <= MAX_ACCUMULATORS)
    assert len(fits) > 10
    assert sum(fits) > 0.5 * len(fits)


def test_kept_decisions_count_and_stay() -> None:
    outline = FakeTrace([1, 1, 1, 16], [2, 8, 1, 1], [16, 1, 1, 1])
    row, column, channel = outline.insts
    for seed in range(20):
        result = sample_decisions(outline, 16, np.random.default_rng(seed), kept={row, channel})
        assert list(result) == [column]
        assert result[column][-1] == 1  # the rows fill all registers, and more


@pytest.mark.parametrize(
    ("board", "lanes"), [("intel-nuc-i7-7567u", 8), ("raspberry-pi-4", 4), ("raspberry-pi-5", 4)]
)  # fmt: skip
def test_vector_lanes_of_boards(board: str, lanes: int) -> None:
    assert target_of(device(board), is_host=False).vector_lanes == lanes


@pytest.mark.parametrize(("processor", "lanes"), [("x86-64", 4), ("haswell", 8), ("skylake-avx512", 16)])
def test_vector_lanes_of_x86(processor: str, lanes: int) -> None:
    assert Target(processor, "x86_64-linux-gnu", 1).vector_lanes == lanes
