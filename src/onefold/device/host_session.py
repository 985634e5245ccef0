"""A session on this machine, or on a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onefold.device.device import Device
from onefold.device.measuring_process import HANG_TIMEOUT_S, MeasuringProcess
from onefold.device.measuring_session import MeasuringSession
from onefold.processes import available_cores


class HostSession(MeasuringSession):
    """Serve models in a worker process confined to `cores` and `memory_bytes`; by default the whole machine.

    `emulates` is the device that error messages name, if the session emulates one. A model that needs more than
    `hang_timeout_s` to be loaded or to answer one batch is given up.
    """

    needs_host = True

    def __init__(
        self,
        device: Device,
        cores: Sequence[int] | None = None,
        memory_bytes: int | None = None,
        *,
        emulates: Device | None = None,
        hang_timeout_s: float = HANG_TIMEOUT_S,
    ) -> None:
        self._cores = sorted(cores if cores is not None else available_cores())
        self._process = MeasuringProcess(emulates or device, self._cores, memory_bytes, hang_timeout_s)
        super().__init__(device, self._process)

    @property
    def threads(self) -> int:
        return min(len(self._cores), self.device.cores)

    @property
    def pid(self) -> int | None:
        """Return the id of the process that serves, or None outside the block."""
        return self._process.pid

    @property
    def confinement(self) -> Any:
        """Return the `Confinement` of the process that serves, as JSON."""
        return self._process.confinement
