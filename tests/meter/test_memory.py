"""Peak memory of windows, with real allocations and with a fake high-water mark."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from onefold.meter import ClockMeter, CombinedMeter, ModelledMeter
from onefold.meter.memory import PeakMemory, high_water_bytes, reset_high_water

MB = 1_000_000
# Between two looks a test's own objects come and go; an allocation is far larger.
SLACK = 30 * MB

linux_only = pytest.mark.skipif(not reset_high_water(), reason="the high-water mark cannot be put back here")


@contextmanager
def allocated(size: int) -> Iterator[None]:
    """Hold resident memory inside the block."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        for page in range(0, size, mmap.PAGESIZE):
            block[page] = 1
        yield


def peak_of_nothing() -> int:
    with ClockMeter().window() as window:
        pass
    assert window.measurement.memory_bytes is not None
    return window.measurement.memory_bytes


@linux_only
class TestRealMemory:
    def test_an_allocation_raises_the_peak(self) -> None:
        before = peak_of_nothing()
        with ClockMeter().window() as window, allocated(200 * MB):
            pass
        assert window.measurement.memory_bytes == pytest.approx(before + 200 * MB, abs=SLACK)

    def test_the_peak_is_of_the_window_and_not_of_the_process(self) -> None:
        before = peak_of_nothing()
        with allocated(200 * MB):
            pass
        with ClockMeter().window() as window:
            pass
        assert window.measurement.memory_bytes == pytest.approx(before, abs=SLACK)

    def test_memory_held_before_the_window_counts(self) -> None:
        before = peak_of_nothing()
        with allocated(100 * MB), ClockMeter().window() as window:
            pass
        assert window.measurement.memory_bytes == pytest.approx(before + 100 * MB, abs=SLACK)

    def test_an_inner_window_does_not_reset_the_peak_of_the_outer(self) -> None:
        before = peak_of_nothing()
        with ClockMeter().window() as outer:
            with allocated(200 * MB):
                pass
            with ClockMeter().window() as inner, allocated(60 * MB):
                pass
        assert outer.measurement.memory_bytes == pytest.approx(before + 200 * MB, abs=SLACK)
        assert inner.measurement.memory_bytes == pytest.approx(before + 60 * MB, abs=SLACK)

    def test_the_peak_of_an_inner_window_counts_for_the_outer(self) -> None:
        before = peak_of_nothing()
        with ClockMeter().window() as outer:
            with ClockMeter().window() as inner, allocated(150 * MB):
                pass
            with ClockMeter().window() as later:
                pass
        assert outer.measurement.memory_bytes == pytest.approx(before + 150 * MB, abs=SLACK)
        assert inner.measurement.memory_bytes == pytest.approx(before + 150 * MB, abs=SLACK)
        assert later.measurement.memory_bytes == pytest.approx(before, abs=SLACK)

    def test_meters_do_not_reset_the_mark_under_each_other(self) -> None:
        before = peak_of_nothing()
        with CombinedMeter(ClockMeter(), ModelledMeter()).window() as combined:
            with allocated(100 * MB):
                pass
            with ModelledMeter().window():
                pass
            assert combined.measurement.memory_bytes == pytest.approx(before + 100 * MB, abs=SLACK)
        assert combined.measurement.memory_bytes == pytest.approx(before + 100 * MB, abs=SLACK)


class Mark:
    """A high-water mark that a test moves."""

    def __init__(self, *, movable: bool) -> None:
        self.level = self.mark = 10
        self._movable = movable

    def reach(self, level: int) -> None:
        self.level, self.mark = level, max(self.mark, level)

    def put_back(self) -> bool:
        if self._movable:
            self.mark = self.level
        return self._movable


class TestPretendedMark:
    def test_windows_may_overlap_without_nesting(self) -> None:
        mark = Mark(movable=True)
        peaks = PeakMemory(lambda: mark.mark, mark.put_back)
        first = peaks.open()
        mark.reach(50)
        mark.reach(20)
        second = peaks.open()
        mark.reach(30)
        assert peaks.read(first) == 50
        peaks.close(first)
        mark.reach(40)
        assert peaks.read(second) == 40
        peaks.close(second)

    def test_without_reset_the_peak_is_known_only_if_the_mark_rises(self) -> None:
        mark = Mark(movable=False)
        peaks = PeakMemory(lambda: mark.mark, mark.put_back)
        mark.reach(100)
        mark.reach(10)
        outer = peaks.open()
        mark.reach(90)
        assert peaks.read(outer) is None
        mark.reach(120)
        inner = peaks.open()
        mark.reach(110)
        assert peaks.read(outer) == 120
        assert peaks.read(inner) is None

    def test_without_a_mark_the_peak_is_unknown(self) -> None:
        peaks = PeakMemory(lambda: None, lambda: False)
        assert peaks.read(peaks.open()) is None

    def test_without_proc_the_peak_comes_from_getrusage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("onefold.agent.memory._STATUS", _Nowhere())
        assert (high_water_bytes() or 0) > MB


class _Nowhere:
    def read_bytes(self) -> bytes:
        raise FileNotFoundError
