"""The command `onefold` before the package is loaded, which takes a moment: a signal meanwhile ends it with one line.

A module of its own, since importing any module of a package first imports the package.
"""

import os
import signal
from types import FrameType


def main() -> None:
    """Run a command."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and (name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN):
            signal.signal(number, _leave)
    from onefold.cli.entry import main as run_command

    run_command()


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
    os.write(2, b"onefold: interrupted before the command began\n")
    os._exit(130)
