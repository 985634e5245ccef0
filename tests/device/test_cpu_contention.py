"""Other programs that take the processor away, for real."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.device import Device, HostSession, TimingEffort
from onefold.device.cpu_contention import NEGLIGIBLE, CpuContention
from onefold.vocabulary.serving import ServingPoint

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not tell")

SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"


def core() -> int:
    return min(os.sched_getaffinity(0))


@pytest.fixture
def neighbours() -> Iterator[None]:
    """Three programs that want the first core for themselves."""
    busy = [
        subprocess.Popen([sys.executable, "-c", SPIN, str(core())], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    try:
        for each in busy:
            assert each.stdout
            each.stdout.readline()
        yield
    finally:
        for each in busy:
            each.kill()
            each.communicate()


@pytest.mark.usefixtures("neighbours")
def test_waiting_for_others_is_seen() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core()})
    try:
        with CpuContention() as waiting:
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                pass
    finally:
        os.sched_setaffinity(0, allowed)
    assert waiting.share > 4 * NEGLIGIBLE


def test_sleeping_is_not_waiting() -> None:
    with CpuContention() as waiting:
        time.sleep(0.2)
    assert waiting.share < 0.5


@pytest.mark.usefixtures("neighbours")
def test_a_measurement_that_could_not_be_had_undisturbed_says_so(this_host: Device, model: Path) -> None:
    with HostSession(this_host, [core()]) as session:
        assert session.notes(model) == ()
        session.serve(model, ServingPoint(), TimingEffort(warm_up=1, least=50, most=10_000, seconds=0.1, precision=0.0))
        (said,) = session.notes(model)
    assert said.startswith("other programs had ")
