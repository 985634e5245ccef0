"""The process that measures on a board: started when it is needed, watched, replaced, and ended when it is not."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from onefold.agent.oom_kills import oom_kills
from onefold.agent.process_output import is_out_of_memory, last_output

START_TIMEOUT_S = 120.0  # boards load the runtime from a slow card
MAX_ATTEMPTS = 3  # at a request whose process dies
LARGE_BYTES = 50_000_000  # what the kernel kills because memory ran out is larger than an idle process

TOO_LARGE, REFUSED, HUNG, KILLED = "too large", "refused", "hung", "killed"


class MeasuringError(Exception):
    """A request that could not be answered; `kind` is too large, refused, hung or killed."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Died(Exception):
    """The process died; the text is a predicate."""


class Measuring:
    """Answer requests in a process of its own. Use it from a single thread, which must outlive the process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._pending = b""
        self._oom_kills = 0
        self._resident_bytes = 0

    @property
    def pid(self) -> int | None:
        """Return the id of the process, if there is one."""
        return self._process.pid if self._process is not None else None

    def ask(self, message: Mapping[str, Any], hang_timeout_s: float) -> Any:
        """Return the answer to a request. Raises MeasuringError."""
        reason = ""
        for _ in range(MAX_ATTEMPTS):
            try:
                reply = self._exchange(message, hang_timeout_s)
            except TimeoutError:
                self.close()
                raise MeasuringError(HUNG, f"no batch ended within {hang_timeout_s:g} s") from None
            except _Died as died:
                reason = str(died)
                self.close()
                continue
            if "error" not in reply:
                return reply["answer"]
            text = str(reply["error"])
            raise MeasuringError(TOO_LARGE if is_out_of_memory(text) else REFUSED, text)
        raise MeasuringError(KILLED, f"the process that serves the model {reason}, {MAX_ATTEMPTS} times")

    def interrupt(self) -> None:
        """Kill the process, from any thread; the request that it answers fails."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process. Harmless when repeated."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
        if self._output is not None:
            self._output.close()
        self._process, self._output, self._pending = None, None, b""

    def _exchange(self, message: Mapping[str, Any], hang_timeout_s: float) -> Any:
        """Send a request and return the reply, skipping ticks."""
        is_new = self._process is None or self._process.poll() is not None
        process = self._start()
        timeout_s = max(hang_timeout_s, START_TIMEOUT_S) if is_new else hang_timeout_s
        try:
            if process.stdin is not None:
                process.stdin.write(json.dumps(message).encode() + b"\n")
                process.stdin.flush()
            while True:
                reply = json.loads(self._line(process, timeout_s))
                if "tick" not in reply:
                    return reply
                timeout_s = hang_timeout_s
        except (OSError, EOFError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise self._death(process) from None

    def _line(self, process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
        if process.stdout is None:
            raise EOFError
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            self._resident_bytes = _resident_bytes(process.pid) or self._resident_bytes
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            if select.select([process.stdout], [], [], min(left_s, 0.5))[0]:
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise EOFError
                self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        root = str(Path(__file__).absolute().parents[2])  # the folder or the archive that has the package
        environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - has no name; closed by `close`
        self._oom_kills, self._resident_bytes = oom_kills(), 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "onefold.agent.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the agent
        )
        return self._process

    def _death(self, process: subprocess.Popen[bytes]) -> Exception:
        """Return what the death of the process means: too large only if something proves it."""
        process.kill()
        code = process.wait()
        printed = last_output(self._output)
        is_killed = code == -signal.SIGKILL and self._resident_bytes > LARGE_BYTES and oom_kills() > self._oom_kills
        is_aborted = code == -signal.SIGABRT and is_out_of_memory(printed)
        if is_killed or is_aborted:
            return MeasuringError(TOO_LARGE, "memory ran out")
        last = printed.splitlines()[-1].strip() if printed else ""
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return _Died(f"{ended} ({last})" if last else ended)


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
