"""The first and the last steps of the command `onefold`.

This module loads next to nothing, since a signal before `main` has run ends in a traceback.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import FrameType

from onefold.processes.interrupt_signals import handle_interrupts

TIMED = "retrain"  # the command whose window includes the start and the end of its process


def main() -> None:
    """Run a command. SIGTERM and SIGHUP interrupt it like Ctrl-C."""
    handle_interrupts(_leave)
    is_timed = sys.argv[1:2] == [TIMED]
    if is_timed:
        from onefold.cli.retrain_app import main as run_command
    else:
        from onefold.cli.app import main as run_command

    try:
        run_command()
    except SystemExit as ended:
        if is_timed and isinstance(ended.code, int | None):
            _end(ended.code or 0)
        raise


def _end(code: int) -> None:
    """End the process without unloading its modules, which takes a second on a busy machine once torch is loaded."""
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the reader is gone
        code = code or 1
    os._exit(code)


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
    """Exit at once: no work has begun, and an import that is interrupted by an exception may swallow it."""
    os.write(2, b"onefold: interrupted before the command began\n")
    os._exit(130)
