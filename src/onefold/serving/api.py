"""`onefold.measure`, `serve_check` and `forget_measurements`: how to serve a model, and what is known of that."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onefold.device import PRECISE, STANDARD, Device, open_session, quiet_host, runtime
from onefold.device.catalog import HOST
from onefold.device.host import find_device, host
from onefold.device.measuring_process import HANG_TIMEOUT_S
from onefold.model_folder import check_target, saving
from onefold.processes import scratch_folder
from onefold.runtimes.registry import selected_runtimes
from onefold.serving import deploy
from onefold.serving.deploy import Deployment, ServeCheck
from onefold.serving.export import samples_beside
from onefold.serving.external_data import with_embedded_weights
from onefold.serving.options import ServingOptions
from onefold.serving.runtime_selection import RuntimeScore, convert_and_score, eligible
from onefold.serving.scenarios import DEFAULT_SCENARIOS, is_open_loop, parse_scenario
from onefold.serving.tuner import PointSearchOptions, ServingTuner
from onefold.store.home import Home
from onefold.vocabulary.argument_checks import suggest_keywords
from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.guarded_callback import GuardedCallback
from onefold.vocabulary.requirement import Bound
from onefold.vocabulary.serving import OptimizeFor, RuntimeResult, Served, Surface


@dataclass(frozen=True, slots=True)
class PointMeasured:
    """An event of `measure`: one serving point was measured."""

    device: Device
    served: Served


@dataclass(frozen=True, slots=True)
class MeasureStage:
    """An event of `measure`: what it does now, as a message for people."""

    message: str


@suggest_keywords
def measure(
    model: str | Path,
    device: str | Device | Sequence[str | Device] = HOST,
    *,
    serving: ServingOptions | None = None,
    require: Mapping[str, Bound] | None = None,
    save: str | Path | None = None,
    hang_timeout_s: float = HANG_TIMEOUT_S,
    home: str | Path | None = None,
    origin: Mapping[str, Any] | None = None,
    scoring: RuntimeScore | None = None,
    on_event: Callable[[PointMeasured | MeasureStage], None] | None = None,
) -> Deployment:
    """Find the best serving points of an ONNX model, and the settings for each scenario.

    With `serving.runtimes`, the model is converted for each runtime and scored there. The points of those that keep the
    requirements are measured, and the fastest is recommended for each scenario: on this machine by the call that
    serves, `deploy.load(folder)(inputs)`, in turns.

    Args:
        model: The ONNX file; its first dimension should be dynamic. Samples are read from an .npz file of the same name
            beside it, with one array per input; without it inputs are random.
        device: The name of a device, a `Device`, or several. `host` is this machine; those that have
            an agent are measured through it, and others are emulated.
        serving: What to optimize for, how to search, and the scenarios (default: single-stream and offline).
        require: Bounds on the metrics of a runtime: without `scoring`, on its `agreement` with ONNX Runtime.
        save: Write a deployment folder here.
        hang_timeout_s: Give up if loading the model or running one batch takes longer.
        home: The folder of devices and locks; by default $ONEFOLD_HOME or the user's data folder.
        origin: Recorded in the deployment as the origin of the model.
        scoring: How the model is scored in a runtime; by default by its agreement with ONNX Runtime on its samples.
        on_event: Called after each measurement, and with what is done before.

    Returns:
        The measured serving points and the chosen settings for each device.

    Raises:
        InputError: An option is invalid.
        DeviceError: A device is unknown.
        MissingExtra: A runtime is not installed.
        ModelError: The file is not an ONNX model or cannot be served; TooLarge if the device has too little memory,
            MeasuringFailed if it hangs or the process that serves it keeps dying.
    """
    options = serving or ServingOptions()
    options.check()
    if not hang_timeout_s > 0:
        raise InputError(f"hang_timeout_s must be above 0, got {hang_timeout_s}")
    if save is not None:
        check_target(save, "save")
    home_folder = Home(home)
    given = [device] if isinstance(device, (str, Device)) else list(device)
    targets = [target if isinstance(target, Device) else find_device(target, home_folder.devices) for target in given]
    notify = GuardedCallback(on_event)
    with scratch_folder() as folder:
        file = with_embedded_weights(Path(model), folder)
        if options.runtimes:
            file = _copied(file, folder)  # its forms lie beside it
        deployment = measure_file(
            file, targets, options, home_folder, origin or {"file": file.name}, require=require, scoring=scoring,
            hang_timeout_s=hang_timeout_s, on_event=notify,
        )  # fmt: skip
        if save is not None:
            with saving(save):
                deploy.write(save, file, deployment, home=home_folder.path)
    return deployment


def measure_file(
    file: Path,
    targets: Sequence[Device],
    options: ServingOptions,
    home: Home,
    origin: Mapping[str, Any],
    *,
    require: Mapping[str, Bound] | None = None,
    scoring: RuntimeScore | None = None,
    hang_timeout_s: float = HANG_TIMEOUT_S,
    on_event: Callable[[PointMeasured | MeasureStage], None] = lambda _: None,
) -> Deployment:
    """Measure a file as `measure` does, and write its forms for other runtimes beside it."""
    this_machine = host(home.devices)
    scenarios = options.scenarios or DEFAULT_SCENARIOS
    after_idle = any(is_open_loop(parse_scenario(text)) for text in scenarios)
    search = PointSearchOptions(OptimizeFor(options.optimize_for), options.search)
    results: tuple[RuntimeResult, ...] = ()
    if options.runtimes:
        names = selected_runtimes(options.runtimes)
        results = convert_and_score(file, names, scoring, require, lambda message: on_event(MeasureStage(message)))
    runtimes = eligible(results)
    settings = []
    for target in targets:
        with open_session(target, this_machine, hang_timeout_s, pairings=home.pairings) as session:
            tuner = ServingTuner(session, options.space, search, runtimes)
            tuner.prepare(file)
            with quiet_host(session, home.locks.measurement):
                surface = tuner.measure(
                    file,
                    STANDARD,
                    lambda served, target=target: on_event(PointMeasured(target, served)),  # type: ignore[misc]
                    final=PRECISE,
                    after_idle=after_idle,
                )
        with quiet_host(session, home.locks.measurement):
            settings.append(
                deploy.choose_device_settings(
                    target, surface, file, scenarios, options.scenario_goal, this_machine, results
                )
            )
    return Deployment(this_machine, tuple(settings), runtime(), origin)


def _copied(model: Path, folder: Path) -> Path:
    """Return a copy of a model with its samples in a folder, unless it lies there."""
    if model.parent == folder:
        return model
    copy = folder / model.name
    shutil.copyfile(model, copy)
    if samples_beside(model).is_file():
        shutil.copyfile(samples_beside(model), samples_beside(copy))
    return copy


@suggest_keywords
def serve_check(folder: str | Path, device: str | None = None, *, home: str | Path | None = None) -> list[ServeCheck]:
    """Serve a deployed model with its recommended settings and compare measured with expected latency.

    Args:
        folder: A deployment folder.
        device: One of the devices of the folder; by default all.
        home: The folder of devices and locks; by default $ONEFOLD_HOME or the user's data folder.

    Returns:
        One check per device and scenario. One that cannot be measured here says why in `unchecked`.

    Raises:
        ModelError: The folder is not a deployment folder, or has no settings for the device.
    """
    home_folder = Home(home)
    this_machine = host(home_folder.devices)
    return deploy.check(
        folder,
        this_machine,
        device,
        measurement_lock=home_folder.locks.measurement,
        pairings=home_folder.pairings,
    )


@suggest_keywords
def forget_measurements(
    device: str | None = None,
    *,
    older_than_s: float = 0.0,
    only_disturbed: bool = False,
    home: str | Path | None = None,
) -> int:
    """Forget how architectures are served, so that later studies measure them again; return how many were forgotten.

    Args:
        device: Forget what was measured on this device only.
        older_than_s: Forget only what was measured longer ago; measurements of versions before 0.2.0 have no date and
            count as older.
        only_disturbed: Forget only what other programs or throttling disturbed.
        home: The folder of studies and devices; by default $ONEFOLD_HOME or the user's data folder.

    Studies keep the figures of their own trials.

    Raises InputError if `older_than_s` is negative, or if nothing was ever measured on a device of that name.
    """
    if not older_than_s >= 0:
        raise InputError(f"older_than_s must be 0 or more, got {older_than_s}")
    now = datetime.now(UTC)
    with closing(Home(home).store()) as store, store.transaction():
        known = store.surfaces()
        devices = {surface.device for surface in known.values()}
        if device is not None and device not in devices:
            raise InputError(unknown("device", device, devices, of="the serving history"))
        forgotten = [
            key
            for key, surface in known.items()
            if device in (None, surface.device)
            and (not only_disturbed or surface.reasons_for_doubt)
            and _age_s(surface, now) >= older_than_s
        ]
        for key in forgotten:
            store.archive_surface(key)
    return len(forgotten)


def _age_s(surface: Surface, now: datetime) -> float:
    if not surface.measured_on:
        return math.inf
    return (now - datetime.fromisoformat(surface.measured_on)).total_seconds()
