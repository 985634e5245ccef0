"""Reserved address space, released when a limit on this process (RLIMIT_AS, RLIMIT_DATA) falls.

For each new batch size oneDNN generates code and maps 10 to 30 MB for it, of which it uses about a tenth. Under a limit
that has just fallen such a mapping is refused; some oneDNN kernels do not check for that and crash the process. A
mapping that is never touched takes no memory; releasing it leaves room for the code of the current plan and of the
smaller plan that follows, while resident memory still falls by as much as the limit did.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

from onefold.meter.free_memory import UNLIMITED, process_limits

RESERVED_BYTES = 64 * 2**20
CODE_BYTES = 32 * 2**20  # of generated code that a new plan may map
POLL_INTERVAL_S = 0.005
MAPS = Path("/proc/self/maps")
Status = Callable[[], dict[str, int]]


class AddressSpaceReserve:
    """Address space that is held from `hold` until a limit falls or `close`. Holds nothing if there is a limit."""

    def __init__(self, status: Status) -> None:
        """Take `status`, which returns the Vm* lines of /proc/self/status in bytes."""
        self._status = status
        self._block: mmap.mmap | None = None
        self._code_bytes: int | None = None  # mapped for code when the reserve was released
        self._fallen: tuple[int, int] | None = None  # the limit that fell, and the resident memory that it allowed
        self._closed = Event()

    def hold(self) -> None:
        """Reserve the address space and start watching the limits."""
        self._code_bytes = mapped_code_bytes()
        if sys.platform != "linux" or process_limits():
            return
        self._block = mmap.mmap(-1, RESERVED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        Thread(target=self._watch, name="onefold-address-space", daemon=True).start()

    def close(self) -> None:
        """Stop watching and release the reserve."""
        self._closed.set()
        self._release()

    def allowed(self) -> int:
        """Return the bytes of resident memory that the limits on this process allow."""
        limits = process_limits()
        if not limits:
            return UNLIMITED
        status = self._status()
        room = min(limit - status.get(counter, 0) for limit, counter in limits) - self._pending_code_bytes()
        return min(status.get("VmRSS", 0) + room, self._allowed_at_fall(limits))

    def _pending_code_bytes(self) -> int:
        """Return the bytes to leave free for code that is still to be generated."""
        if self._code_bytes is None or self._block is not None:
            return 0
        return max(0, CODE_BYTES - (mapped_code_bytes() - self._code_bytes))

    def _allowed_at_fall(self, limits: list[tuple[int, str]]) -> int:
        """Return the resident memory that was allowed when a limit fell; unlimited once it has been raised again."""
        if self._fallen is None or min(limits)[0] > self._fallen[0]:
            return UNLIMITED
        return self._fallen[1]

    def _watch(self) -> None:
        while not self._closed.wait(POLL_INTERVAL_S):
            limits = process_limits()
            if limits:
                status = self._status()
                room = min(limit - status.get(counter, 0) for limit, counter in limits)
                self._fallen = min(limits)[0], status.get("VmRSS", 0) + room
                self._release()
                return

    def _release(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.close()
            self._code_bytes = mapped_code_bytes()


def mapped_code_bytes() -> int:
    """Return the bytes that are mapped both writable and executable; 0 outside Linux."""
    try:
        lines = MAPS.read_text().splitlines()
    except OSError:
        return 0
    mappings = (line.split(maxsplit=2) for line in lines)
    return sum(_length(addresses) for addresses, permissions, *_ in mappings if permissions.startswith("rwx"))


def _length(addresses: str) -> int:
    begin, end = (int(address, 16) for address in addresses.split("-"))
    return end - begin
