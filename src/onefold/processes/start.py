"""The start of every child: `python -m onefold.processes.start MODULE FD PAUSES_FD PARENT`.

It ties the child to its parent and runs MODULE.

Importing a worker's libraries takes seconds. A parent that is killed meanwhile must not leave the child behind.
"""

from __future__ import annotations

import runpy
import sys

from onefold.processes.entry import die_with_parent, leave_signals_to_parent
from onefold.processes.running_clock import follow_pauses


def main(module: str, descriptor: str, pauses_descriptor: str, parent: str) -> None:
    """Run a module as the main program with the descriptor of its channel as its argument."""
    die_with_parent(int(parent))
    follow_pauses(int(pauses_descriptor))
    leave_signals_to_parent()
    sys.argv = [module, descriptor]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
