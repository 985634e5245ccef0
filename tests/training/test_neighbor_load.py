"""The load of other processes is told apart from that of this process and its children."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onefold.training import neighbor_load
from onefold.training.neighbor_load import StatLoad

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def write_stat(path: Path, busy_s: dict[int, float]) -> None:
    lines = [f"cpu{core} {int(s * TICKS_PER_S)} 0 0 9999 9 0 0 0 0 0" for core, s in busy_s.items()]
    path.write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 0 0", *lines, "intr 5"]))


def test_the_time_of_other_processes_on_the_given_cores_is_counted(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    load = StatLoad((1, 2), stat)
    write_stat(stat, {0: 500.0, 1: 1000.0, 2: 2000.0})
    before = load.others_s()
    write_stat(stat, {0: 900.0, 1: 1030.0, 2: 2010.0})
    assert load.others_s() - before == pytest.approx(40.0, abs=1.0)
    assert StatLoad((1, 2), tmp_path / "nothing").others_s() == 0.0


@pytest.mark.parametrize(("niceness", "counted_s"), [(0, 0.0), (5, 30.0)])
def test_processes_that_give_way_are_no_neighbors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, niceness: int, counted_s: float
) -> None:
    monkeypatch.setattr(neighbor_load.os, "nice", lambda _: niceness)
    stat = tmp_path / "stat"
    stat.write_text("cpu0 0 0 0 0 0 0 0 0 0 0")
    load = StatLoad((0,), stat)
    before = load.others_s()
    stat.write_text(f"cpu0 0 {30 * TICKS_PER_S} 0 0 0 0 0 0 0 0")
    assert load.others_s() - before == pytest.approx(counted_s, abs=1.0)


def test_the_time_of_this_process_and_its_children_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatLoad, "_busy_s", lambda _: {0: 1e6})
    load = StatLoad((0,))
    child = multiprocessing.get_context("fork").Process(target=_compute, args=(0.2,))
    before = load.others_s()
    _compute(0.2)
    assert load.others_s() - before <= -0.19
    child.start()
    while load.others_s() - before > -0.35:  # while it lives
        time.sleep(0.01)
    child.join()
    assert load.others_s() - before <= -0.35, "after it has ended"


def test_the_quietest_cores_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    write_stat(stat, {0: 1.0, 1: 1.0, 2: 1.0})
    monkeypatch.setattr(neighbor_load.time, "sleep", lambda _: write_stat(stat, {0: 1.5, 1: 1.0, 2: 1.25}))
    assert StatLoad((0, 1, 2), stat).quietest_first() == (1, 2, 0)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs the kernel's counters")
def test_a_busy_neighbor_is_seen() -> None:
    cores = tuple(os.sched_getaffinity(0))
    neighbor = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        load, deadline = StatLoad(cores), time.monotonic() + 60
        before = load.others_s()
        while load.others_s() - before < 0.2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert load.others_s() - before >= 0.2
    finally:
        neighbor.kill()
        neighbor.wait()


def _compute(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
