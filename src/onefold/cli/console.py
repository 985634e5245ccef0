"""The two streams that commands write to."""

from __future__ import annotations

import sys

from rich.console import Console

PIPED_WIDTH = 140  # columns of a table that no terminal limits

out = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
err = Console(markup=False, highlight=False, stderr=True)
