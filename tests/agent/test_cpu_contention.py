"""CPU contention with real competing processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.agent.cpu_contention import NEGLIGIBLE, CpuContention
from onefold.device import Device, HostSession, TimingEffort
from onefold.vocabulary.serving import ServingPoint

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel has no schedstats")

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
        session.serve(
            model,
            ServingPoint(),
            TimingEffort(warm_up_runs=1, min_runs=50, max_runs=10_000, max_seconds=0.1, precision=0.0),
        )
        (note,) = session.notes(model)
    assert note.startswith("contention: other programs took ")
