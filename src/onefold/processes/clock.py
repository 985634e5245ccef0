"""The clocks of this machine: one that shows the time of day, and may be set, and one that counts from boot."""

from __future__ import annotations

import time

from onefold.processes.identity import this_process
from onefold.vocabulary.moment import Moment

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former also counts while the machine sleeps


def wall_clock() -> float:
    """Return the seconds since 1970, as the machine has them."""
    return time.time()


def now() -> Moment:
    """Return the present moment."""
    here = this_process()
    return Moment(wall_clock(), f"{here.host}-{here.boot}", time.clock_gettime(_BOOT_CLOCK))
