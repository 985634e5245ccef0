"""glibc malloc settings: fast where memory is plentiful, and with resident memory that follows the live tensors if not.

By default glibc keeps freed blocks in fragments that later tensors do not fit: a training step of a small residual
network takes more than twice the bytes of its tensors. With a fixed mmap threshold every larger block is mapped by
itself and unmapped when freed. Page faults make that slow: steps of small networks take up to twice the time. So the
threshold depends on the memory that is left, and torch is asked for transparent huge pages.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of mallopt(3)
HUGE_PAGES_VARIABLE = "THP_MEM_ALLOC_ENABLE"  # read by torch before its first allocation


def request_huge_pages() -> None:
    """Ask torch for transparent huge pages. Has no effect after the first tensor of this process."""
    os.environ.setdefault(HUGE_PAGES_VARIABLE, "1")


@dataclass(frozen=True)
class AllocationMode:
    """A size from which malloc maps every block by itself, and the memory that steps take with it.

    The figures are those of residual networks, transformers and LSTMs on one thread.
    """

    threshold_bytes: int
    kept_bytes: int  # free bytes at the end of the heap that are not returned to the operating system
    highest_factor: float  # bytes of a step relative to those of its tensors, without `highest_constant`
    highest_constant: int
    usual_factor: float
    usual_constant: int

    def highest(self, tensor_bytes: int) -> int:
        """Return the most bytes that a step with this many bytes of tensors takes."""
        return round(self.highest_factor * tensor_bytes) + self.highest_constant

    def usual(self, tensor_bytes: int) -> int:
        """Return about how many bytes a step with this many bytes of tensors takes."""
        return round(self.usual_factor * tensor_bytes) + min(tensor_bytes, self.usual_constant)


KEEPING = AllocationMode(2**25, 2**31 - 1, 3.0, 16_000_000, 1.8, 0)
MAPPING = AllocationMode(2**20, 2**20, 1.0, 32_000_000, 1.0, 12_000_000)
SPARING = AllocationMode(2**18, 2**18, 1.0, 0, 1.0, 0)
MODES = (KEEPING, MAPPING, SPARING)  # the fastest first


def fastest_mode(tensor_bytes: int, available_bytes: int) -> AllocationMode:
    """Return the fastest mode in which a step takes no more than what is available, or the one that takes least."""
    return next((mode for mode in MODES if mode.highest(tensor_bytes) <= available_bytes), MODES[-1])


def use_mode(mode: AllocationMode) -> bool:
    """Use a mode in the whole process, with a single heap. Return False without glibc."""
    library = _glibc()
    if library is None:
        return False
    results = [
        library.mallopt(_M_MMAP_THRESHOLD, mode.threshold_bytes),
        library.mallopt(_M_TRIM_THRESHOLD, mode.kept_bytes),
        library.mallopt(_M_ARENA_MAX, 1),
    ]
    return all(results)


@contextmanager
def allocating(mode: AllocationMode) -> Iterator[None]:
    """Use a mode inside; then blocks are mapped again, and what was kept is returned to the operating system."""
    use_mode(mode)
    if mode is SPARING:
        _trim()  # what others have left
    try:
        yield
    finally:
        use_mode(MAPPING)
        _trim()


def release_free_memory() -> None:
    """Collect garbage and return free heap memory to the operating system."""
    gc.collect()
    _trim()


@contextmanager
def existing_objects_frozen() -> Iterator[None]:
    """Leave the objects that exist now out of garbage collections.

    A collection looks at all objects, of which a process with torch has half a million, for each new plan.
    """
    gc.collect()
    if gc.get_freeze_count():  # by the caller
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _trim() -> None:
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> Any:
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except OSError:  # another C library, such as musl
        return None
