"""The session with a device: measure what serving a model costs there."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, Self

from onefold.device.device import Device
from onefold.device.emulated_session import EmulatedSession
from onefold.device.host_session import HostSession
from onefold.device.measuring_process import HANG_TIMEOUT_S
from onefold.device.timing_effort import TimingEffort
from onefold.vocabulary.serving import Served, ServingPoint


class Session(Protocol):
    """A connection to a device that measures models there.

    Use it as a context manager: entering connects to the device, exiting releases every process and limit that the
    session holds, also after an error. A session may be entered again after it was exited. Outside the block every
    measurement raises DeviceError.

    - A model is an ONNX file; `inputs` is an .npz file with one array per input, the batch first, or None for random
      inputs. The session remembers the inputs of a model, and may be asked about several models in turn.
    - `serve` labels each latency with its source: `measured` only on the device itself, otherwise `emulated`. It never
      returns a predicted point.
    - A model that the runtime refuses raises ModelError, and one that needs more memory than the device has raises
      TooLarge, a ModelError. Neither ends the session: the next model is served as if nothing had happened.
    - A process that is killed or suspended by another program is replaced and the request repeated. Only if that
      happens again and again, or if a model makes no progress for the session's hang timeout, MeasuringFailed, a
      ModelError, is raised.
    - A session is not thread-safe, and it does not check whether the machine is quiet: the caller holds the measurement
      lock around `serve`. `prepare` and `memory` are not timed and need no lock.

    `SessionContract` in `tests/device` tests these rules for any implementation.
    """

    device: Device

    @property
    def threads(self) -> int:
        """Return the largest number of intra-op threads that can be measured; more can only be predicted."""

    def prepare(self, model: Path, inputs: Path | None, points: Sequence[ServingPoint]) -> None:
        """Load a model for these serving points, so that `serve` starts without delay."""

    def serve(self, model: Path, point: ServingPoint, effort: TimingEffort) -> Served:
        """Return the cost of a batch at this serving point, timed with this effort. Loads the model if needed."""

    def memory(self, model: Path, point: ServingPoint) -> int | None:
        """Return the peak memory in bytes of a process that serves only this point; None if it cannot be measured."""

    def notes(self, model: Path) -> tuple[str, ...]:
        """Return caveats about the measurements of a model, one sentence each."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


def open_session(device: Device, host: Device, hang_timeout_s: float = HANG_TIMEOUT_S) -> Session:
    """Return a session for `device`, not yet entered: a real one for this machine (`host`), otherwise an emulated one.

    A model that needs more than `hang_timeout_s` to be loaded or to answer one batch is given up.

    This is the only place that chooses an implementation of `Session`.
    """
    if device.name == host.name:
        return HostSession(device, hang_timeout_s=hang_timeout_s)
    return EmulatedSession(device, host, hang_timeout_s)


def runtime() -> str:
    """Return the name and version of the inference runtime; another version has other kernels."""
    return f"onnxruntime {version('onnxruntime')}"
