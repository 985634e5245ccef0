"""Makes the memory of this process follow its tensors.

The C library keeps what tensors give back, in pieces that later tensors do not fit into: a step of a small residual
network takes more than twice the bytes of its tensors. Told to map every larger block by itself, it hands each back at
once. Mapping costs time for every page, so larger pages are asked for, which makes it as fast as before.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from functools import cache
from typing import Any

MAPPED_FROM = 2**20  # bytes; smaller blocks come from the heap
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of mallopt(3)
LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # torch reads it before its first tensor


def request_huge_pages() -> None:
    """Has an effect before the first tensor of this process is made; afterwards it is merely slower without."""
    os.environ.setdefault(LARGE_PAGES, "1")


@cache
def map_large_blocks() -> bool:
    """From now on, for the whole process; False where the C library cannot."""
    library = _library()
    if library is None:
        return False
    done = [
        library.mallopt(_MMAP_THRESHOLD, MAPPED_FROM),
        library.mallopt(_TRIM_THRESHOLD, MAPPED_FROM),
        library.mallopt(_ARENA_MAX, 1),
    ]
    return all(done)


def release_free_memory() -> None:
    """Lets go of what nobody needs, and hands free memory back to the system."""
    gc.collect()
    library = _library()
    if library is not None:
        library.malloc_trim(0)


@cache
def _library() -> Any:
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except OSError:  # another C library
        return None
