"""What a process that measures printed before it died, and whether a message says that memory ran out."""

from __future__ import annotations

import os
from typing import IO

OUTPUT_BYTES = 4096  # of the end
OUT_OF_MEMORY = ("out of memory", "allocate memory", "bad_alloc", "bad allocation")  # in messages of the runtime


def last_output(file: IO[bytes] | None) -> str:
    """Return the end of what a process printed into a file."""
    if file is None:
        return ""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - OUTPUT_BYTES))
    return file.read().decode(errors="replace").strip()


def is_out_of_memory(text: str) -> bool:
    """Return whether a message of the runtime or of the C++ library says that memory ran out."""
    return any(sign in text.lower() for sign in OUT_OF_MEMORY)
