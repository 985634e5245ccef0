"""Interrupt commands by Ctrl-C, SIGTERM and the end of the terminal."""

from __future__ import annotations

import os
import signal
import stat
from contextlib import suppress
from types import FrameType

from rich.text import Text

from onefold.cli.console import err
from onefold.processes import handle_interrupts

EXIT_CODE = 130  # 128 + SIGINT, as shells have it


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; exit at once while a module is being imported.

    An exception in the middle of an import may be swallowed, or crash a native module that is half initialized. After a
    hang-up, what is printed is discarded: the terminal is gone.
    """
    if number == getattr(signal, "SIGHUP", None):
        _leave_terminal()
    if _is_importing(frame):
        os.write(2, b"onefold: interrupted while modules were loaded; run the command again\n")
        os._exit(EXIT_CODE)  # workers and temporary files end with this process
    signal.default_int_handler(number, frame)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _leave_terminal() -> None:
    """Redirect the standard streams that are no files or pipes, since writing to a closed terminal is an error."""
    with open(os.devnull, "r+b") as nothing:  # noqa: PTH123 - no path of ours
        for descriptor in (0, 1, 2):
            with suppress(OSError):
                if _is_terminal(descriptor):
                    os.dup2(nothing.fileno(), descriptor)


def _is_terminal(descriptor: int) -> bool:
    return stat.S_ISCHR(os.fstat(descriptor).st_mode)  # isatty() is False for a terminal that was closed


def end_interrupted(command: str | None) -> None:
    """Say that a command was interrupted and exit. A further signal ends the program without a message."""
    handle_interrupts(_exit_at_once)
    name = f"`onefold {command}`" if command else "the command"
    err.print(Text.assemble(("onefold: ", "bold red"), f"{name} was interrupted; run it again"), soft_wrap=True)
    raise SystemExit(EXIT_CODE)


def _exit_at_once(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
    os._exit(EXIT_CODE)
