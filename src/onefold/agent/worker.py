"""The process of a board that measures: `python -m onefold.agent.worker PARENT`, started and ended by the agent.

It reads requests from standard input and answers on standard output, one JSON object per line:

    in    {"do": "open" | "time" | "memory", "model": path, "weights": path or null, "form": {…} or null,
           "inputs": path or null, "point": {…}, "effort": {…}}
          {"do": "versions"}
          {"do": "probe", "models": path, "seconds": number}
    out   {"answer": …} or {"error": "…"}, after any number of {"tick": true} that show progress

The agent itself imports neither numpy nor onnxruntime: it stays small, and a model that crashes ends only this process.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from onefold.agent import probe_program
from onefold.agent.dispatch import Ticks, reply_to
from onefold.agent.energy import EnergySource
from onefold.agent.runner import Runner

MAX_PROBE_BYTES = 8_000_000
_PR_SET_PDEATHSIG = 1


class BoardRunner(Runner):
    """Measure models on this board."""

    def __init__(self, tick: Any) -> None:
        super().__init__(tick, EnergySource().window, read_inputs)

    def versions(self) -> dict[str, str]:
        """Return the versions of Python and of the libraries that measure."""
        return probe_program.versions()

    def probe(self, models: str, seconds: float) -> dict[str, Any]:
        """Benchmark this board with the models of a JSON file."""
        if Path(models).stat().st_size > MAX_PROBE_BYTES:
            raise ValueError("the file of the probe's models is too large")
        return probe_program.probe(json.loads(Path(models).read_text(encoding="utf-8")), seconds)


def read_inputs(path: str) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return the arrays of an .npz file that a client has uploaded. Raises ValueError or MemoryError."""
    available = _available_bytes()
    with zipfile.ZipFile(path) as archive:
        if sum(member.file_size for member in archive.infolist()) > available:
            raise MemoryError
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _available_bytes() -> int:
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, probe_program.memory_bytes())
    return probe_program.memory_bytes()


def serve(requests: IO[str], output: IO[str]) -> None:
    """Answer requests until there are no more."""

    def send(message: Any) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    runner = BoardRunner(Ticks(send))
    for line in requests:
        send(reply_to(json.loads(line), runner))


def _die_with(parent: int) -> None:
    """Be killed when the agent ends, so that nothing measures beside its successor."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def main() -> None:
    """Serve the agent that has started this process."""
    _die_with(int(sys.argv[1]))
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    with suppress(KeyboardInterrupt, BrokenPipeError):
        serve(sys.stdin, output)


if __name__ == "__main__":
    main()
