"""CPU contention with real competing processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from onefold.agent.cpu_contention import NEGLIGIBLE, CpuContention, busy_share
from onefold.device import Device, HostSession, TimingEffort
from onefold.vocabulary.serving import LatencySource, ServingPoint

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel has no schedstats")

EFFORT = TimingEffort(warm_up_runs=1, min_runs=50, max_runs=10_000, max_seconds=0.1, precision=0.0)
SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"


def core() -> int:
    return min(os.sched_getaffinity(0))


@pytest.fixture
def competitors() -> Iterator[None]:
    """Three busy loops on the first core."""
    busy = [
        subprocess.Popen([sys.executable, "-c", SPIN, str(core())], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    try:
        for process in busy:
            assert process.stdout
            process.stdout.readline()
        yield
    finally:
        for process in busy:
            process.kill()
            process.communicate()


@pytest.mark.usefixtures("competitors")
def test_contention_is_measured() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core()})
    try:
        with CpuContention() as contention:
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                pass
    finally:
        os.sched_setaffinity(0, allowed)
    assert contention.share > 4 * NEGLIGIBLE


def test_sleeping_is_not_contention() -> None:
    with CpuContention() as contention:
        time.sleep(0.2)
    assert contention.share < 0.5


@pytest.mark.usefixtures("competitors")
def test_contended_measurement_has_a_note(this_host: Device, model: Path) -> None:
    with HostSession(this_host, [core()]) as session:
        assert session.notes(model) == ()
        served = session.serve(model, ServingPoint(), EFFORT)
        assert session.notes(model)[0].startswith("contention: other programs took ")
        assert served.reasons_for_doubt[0].startswith("other programs took ")


@pytest.mark.usefixtures("competitors")
def test_cpu_time_is_the_fallback_of_a_hopeless_measurement(this_host: Device, model: Path) -> None:
    """Three competitors on the only core take about 75 % of it."""
    with HostSession(this_host, [core()]) as session:
        served = session.serve(model, ServingPoint(), EFFORT)
        assert served.source is LatencySource.CPU_TIME
        assert session.notes(model)[1].startswith("with one thread, latencies are CPU time where")
        after_idle = session.serve(model, ServingPoint(), replace(EFFORT, idle_s=0.001))
        assert after_idle.source is LatencySource.MEASURED, "an idle gap takes no CPU time"


def test_busy_cores_are_seen() -> None:
    assert 0 <= busy_share(os.sched_getaffinity(0), 0.02) <= 1
    assert busy_share([10_000], 0) == 0


@pytest.mark.usefixtures("competitors")
def test_a_core_with_a_busy_loop_is_busy() -> None:
    assert busy_share([core()]) > 0.5
