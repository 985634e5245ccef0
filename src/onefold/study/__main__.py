"""The processes of a queue: `python -m onefold.study run STUDY HOME CORES` and `python -m onefold.study serve HOME`.

They log to standard error and end with the exit code of the error that stopped them.
"""

from __future__ import annotations

import logging
import signal
import sys

from onefold.processes import handle_interrupts, pin_to_cores
from onefold.store.home import Home
from onefold.study.queue import Queue
from onefold.study.study import Study
from onefold.vocabulary.errors import OnefoldError
from onefold.vocabulary.log import log_of

log = log_of()


def main(command: str, *args: str) -> int:
    """Run a command; return its exit code."""
    handle_interrupts(signal.default_int_handler)  # SIGTERM and SIGHUP stop a study like Ctrl-C
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        if command == "run":
            name, home, cores = args
            pin_to_cores([int(core) for core in cores.split(",")])  # workers and measurements inherit that
            Study.open(name, home=home).run()
        else:
            Queue(Home(*args)).run()
    except OnefoldError as error:
        log.error("%s", error)
        return error.exit_code
    except KeyboardInterrupt:
        log.error("interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
