"""Measure how the architecture of each trial is served, while the trials train.

An architecture is measured once per device, whatever its weights: the store keeps the result under the signature, the
device's figures, the serving space and the version of the runtime, for this study and all later ones. Measurements on
this machine pause the trials, unless cores are reserved for them; boards with an agent measure at the same time.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

from onefold.device import (
    AFTER_IDLE,
    PRECISE,
    QUICK,
    STANDARD,
    Device,
    TimingEffort,
    open_session,
    runtime,
)
from onefold.device.measuring_process import HANG_TIMEOUT_S
from onefold.engine import Engine
from onefold.runtimes.registry import version_of
from onefold.serving.device_measurement import DeviceMeasurement, SurfaceRequest
from onefold.serving.export import Exported
from onefold.serving.load_metrics import LoadMetrics
from onefold.serving.space import ServingSpace
from onefold.serving.tuner import PointSearchOptions
from onefold.store import Store
from onefold.store.locks import MeasurementLock
from onefold.vocabulary.errors import DeviceUnavailable, ModelError
from onefold.vocabulary.records import Metrics, to_json
from onefold.vocabulary.serving import ONNXRUNTIME, Surface, metrics_on

OnMeasured = Callable[[int, str, Surface, bool], None]  # trial, device, surface, whether it was recalled


class TrialMeasurement:
    """The serving measurements of one study; a context manager that closes the sessions with its devices.

    A device that does not answer leaves its metrics missing: `absent` says why. It is asked again for the next trial,
    and for the same one when it is promoted. `run` tells this study from others of the same name; devices with an agent
    do not measure what they have measured for it, also in another process.
    """

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
        pairings: Path | None = None,
        run: str = "",
        load: LoadMetrics | None = None,
        cores: Sequence[int] = (),
    ) -> None:
        self._study, self._run = study, run or secrets.token_hex(16)
        self._devices = devices
        self._host = host
        self._serving = serving
        self._whole_space = ServingSpace() if space is None else space
        self._store = store
        self._load = load
        self._cores = len(cores)
        opened = {
            device.name: partial(open_session, device, host, hang_timeout_s, pairings=pairings) for device in devices
        }
        # With all cores, while nothing trains.
        self._alone = {
            device.name: DeviceMeasurement(
                device, opened[device.name], self._space(device), measurement_lock, engine.paused
            )
            for device in devices
        }
        self._on = self._alone | {
            device.name: DeviceMeasurement(
                device,
                partial(opened[device.name], cores=cores),
                self._space(device),
                measurement_lock,
                cores=cores,
                pause=engine.paused,
            )
            for device in devices
            if cores and not device.agent
        }
        self.on_measured: OnMeasured = lambda trial, device, surface, recalled: None  # noqa: ARG005
        self._surfaces: dict[tuple[int, str], Surface] = {}
        self._pending: dict[int, Exported] = {}  # trials whose architecture is not measured yet
        self._failed: dict[int, ModelError] = {}  # trials whose model cannot be served
        self._absent: dict[int, DeviceUnavailable] = {}  # trials that lack the metrics of a device
        self._running: dict[tuple[int, str], tuple[str, Future[Surface]]] = {}  # with the key of the surface
        self._linked: dict[tuple[int, str], Surface] = {}  # as stored before this run
        self._settled: set[str] = set()  # keys of the surfaces that this study uses, however disturbed they are

    def __enter__(self) -> TrialMeasurement:
        return self

    def __exit__(self, *exc: object) -> None:
        for measurement in {*self._on.values(), *self._alone.values()}:
            measurement.close()

    def recall(self) -> None:
        """Load the surfaces of this study's trials from the store, as measured for comparing trials."""
        devices = {device.name: device for device in self._devices}
        for (trial, name), linked in self._store.trial_surfaces(self._study).items():
            quick = self._store.surface(self._key(linked.signature, devices[name])) if name in devices else None
            self._surfaces[trial, name] = quick or linked
            self._linked[trial, name] = linked
            if quick is not None:
                self._settled.add(self._key(linked.signature, devices[name]))

    def knows(self, trial: int) -> bool:
        """Return whether the surfaces of a trial are known on all devices, or are being measured."""
        pairs = [(trial, device.name) for device in self._devices]
        return all(pair in self._surfaces or pair in self._running for pair in pairs)

    def take(self, exported: Exported) -> None:
        """Add an exported architecture; boards begin to measure it, and this machine does later.

        What the store knows is not measured.
        """
        self._absent.pop(exported.trial, None)
        self._pending[exported.trial] = exported
        for device in self._devices:
            key = self._key(exported.signature, device)
            known = self._store.surface(key)
            if known is not None and not self._is_repeated(key, known):
                self._keep(exported.trial, device, key, known)
            elif device.agent:
                self._start(device, exported)
        if self.knows(exported.trial):
            del self._pending[exported.trial]

    def measure_pending(self) -> None:
        """Measure the pending architectures, pausing the trials meanwhile, and collect what boards have measured."""
        for exported in list(self._pending.values()):
            self._measure_here(exported)
        for pair, (_, future) in list(self._running.items()):
            if future.done():
                self._collect(pair)

    def metrics(self, trial: int) -> Metrics:
        """Return the serving metrics of a trial, measured now if needed. Raises ModelError if it cannot be served."""
        if trial in self._pending:
            self._measure_here(self._pending[trial])
        for pair in [pair for pair in self._running if pair[0] == trial]:
            self._collect(pair)
        if trial in self._failed:
            raise self._failed[trial]
        return self.known_metrics(trial)

    def absent(self, trial: int) -> str:
        """Return why metrics of a trial are missing, because a device did not answer; empty if none is."""
        return str(self._absent.get(trial, ""))

    def known_metrics(self, trial: int) -> Metrics:
        """Return the serving metrics of a trial that have been measured."""
        names = [device.name for device in self._devices]
        load = self._load.metrics(names, trial, self._surfaces) if self._load is not None else {}
        return {**metrics_on(names, trial, self._surfaces), **load}

    def measure_precisely(
        self,
        trial: int,
        model: Path,
        signature: str,
        *,
        after_idle: bool,
        runtimes: Sequence[str] = (ONNXRUNTIME,),
    ) -> dict[str, Surface]:
        """Return the surfaces of the winner by device: all points with standard effort, the best ones precisely.

        `after_idle` also measures latencies after idle gaps, which open-loop scenarios need. The forms of the model for
        other `runtimes` lie beside its file.
        """
        efforts = (STANDARD, PRECISE, AFTER_IDLE) if after_idle else (STANDARD, PRECISE)
        serving = replace(self._serving, thorough=True)
        keys = {
            device.name: memo_key(
                signature, device, self._host, self._space(device), serving, *efforts, runtimes=runtimes
            )
            for device in self._devices
        }
        known = {name: self._store.surface(key) for name, key in keys.items()}
        doubtful = {
            name: surface
            for name, surface in known.items()
            if surface and surface.reasons_for_doubt and self._linked.get((trial, name)) != surface
        }
        known = {name: None if name in doubtful else surface for name, surface in known.items()}
        # Boards begin first, and measure while this machine does.
        unknown = sorted((device for device in self._devices if known[device.name] is None), key=_is_here)
        running = {}
        for device in unknown:
            run = f"{self._run} {keys[device.name]}"
            request = SurfaceRequest(
                run, model, serving, STANDARD, PRECISE,
                after_idle=after_idle, doubtful=doubtful.get(device.name), runtimes=tuple(runtimes),
            )  # fmt: skip
            running[device.name] = self._alone[device.name].start(request)
        surfaces = {}
        for device in self._devices:
            surface = known[device.name]
            if surface is None:
                try:
                    surface = running[device.name].result()
                except DeviceUnavailable as error:
                    if (trial, device.name) not in self._surfaces:
                        raise
                    brief = self._surfaces[trial, device.name]
                    surfaces[device.name] = replace(brief, notes=(*brief.notes, f"measured only briefly: {error}"))
                    continue
            self._keep(trial, device, keys[device.name], surface)
            surfaces[device.name] = surface
        return surfaces

    def _measure_here(self, exported: Exported) -> None:
        """Measure an architecture on the devices that need this machine."""
        del self._pending[exported.trial]
        for device in self._devices:
            pair = exported.trial, device.name
            if pair not in self._surfaces and pair not in self._running and exported.trial not in self._failed:
                self._start(device, exported)
                self._collect(pair)

    def _start(self, device: Device, exported: Exported) -> None:
        """Begin to measure an architecture on a device, unless another trial has done so."""
        key = self._key(exported.signature, device)
        same = [future for other, future in self._running.values() if other == key]
        known = self._store.surface(key)  # two pending trials may share an architecture
        if known is not None and not self._is_repeated(key, known):
            future: Future[Surface] = Future()
            future.set_result(known)
        elif same:
            future = same[0]
        else:
            request = SurfaceRequest(f"{self._run} {key}", Path(exported.model), self._serving, QUICK, doubtful=known)
            future = self._on[device.name].start(request)
        self._running[exported.trial, device.name] = key, future

    def _collect(self, pair: tuple[int, str]) -> None:
        """Wait for a surface and keep it, or the reason why there is none."""
        trial, name = pair
        key, future = self._running[pair]
        try:
            surface = future.result()
        except DeviceUnavailable as error:
            self._absent[trial] = error
        except ModelError as error:
            self._failed[trial] = error
        else:
            self._keep(trial, self._on[name].device, key, surface)
        finally:
            self._running.pop(pair, None)

    def _keep(self, trial: int, device: Device, key: str, surface: Surface) -> None:
        with self._store.transaction():
            known = self._store.surface(key)
            if known is not None and known != surface and self._is_repeated(key, known):
                self._store.archive_surface(key)
                known = None
            if known is None:
                self._store.save_surface(key, surface)
            recalled, surface = known is not None, known or surface
            self._settled.add(key)
            self._store.link_surface(self._study, trial, device.name, key, recalled=recalled)
        self._surfaces[trial, device.name] = surface
        self.on_measured(trial, device.name, surface, recalled)

    def _is_repeated(self, key: str, known: Surface) -> bool:
        """Return whether a disturbed surface is measured again: once, before any trial of this study has it."""
        return bool(known.reasons_for_doubt) and key not in self._settled

    def _space(self, device: Device) -> ServingSpace:
        return self._whole_space.on(device.cores)

    def _key(self, signature: str, device: Device) -> str:
        cores = 0 if device.agent else self._cores
        return memo_key(signature, device, self._host, self._space(device), self._serving, QUICK, cores=cores)


def _is_here(device: Device) -> bool:
    return not device.agent


def memo_key(
    signature: str,
    device: Device,
    host: Device,
    space: ServingSpace,
    serving: PointSearchOptions,
    *efforts: TimingEffort,
    cores: int = 0,
    runtimes: Sequence[str] = (ONNXRUNTIME,),
) -> str:
    """Return the key of a surface in the store: a hash of everything that the measurement depends on.

    `cores` are those reserved for measuring, on which fewer threads can be measured; 0 stands for all.

    The names in it are spelled out, so that renaming a field does not lose the measurements of older stores.
    """
    parts: dict[str, object] = {
        "signature": signature,
        "device": device.digest,
        "host": "" if device.agent else host.digest,  # whose latencies are scaled to the device's
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
        "runtime": device.runtime or runtime(),
    }
    if cores:
        parts["cores"] = cores
    if others := [version_of(name) for name in runtimes if name != ONNXRUNTIME]:
        parts["runtimes"] = others
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
