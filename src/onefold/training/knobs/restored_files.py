"""Files of the kernel that are changed for a block and restored even if the process is killed in it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Waits for the end of its input, which the kernel closes when this process ends, and writes the contents back.
RESTORE = 'trap "" HUP INT TERM; read -r _; while [ $# -gt 1 ]; do printf %s "$2" > "$1"; shift 2; done'


@contextmanager
def restored_files(files: Sequence[Path]) -> Iterator[None]:
    """Restore the contents of files after the block, also after `kill -9`."""
    contents = [text for file in files for text in (str(file), file.read_text())]
    guard = subprocess.Popen(
        ["/bin/sh", "-c", RESTORE, "restore", *contents], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        guard.communicate()
