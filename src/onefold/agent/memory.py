"""Peak memory of this process, of which the system keeps a high-water mark."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_CLEAR_HIGH_WATER = "5"  # proc(5)


def high_water_bytes() -> int | None:
    """Return the high-water mark of this process's resident memory; None if the system does not provide it."""
    try:
        for line in _STATUS.read_bytes().splitlines():
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux, or /proc is hidden
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_high_water() -> bool:
    """Reset the high-water mark to the present level; return False if the system does not allow it."""
    try:
        _CLEAR.write_text(_CLEAR_HIGH_WATER)
    except OSError:
        return False
    return True


def trim_heap() -> None:
    """Return freed memory to the system, if the C library supports it."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
