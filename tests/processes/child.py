"""A child process for tests, which exits, crashes or hangs on request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from onefold.processes import Channel, connect_to_parent, paused_s, running_s


def reply(channel: Channel, request: str, *args: Any) -> Any:
    if request == "echo":
        return args[0]
    if request == "environment":
        return os.environ.get(args[0])
    if request == "modules":
        return sorted(sys.modules)
    if request == "path":
        return sys.path
    if request == "print":
        sys.stdout.write(args[0])
        sys.stdout.flush()
    if request == "exit":
        os._exit(args[0])
    if request == "abort":
        os.abort()
    if request == "half a message":
        os.write(channel.fileno(), b"\0\0\0")
        time.sleep(600)
    if request == "clocks":
        return running_s(), paused_s()
    if request == "hang":
        time.sleep(600)
    if request == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    if request == "start a child":
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid
    if request == "start a daemon":  # in a session of its own, and no longer a descendant
        program = "import os, time\nif os.fork() == 0:\n os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
        starter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        starter.wait()
        return int(starter.stdout.readline()) if starter.stdout is not None else None
    if request == "create a temporary file":
        with tempfile.NamedTemporaryFile(delete=False) as file:
            return file.name
    return None


def main() -> None:
    channel = connect_to_parent()
    while True:
        try:
            message = channel.receive()
        except EOFError:
            return
        channel.send(reply(channel, *message))


if __name__ == "__main__":
    main()
