"""glibc malloc settings under which resident memory follows the live tensors.

By default glibc keeps freed blocks in fragments that later tensors do not fit: a training step of a small residual
network takes more than twice the bytes of its tensors. With a fixed mmap threshold every large block is mapped by
itself and unmapped when freed. Page faults make that slow, so torch is asked for transparent huge pages.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

MMAP_THRESHOLD_BYTES = 2**20  # smaller blocks come from the heap
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of mallopt(3)
HUGE_PAGES_VARIABLE = "THP_MEM_ALLOC_ENABLE"  # read by torch before its first allocation


def request_huge_pages() -> None:
    """Ask torch for transparent huge pages. Has no effect after the first tensor of this process."""
    os.environ.setdefault(HUGE_PAGES_VARIABLE, "1")


@cache
def map_large_blocks() -> bool:
    """Make malloc map and unmap every large block, for the whole process. Return False without glibc."""
    library = _glibc()
    if library is None:
        return False
    results = [
        library.mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        library.mallopt(_M_TRIM_THRESHOLD, MMAP_THRESHOLD_BYTES),
        library.mallopt(_M_ARENA_MAX, 1),
    ]
    return all(results)


def release_free_memory() -> None:
    """Collect garbage and return free heap memory to the operating system."""
    gc.collect()
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


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


@cache
def _glibc() -> Any:
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except OSError:  # another C library, such as musl
        return None
