"""A workload in a file, and `onefold` as a real process beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WORKLOAD = """
import torch
from onefold import Choice, Float, Space, Workload, Data
from onefold.testing.toy import spirals

class Mine(Workload):
    space = Space(model=dict(width=Choice(4, 8)), training=dict(lr=Float(1e-3, 1e-1, log=True)))
    def build(self, config):
        return torch.nn.Sequential(torch.nn.Linear(2, config.width), torch.nn.Tanh(), torch.nn.Linear(config.width, 2))
    def data(self):
        return Data(train=spirals(200, 0), test=spirals(50, 1))
"""


def onefold(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "onefold.cli", *words],
        capture_output=True, text=True, cwd=here, timeout=120,
        env={**os.environ, "ONEFOLD_HOME": str(here / "home"), "COLUMNS": "200"},
    )  # fmt: skip


def begun(here: Path, *words: str) -> subprocess.Popen[str]:
    """A command under way, whose every line can be read as soon as it is said."""
    return subprocess.Popen(
        [sys.executable, "-m", "onefold.cli", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=here,
        env={**os.environ, "ONEFOLD_HOME": str(here / "home"), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
