"""The session with a device: measure what serving a model costs there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, Self

from onefold.agent.cpu_contention import busy_share
from onefold.agent.timing_effort import TimingEffort
from onefold.device.device import Device
from onefold.device.emulated_session import EmulatedSession
from onefold.device.host_session import HostSession
from onefold.device.measuring_process import HANG_TIMEOUT_S
from onefold.device.pairing import find_pairing
from onefold.device.remote_session import RemoteSession
from onefold.processes import available_cores
from onefold.vocabulary.errors import DeviceUnavailable
from onefold.vocabulary.serving import Served, ServingPoint

MAX_BUSY_SHARE = 0.1  # of the cores of a quiet machine


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
    - A device that does not answer is waited for; then DeviceUnavailable is raised. The session may be used further.
    - A session is not thread-safe, and one that `needs_host` does not check whether this machine is quiet: the caller
      does its `serve` inside `quiet_host`. `prepare` and `memory` are not timed and need no lock.

    `SessionContract` in `tests/device` tests these rules for any implementation.
    """

    device: Device

    @property
    def needs_host(self) -> bool:
        """Return whether it measures on this machine, which must be quiet meanwhile."""

    @property
    def threads(self) -> int:
        """Return the largest number of intra-op threads that can be measured; more can only be predicted."""

    def begin(self, run: str) -> None:
        """Name the work that follows, on one architecture: what a board has answered for that name, it answers again.

        Without a name, or where nothing outlives the session, everything is measured anew.
        """

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


def open_session(
    device: Device,
    host: Device,
    hang_timeout_s: float = HANG_TIMEOUT_S,
    *,
    pairings: Path | None = None,
    cores: Sequence[int] | None = None,
) -> Session:
    """Return a session for a device, not yet entered: on this machine (`host`), through its agent, or emulated.

    This is the only place that chooses an implementation of `Session`.

    Args:
        device: The device.
        host: This machine.
        hang_timeout_s: A model that needs longer to be loaded or to answer one batch is given up.
        pairings: The folder of the pairings with agents.
        cores: The cores of this machine to measure on; by default all, or as many as an emulated device has.

    Raises:
        DeviceUnavailable: The device has an agent that this machine is not paired with.
    """
    if device.name == host.name:
        return HostSession(device, cores, hang_timeout_s=hang_timeout_s)
    if not device.agent:
        return EmulatedSession(device, host, hang_timeout_s, cores)
    pairing = find_pairing(device.name, pairings) if pairings is not None else None
    if pairing is None or pairing.fingerprint != device.agent:
        raise DeviceUnavailable(
            f"this machine is not paired with the agent of {device.name}; add the device again with a pairing code"
        )
    return RemoteSession(device, pairing.connect(device.name), hang_timeout_s)


@contextmanager
def quiet_host(session: Session, *quiet: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Enter what keeps this machine quiet, such as the measurement lock, if the session measures on it."""
    with ExitStack() as stack:
        for enter in quiet if session.needs_host else ():
            stack.enter_context(enter())
        yield


def is_quiet(cores: Sequence[int] = ()) -> bool:
    """Return whether these cores are idle now; by default those that this process may use."""
    return busy_share(cores or available_cores()) <= MAX_BUSY_SHARE


def runtime() -> str:
    """Return the name and version of the inference runtime; another version has other kernels."""
    return f"onnxruntime {version('onnxruntime')}"
