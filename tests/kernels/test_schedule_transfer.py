"""Transfer of schedules between similar operators."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.kernels.schedule_transfer import MAX_SOURCES, fastest, operator_distance, transfer_candidates
from onefold.vocabulary.kernels import Operator, ScheduleCandidate

CONV = Operator("0", "conv", 1, "conv2d", ("1x32x32x32", "3x3x32x32", "1x32x32x32"), 1e6)
shapes = st.lists(st.lists(st.integers(1, 512), min_size=1, max_size=4), min_size=2, max_size=3).map(
    lambda drawn: tuple("x".join(map(str, proposal)) for proposal in drawn)
)


def of(key: str, *given: str, kind: str = "conv2d") -> Operator:
    return replace(CONV, key=key, kind=kind, shapes=given or CONV.shapes)


def candidates(operator: str, *latencies: float | None) -> list[ScheduleCandidate]:
    return [
        ScheduleCandidate(operator, "here", "machine", 1, f"{operator}-{at}", 0, (), "[]", latency)
        for at, latency in enumerate(latencies)
    ]


@given(shapes, shapes)
def test_the_distance_is_symmetric_and_zero_to_itself(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    first, second = of("1", *one, kind="pool"), of("2", *other, kind="pool")
    assert operator_distance(first, second) == pytest.approx(operator_distance(second, first))
    assert operator_distance(first, first) == 0
    assert math.isfinite(operator_distance(first, second))


def test_another_kind_does_not_transfer() -> None:
    assert math.isinf(operator_distance(CONV, of("1", kind="matmul")))
    assert transfer_candidates(CONV, {of("1", kind="matmul"): candidates("1", 1.0)}, 4) == []


@pytest.mark.parametrize(
    "weights", ["3x3x1x64", "1x1x32x64", "3x3x3x64", "4x4x32x64", "64x1x3x3", "64x3x3x3", "64x32x1x1", "64x1x1x1"]
)  # fmt: skip
def test_convolutions_with_another_window_do_not_transfer(weights: str) -> None:
    other = of("1", "1x16x16x64", weights)
    assert math.isinf(operator_distance(CONV, other))
    assert math.isfinite(operator_distance(of("2", "1x8x8x128", weights.replace("64", "128")), other))
    assert math.isfinite(operator_distance(CONV, of("3", "1x64x32x32", "64x32x3x3"))), "OIHW or HWIO"
    assert transfer_candidates(CONV, {other: candidates("1", 1.0)}, 4) == []


def test_the_best_of_each_come_first_starting_with_the_nearest() -> None:
    near, far = of("near", "1x32x32x32", "3x3x32x64"), of("far", "1x4x4x512", "3x3x512x512")
    known = {far: candidates("far", 3.0, 1.0), near: candidates("near", 2.0, None, 1.5)}
    assert [candidate.implementation for candidate in transfer_candidates(CONV, known, 4)] == [
        "near-2",
        "far-1",
        "near-0",
        "far-0",
    ]
    assert [candidate.implementation for candidate in transfer_candidates(CONV, known, 1)] == ["near-2"]


def test_only_the_nearest_operators_are_sources() -> None:
    known = {of(str(size), f"1x{size}x{size}x32", "3x3x32x32"): candidates(str(size), 1.0) for size in range(33, 43)}
    result = transfer_candidates(CONV, known, 100)
    assert [candidate.operator for candidate in result] == [str(size) for size in range(33, 33 + MAX_SOURCES)]


def test_without_candidates_nothing_transfers() -> None:
    assert transfer_candidates(CONV, {}, 4) == []
    assert transfer_candidates(CONV, {of("1"): [], of("2"): candidates("2", None)}, 4) == []
    assert fastest([], 3) == []
