"""A workload in a file, and the command `onefold` run beside it.

Most commands run in this process, since a new one would import torch for seconds. `alone` and `begun` start a new
process for commands that depend on the age of their process, start others, or are killed.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from onefold.cli.app import main
from onefold.processes import INTERRUPT_SIGNALS, restore_handlers

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
    """Run a command in that folder, with a home in it."""
    out, err = io.StringIO(), io.StringIO()
    with (
        _shell(here, words), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):  # fmt: skip
        main()
    return subprocess.CompletedProcess(words, int(ended.value.code or 0), out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _shell(here: Path, words: tuple[str, ...]) -> Iterator[None]:
    """Prepare this process for a command, and restore it."""
    modules, paths = set(sys.modules), list(sys.path)
    handlers = {number: signal.getsignal(number) for number in INTERRUPT_SIGNALS}
    try:
        with (
            contextlib.chdir(here),
            mock.patch.object(sys, "argv", ["onefold", *words]),
            mock.patch.dict(os.environ, {"ONEFOLD_HOME": str(here / "home"), "COLUMNS": "200"}),
        ):
            yield
    finally:
        restore_handlers(handlers)
        sys.path[:] = paths
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(here)):
                del sys.modules[name]  # the next folder has a file of the same name


def alone(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a new process."""
    process = begun(here, *words)
    out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def begun(here: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command in a new process with unbuffered output."""
    return subprocess.Popen(
        [sys.executable, "-m", "onefold.cli", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=here,
        env={**os.environ, "ONEFOLD_HOME": str(here / "home"), "COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until something has happened."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_loaded_torch(process: subprocess.Popen[str]) -> bool:
    """Return whether a process has begun its work or is about to: torch is mapped into its memory."""
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    """Read the output of a process up to a line with this text."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"the process ended without printing {text!r}")
