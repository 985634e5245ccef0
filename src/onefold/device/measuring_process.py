"""The process that serves models for a session: started, confined, watched and replaced.

It runs native code on models that nobody has run before. So it may crash, run out of memory or hang, and
other programs may kill or suspend it. What the model causes raises ModelError; everything else is tried
MAX_ATTEMPTS times, each time in a new process.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from onefold.agent.oom_kills import oom_kills
from onefold.agent.process_output import is_out_of_memory, last_output
from onefold.device.device import Device
from onefold.processes import JSON, SUSPENDED, Watch, Worker, describe_exit
from onefold.vocabulary.errors import DeviceError, MeasuringFailed, ModelError, TooLarge
from onefold.vocabulary.quantities import size

HANG_TIMEOUT_S = 120.0  # for creating a session or running one batch
START_TIMEOUT_S = 120.0  # until the process has imported the runtime and is confined
MAX_ATTEMPTS = 3  # at a request whose process dies or is suspended
POLL_S = 0.2
LARGE_SHARE = 0.1  # of the device's memory: what the kernel kills because memory ran out holds at least as much


class _ProcessLost(Exception):
    """The process died or was suspended; the text is a predicate."""


class MeasuringProcess:
    """Answer the requests of a session in a process confined to `cores` and `memory_bytes`.

    A context manager. `device` is the one that messages name. A request that shows no progress for `hang_timeout_s`
    fails: creating a session and running one batch are progress.
    """

    def __init__(
        self, device: Device, cores: Sequence[int], memory_bytes: int | None, hang_timeout_s: float = HANG_TIMEOUT_S
    ) -> None:
        self._device = device
        self._cores, self._memory_bytes = list(cores), memory_bytes
        self._hang_timeout_s = hang_timeout_s
        self._worker: Worker | None = None
        self._output: IO[bytes] | None = None
        self._oom_kills = 0
        self._resident_bytes = 0  # of the process when it was last polled
        self.confinement: Any = None  # the `Confinement` of the process, as JSON

    @property
    def pid(self) -> int | None:
        """Return the id of the process, or None if there is none."""
        return self._worker.pid if self._worker is not None else None

    def ask(self, action: str, files: Sequence[Path], inputs: Path | None, **message: Any) -> Any:
        """Return the answer to a request about a model, which may have been tried several times.

        Raises:
            DeviceError: The process was not started, or cannot be.
            TooLarge: Memory ran out: the runtime, the C++ library or the kernel says so.
            ModelError: The runtime refuses the request.
            MeasuringFailed: The process died or was suspended at every attempt, or made no progress.
        """
        if self._worker is None:
            raise DeviceError("the session is not open; use it in a with block")
        model, *weights = map(str, files)
        inputs_path = str(inputs) if inputs else None
        request = {"do": action, "model": model, "weights": next(iter(weights), None), "inputs": inputs_path, **message}
        for _ in range(MAX_ATTEMPTS):
            try:
                return self._ask(request, self._hang_timeout_s)
            except _ProcessLost as lost:
                reason = str(lost)
            except TimeoutError:
                self._restart()
                raise MeasuringFailed(
                    f"the model was stopped on {self._device.name}: no batch ended within {self._hang_timeout_s:g} s; "
                    "check whether it never ends, or raise hang_timeout_s",
                    "hung",
                ) from None
            self._restart()
        raise MeasuringFailed(
            f"the process that serves the model {reason}, {MAX_ATTEMPTS} times; find out why and measure again",
            "killed",
        )

    def _ask(self, message: Any, timeout_s: float) -> Any:
        try:
            answer = self._exchange(message, timeout_s)
        except TimeoutError:
            raise
        except (EOFError, OSError):
            raise self._death() from None
        if "error" in answer:
            if is_out_of_memory(answer["error"]):
                raise self._too_large()
            raise ModelError(f"the model cannot be served on {self._device.name}: {answer['error']}")
        return answer["answer"]

    def _exchange(self, message: Any, timeout_s: float) -> Any:
        """Send a request and return the reply, skipping ticks; raise TimeoutError after a silence of `timeout_s`."""
        worker = self._worker
        if worker is None:
            raise EOFError
        worker.send(message, timeout_s)
        watch = Watch(worker)
        while True:
            self._resident_bytes = worker.resident_bytes() or self._resident_bytes
            if worker.wait(POLL_S):
                reply = worker.receive(timeout_s)
                if "tick" not in reply:
                    return reply
                watch.record_message()
            watch.poll()
            if watch.is_suspended:
                raise _ProcessLost(SUSPENDED)
            if watch.silence_s > timeout_s:
                raise TimeoutError

    def _death(self) -> Exception:
        """Return what the death of the process means: TooLarge only if something proves it."""
        code = self._worker.exit_code() if self._worker is not None else None
        if code == -signal.SIGKILL and self._is_oom_killed():
            return self._too_large()
        if code == -signal.SIGKILL:
            return _ProcessLost("was killed by signal 9 (SIGKILL)")
        printed = last_output(self._output)
        if code == -signal.SIGABRT and is_out_of_memory(printed):
            return self._too_large()
        last_line = f" ({printed.splitlines()[-1].strip()})" if printed else ""
        return _ProcessLost(describe_exit(code) + last_line)

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"the model needs more than the {size(self._device.memory_bytes)} of memory of {self._device.name}; "
            "make the model smaller or choose another device"
        )

    def _is_oom_killed(self) -> bool:
        """Return whether the kernel has killed the process because memory ran out.

        The counters of the system count the kills of every process: one that was small was killed by a program.
        """
        is_large = self._resident_bytes >= LARGE_SHARE * self._device.memory_bytes
        return is_large and self._count_oom_kills() > self._oom_kills

    def _count_oom_kills(self) -> int:
        return oom_kills((self.confinement or {}).get("group"))

    def _restart(self) -> None:
        self.close()
        self.start()

    def start(self) -> None:
        """Start the process and confine it; it is killed by `close` or when this process dies."""
        self._resident_bytes = 0
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - has no name; closed by `close`
        try:
            self._worker = Worker(
                "onefold.device.runner",
                environment={"OMP_NUM_THREADS": "1"},
                encoding=JSON,
                output=self._output.fileno(),
            )
        except OSError as error:
            self.close()
            raise DeviceError(f"the process that serves models cannot be started: {error}") from error
        request = {"do": "confine", "cores": self._cores, "memory_bytes": self._memory_bytes}
        try:
            self.confinement = self._ask(request, max(START_TIMEOUT_S, self._hang_timeout_s))
        except (_ProcessLost, TimeoutError):
            self._worker.kill()  # the next request finds it dead and is tried again
        self._oom_kills = self._count_oom_kills()

    def close(self) -> None:
        """Kill the process and remove its control group. Harmless when repeated."""
        if self._output is not None:
            self._output.close()
            self._output = None
        if self._worker is None:
            return
        self._worker.kill()
        self._worker = None
        from onefold.device.confinement import remove_group  # imports resource, which only Unix has

        remove_group((self.confinement or {}).get("group"))
