"""The first steps of the command `onefold`: what a signal does while the modules of the command are loaded.

This module loads next to nothing, since a signal before it has run ends in a traceback.
"""

from __future__ import annotations

import os
from types import FrameType

from onefold.processes.interrupt_signals import handle_interrupts


def main() -> None:
    """Run a command. SIGTERM and SIGHUP interrupt it like Ctrl-C."""
    handle_interrupts(_leave)
    from onefold.cli.app import main as run_command

    run_command()


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
    """Exit at once: no work has begun, and an import that is interrupted by an exception may swallow it."""
    os.write(2, b"onefold: interrupted before the command began\n")
    os._exit(130)
