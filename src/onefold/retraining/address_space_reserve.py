"""Address space put aside, for the day when a limit on this process falls.

When oneDNN meets batches of a new size it writes code for them, and maps 10 to 30 MB for it, of which a tenth is ever
used. Under a limit on the process's data that has just fallen such a mapping is refused, which some of its kernels do
not look at: they run into an address that is not there, and the process is killed. So some space is mapped that nobody
touches; it is no memory. As soon as a limit falls the space is given up: whatever is going on at that moment goes on in
it, and so does the code of the smaller plan that follows. The memory that is used falls by as much as the limit asks.
"""

from __future__ import annotations

import mmap
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

SIZE = 64 * 2**20
CODE = 32 * 2**20  # bytes that a new plan may need for code
LOOKS_EVERY_S = 0.005
UNLIMITED = 2**60
MAPS = Path("/proc/self/maps")
Status = Callable[[], dict[str, int]]


class AddressSpaceReserve:
    """Is held from the beginning, unless there is a limit already, and given up once."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._block: mmap.mmap | None = None
        self._code: int | None = None  # bytes mapped for code when the space was given up
        self._fell: tuple[int, int] | None = None  # the limit then, and the memory that it allowed
        self._over = Event()

    def hold(self) -> None:
        """From now on, until a limit falls or `close`."""
        self._code = code_bytes()
        if sys.platform != "linux" or own_limits():
            return
        self._block = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        Thread(target=self._watch, name="onefold-spare", daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._give_up()

    def allowed(self) -> int:
        """Bytes of memory that the limits on this process allow."""
        limits = own_limits()
        if not limits:
            return UNLIMITED
        status = self._status()
        room = min(limit - status.get(counted, 0) for limit, counted in limits) - self._owed()
        return min(status.get("VmRSS", 0) + room, self._asked_for(limits))

    def _owed(self) -> int:
        """Bytes that must be left for code that is still to be written."""
        if self._code is None or self._block is not None:
            return 0
        return max(0, CODE - (code_bytes() - self._code))

    def _asked_for(self, limits: list[tuple[int, str]]) -> int:
        """What was allowed when a limit fell; nobody asks for that any more once it has been raised."""
        if self._fell is None or min(limits)[0] > self._fell[0]:
            return UNLIMITED
        return self._fell[1]

    def _watch(self) -> None:
        while not self._over.wait(LOOKS_EVERY_S):
            limits = own_limits()
            if limits:
                status = self._status()
                left = min(limit - status.get(counted, 0) for limit, counted in limits)
                self._fell = min(limits)[0], status.get("VmRSS", 0) + left
                self._give_up()
                return

    def _give_up(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.close()
            self._code = code_bytes()


def own_limits() -> list[tuple[int, str]]:
    """Limits on this process alone, each with the line of its status that is counted against it."""
    kinds = [(resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")]
    found = [(resource.getrlimit(kind)[0], counted) for kind, counted in kinds]
    return [(limit, counted) for limit, counted in found if limit != resource.RLIM_INFINITY]


def code_bytes() -> int:
    """What is mapped to be both written and run."""
    try:
        lines = MAPS.read_text().splitlines()
    except OSError:  # no Linux
        return 0
    mapped = (line.split(maxsplit=2) for line in lines)
    return sum(_length(where) for where, may, *_ in mapped if may.startswith("rwx"))


def _length(where: str) -> int:
    begin, end = (int(part, 16) for part in where.split("-"))
    return end - begin
