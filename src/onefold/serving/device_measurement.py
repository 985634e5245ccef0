"""Measure architectures on one device of a study: in this thread, or beside it if the device has an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from onefold.device import Device, Session, TimingEffort, is_quiet, quiet_host
from onefold.serving.space import ServingSpace
from onefold.serving.tuner import PointSearchOptions, ServingTuner
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ONNXRUNTIME, OptimizeFor, Surface


@dataclass(frozen=True)
class SurfaceRequest:
    """What is measured of a model, and the name under which a board keeps it.

    `doubtful` is a disturbed surface of an earlier measurement: it stands if this machine is busy now, or if the new
    one is no better.
    """

    run: str
    model: Path
    serving: PointSearchOptions
    effort: TimingEffort
    final: TimingEffort | None = None
    after_idle: bool = False
    doubtful: Surface | None = None
    runtimes: tuple[str, ...] = (ONNXRUNTIME,)


def _measure_with(tuner: ServingTuner, request: SurfaceRequest) -> Surface:
    return tuner.measure(request.model, request.effort, final=request.final, after_idle=request.after_idle)


def doubt(surface: Surface) -> tuple[int, float]:
    """Return a key that sorts surfaces, the least disturbed first."""
    counted = [surface.best(goal) for goal in OptimizeFor]
    return len(surface.reasons_for_doubt), max(served.disturbance.contention for served in counted)


class DeviceMeasurement:
    """The measurements of one device. Its session is opened at first use, and again after a model that failed.

    Args:
        device: The device.
        open_session: Makes its session.
        space: Its serving points.
        quiet: Keeps this machine quiet, which devices without an agent need.
        cores: The cores that are reserved for it; by default none are.
        pause: Pauses what runs on other cores; used if a measurement on reserved ones was disturbed.
    """

    def __init__(
        self,
        device: Device,
        open_session: Callable[[], Session],
        space: ServingSpace,
        *quiet: Callable[[], AbstractContextManager[None]],
        cores: Sequence[int] = (),
        pause: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        self.device, self.space = device, space
        self._open_session, self._quiet = open_session, quiet
        self._cores, self._pause = cores, pause
        self._session: Session | None = None
        self._is_open = False
        # One thread, since a session is not thread-safe. It waits for the board, which takes no processor time here.
        self._thread = ThreadPoolExecutor(1, f"onefold-{device.name}") if device.agent else None

    def start(self, request: SurfaceRequest) -> Future[Surface]:
        """Begin to measure; return the surface to come. Without an agent it is there on return."""
        if self._thread is not None:
            return self._thread.submit(self._measure, request)
        future: Future[Surface] = Future()
        try:
            future.set_result(self._measure(request))
        except ModelError as error:
            future.set_exception(error)
        return future

    def _measure(self, request: SurfaceRequest) -> Surface:
        try:
            session = self._opened()
            session.begin(request.run)
            tuner = ServingTuner(session, self.space, request.serving, request.runtimes)
            tuner.prepare(request.model)
            with quiet_host(session, *self._quiet):
                if request.doubtful is not None and session.needs_host and not is_quiet(self._cores):
                    return request.doubtful
                surface = _measure_with(tuner, request)
                if self._pause is not None and surface.reasons_for_doubt:
                    with self._pause():
                        surface = min(surface, _measure_with(tuner, request), key=doubt)
                return surface if request.doubtful is None else min(surface, request.doubtful, key=doubt)
        except ModelError:
            self._exit()  # the model may have crashed the worker; the next one gets a new one
            raise

    def _opened(self) -> Session:
        if self._session is None:
            self._session = self._open_session()
        if not self._is_open:
            self._session.__enter__()
            self._is_open = True
        return self._session

    def _exit(self) -> None:
        if self._session is not None and self._is_open:
            self._is_open = False
            self._session.__exit__(None, None, None)

    def close(self) -> None:
        """Give up what is not measured yet, and close the session."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        self._exit()
