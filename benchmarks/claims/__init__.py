"""Shared by all benchmarks: claims with a bar, a printed table, and a result file that records the machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from claims import page

RESULTS = Path(__file__).parent.parent / "results"


@dataclass(frozen=True)
class Claim:
    """A claim, its acceptance bar, the measured value in words, and whether it meets the bar."""

    claim: str
    bar: str
    measured: str
    holds: bool

    def __str__(self) -> str:
        return f"{self.claim} | {self.bar} | {self.measured} | {'ok' if self.holds else 'short'}"


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's command line, for benchmarks with further options."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a smaller run, under five minutes")
    return parser


def arguments(description: str | None) -> argparse.Namespace:
    """Parse the command line of a benchmark."""
    return argument_parser(description).parse_args()


def table(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows with the same keys as an aligned table."""
    if not rows:
        return
    columns = list(rows[0])
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[i]) for line in cells)) for i, column in enumerate(columns)]
    print("  ".join(column.ljust(width) for column, width in zip(columns, widths)))
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)), flush=True)
    print()


def conclude(name: str, claims: Iterable[Claim], figures: Any, *, quick: bool) -> None:
    """Print one line per claim, write results/NAME.json and docs/benchmarks.md, and exit with 0 if all claims hold."""
    claims = list(claims)
    for claim in claims:
        print(claim, flush=True)
    content = {
        "benchmark": name,
        "quick": quick,
        "method": page.method_version(name),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "claims": [{**asdict(claim), "verdict": "ok" if claim.holds else "short"} for claim in claims],
        "figures": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    suffix = "-quick" if quick else ""
    (RESULTS / f"{name}{suffix}.json").write_text(json.dumps(content, indent=1, default=str) + "\n")
    page.write()
    sys.exit(0 if all(claim.holds for claim in claims) else 1)


def machine() -> dict[str, Any]:
    """Return the hardware and the versions that the figures depend on."""
    import psutil
    import torch

    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


class Stopwatch:
    """Measure the wall time of a block: `with Stopwatch() as watch: …`, then `watch.seconds`."""

    def __enter__(self) -> Stopwatch:
        self._began = time.monotonic()
        self.seconds = 0.0
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds = time.monotonic() - self._began


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else str(value)
