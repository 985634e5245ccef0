"""Measure how the architecture of each trial is served, while the trials train.

An architecture is measured once per device, whatever its weights: the store keeps the result under the signature, the
device's figures, the serving space and the version of the runtime, for this study and all later ones. Measurements
pause the trials on this machine; the surface records for how long.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from onefold.device import AFTER_IDLE, PRECISE, QUICK, STANDARD, Device, Session, TimingEffort, open_session, runtime
from onefold.device.measuring_process import HANG_TIMEOUT_S
from onefold.engine import Engine
from onefold.serving.export import Exported
from onefold.serving.space import ServingSpace
from onefold.serving.tuner import PointSearchOptions, ServingTuner
from onefold.store import Store
from onefold.store.locks import MeasurementLock
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.records import Metrics, to_json
from onefold.vocabulary.serving import Surface, metrics_on

OnMeasured = Callable[[int, str, Surface, bool], None]  # trial, device, surface, whether it was recalled


class TrialMeasurement:
    """The serving measurements of one study; a context manager that closes the sessions with its devices."""

    def __init__(
        self,
        study: str,
        devices: tuple[Device, ...],
        host: Device,
        serving: PointSearchOptions,
        *,
        store: Store,
        engine: Engine,
        measurement_lock: MeasurementLock,
        space: ServingSpace | None = None,
        hang_timeout_s: float = HANG_TIMEOUT_S,
    ) -> None:
        self._study = study
        self._devices = devices
        self._host = host
        self._serving = serving
        self._whole_space = ServingSpace() if space is None else space
        self._hang_timeout_s = hang_timeout_s
        self._measurement_lock = measurement_lock
        self._store = store
        self._engine = engine
        self.on_measured: OnMeasured = lambda trial, device, surface, recalled: None  # noqa: ARG005
        self._surfaces: dict[tuple[int, str], Surface] = {}
        self._pending: dict[int, Exported] = {}  # trials whose architecture is not measured yet
        self._failed: dict[int, ModelError] = {}  # trials whose model cannot be served
        self._sessions: dict[str, Session] = {}
        self._stack = ExitStack()

    def __enter__(self) -> TrialMeasurement:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.__exit__(None, None, None)

    def recall(self) -> None:
        """Load the surfaces of this study's trials from the store, as measured for comparing trials."""
        devices = {device.name: device for device in self._devices}
        for (trial, name), linked in self._store.trial_surfaces(self._study).items():
            quick = self._store.surface(self._key(linked.signature, devices[name])) if name in devices else None
            self._surfaces[trial, name] = quick or linked

    def knows(self, trial: int) -> bool:
        """Return whether the surfaces of a trial are known on all devices."""
        return all((trial, device.name) in self._surfaces for device in self._devices)

    def take(self, exported: Exported) -> None:
        """Add an exported architecture; it is measured later unless the store has its surfaces."""
        self._pending[exported.trial] = exported
        for device in self._devices:
            key = self._key(exported.signature, device)
            known = self._store.surface(key)
            if known is not None:
                self._keep(exported.trial, device, key, known, recalled=True)
        if self.knows(exported.trial):
            del self._pending[exported.trial]

    def measure_pending(self) -> None:
        """Measure the pending architectures, pausing the trials meanwhile."""
        for exported in list(self._pending.values()):
            self._measure(exported)

    def metrics(self, trial: int) -> Metrics:
        """Return the serving metrics of a trial, measured now if needed. Raises ModelError if it cannot be served."""
        if trial in self._pending:
            self._measure(self._pending[trial])
        if trial in self._failed:
            raise self._failed[trial]
        return self.known_metrics(trial)

    def known_metrics(self, trial: int) -> Metrics:
        """Return the serving metrics of a trial that have been measured."""
        return metrics_on([device.name for device in self._devices], trial, self._surfaces)

    def measure_precisely(self, trial: int, model: Path, signature: str, *, after_idle: bool) -> dict[str, Surface]:
        """Return the surfaces of the winner by device: all points with standard effort, the best ones precisely.

        `after_idle` also measures latencies after idle gaps, which open-loop scenarios need.
        """
        surfaces = {}
        serving = replace(self._serving, thorough=True)
        for device in self._devices:
            efforts = (STANDARD, PRECISE, AFTER_IDLE) if after_idle else (STANDARD, PRECISE)
            key = memo_key(signature, device, self._host, self._space(device), serving, *efforts)
            surface = self._store.surface(key)
            recalled = surface is not None
            if surface is None:
                tuner = ServingTuner(self._session(device), self._space(device), serving)
                tuner.prepare(model)
                with self._measurement_lock(), self._engine.paused():
                    surface = tuner.measure(model, STANDARD, final=PRECISE, after_idle=after_idle)
            self._keep(trial, device, key, surface, recalled=recalled)
            surfaces[device.name] = surface
        return surfaces

    def _measure(self, exported: Exported) -> None:
        del self._pending[exported.trial]
        try:
            for device in self._devices:
                if (exported.trial, device.name) not in self._surfaces:
                    self._measure_on(device, exported)
        except ModelError as error:
            self._failed[exported.trial] = error
            self._stack.close()  # the model may have crashed the worker; the next one gets a new session
            self._sessions.clear()

    def _measure_on(self, device: Device, exported: Exported) -> None:
        key = self._key(exported.signature, device)
        surface = self._store.surface(key)  # two pending trials may share an architecture
        recalled = surface is not None
        if surface is None:
            model = Path(exported.model)
            tuner = ServingTuner(self._session(device), self._space(device), self._serving)
            tuner.prepare(model)
            with self._measurement_lock(), self._engine.paused():
                surface = tuner.measure(model, QUICK)
        self._keep(exported.trial, device, key, surface, recalled=recalled)

    def _keep(self, trial: int, device: Device, key: str, surface: Surface, *, recalled: bool) -> None:
        with self._store.transaction():
            if not recalled:
                self._store.save_surface(key, surface)
            self._store.link_surface(self._study, trial, device.name, key, recalled=recalled)
        self._surfaces[trial, device.name] = surface
        self.on_measured(trial, device.name, surface, recalled)

    def _space(self, device: Device) -> ServingSpace:
        return self._whole_space.on(device.cores)

    def _key(self, signature: str, device: Device) -> str:
        return memo_key(signature, device, self._host, self._space(device), self._serving, QUICK)

    def _session(self, device: Device) -> Session:
        if device.name not in self._sessions:
            session: Session = open_session(device, self._host, self._hang_timeout_s)
            self._stack.enter_context(session)
            self._sessions[device.name] = session
        return self._sessions[device.name]


def memo_key(
    signature: str,
    device: Device,
    host: Device,
    space: ServingSpace,
    serving: PointSearchOptions,
    *efforts: TimingEffort,
) -> str:
    """Return the key of a surface in the store: a hash of everything that the measurement depends on.

    The names in it are spelled out, so that renaming a field does not lose the measurements of older stores.
    """
    parts = {
        "signature": signature,
        "device": device.digest,
        "host": host.digest,  # whose latencies are scaled to the device's
        "space": to_json(space),
        "serving": {
            "purpose": serving.optimize_for.value,
            "algorithm": serving.algorithm,
            "thorough": serving.thorough,
        },
        "efforts": [
            {
                "warm_up": effort.warm_up_runs,
                "least": effort.min_runs,
                "most": effort.max_runs,
                "seconds": effort.max_seconds,
                "precision": effort.precision,
                "slowest_s": effort.max_batch_s,
                "rest_s": effort.idle_s,
            }
            for effort in efforts
        ],
        "runtime": runtime(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
