"""The deployment folder: a model with the settings to serve it, and what to expect.

deploy/model.onnx          the network
deploy/deployment.json     per device: the cost of each serving point, and the settings for each scenario
deploy/README.md           the model card
deploy/kernels.so, .json   its compiled kernels, if onefold.compile was called
deploy/manifest.json       the digests of these files

served = onefold.deploy.load("deploy/")
outputs = served(inputs)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from onefold.agent.forms import Form
from onefold.device import PRECISE, Device, TimingEffort, open_session, quiet_host
from onefold.kernels.compiled_model import CompiledModel
from onefold.kernels.kernel_library import AFTER, BEFORE, ORT, ORT_FORMS, TVM, LibraryManifest, read_library
from onefold.model_folder import ModelFolder, new_generation, open_folder
from onefold.runtimes.forms import copy_forms, read_forms
from onefold.runtimes.pytorch import PytorchRuntime
from onefold.runtimes.registry import find_runtime, missing_package
from onefold.serving.deployment import VERSION, Deployment, DeviceSettings, upgrade
from onefold.serving.deployment_files import CARD, DEPLOYMENT, MODEL, PROGRAM, model_in
from onefold.serving.export import samples_beside
from onefold.serving.load_test import load_test
from onefold.serving.model_card import model_card
from onefold.serving.queue_simulation import Response
from onefold.serving.runtime_selection import batch_for, race
from onefold.serving.scenario_settings import ScenarioSettings, choose_settings
from onefold.serving.scenarios import is_open_loop, parse_scenario
from onefold.serving.served_model import ServedModel
from onefold.vocabulary.documents import read_json
from onefold.vocabulary.errors import ModelError, unknown
from onefold.vocabulary.log import log_of
from onefold.vocabulary.records import to_json
from onefold.vocabulary.serving import OptimizeFor, RuntimeResult, Served, ServingPoint, Surface, best
from onefold.vocabulary.typed_json import checked_from_json

__all__ = [
    "CARD",
    "DEPLOYMENT",
    "MODEL",
    "VERSION",
    "Deployment",
    "DeviceSettings",
    "ServeCheck",
    "ServedModel",
    "check",
    "choose_device_settings",
    "load",
    "model_in",
    "read",
    "write",
    "write_files",
]

LOAD_TEST_S = 1.5
MAX_DEPLOYMENT_BYTES = 64_000_000
log = log_of()


def write(folder: str | Path, model: Path, deployment: Deployment, *, home: str | Path | None = None) -> Path:
    """Write a deployment folder; what is there is replaced as a whole.

    Args:
        folder: The folder; created if needed.
        model: The ONNX file; copied with the samples beside it.
        deployment: The settings to write.
        home: Folder of studies that records the folder as its own.

    Returns:
        The folder.
    """
    with new_generation(folder, home=home) as new:
        write_files(new, model, deployment)
    return Path(folder)


def write_files(folder: Path, model: Path, deployment: Deployment) -> None:
    """Write the files of a deployment into a new generation of a model folder, which may have its model already."""
    target = folder / (MODEL if model.suffix == ".onnx" else PROGRAM)
    if model.resolve() != target.resolve():
        shutil.copyfile(model, target)
        copy_forms(model, target)
        if samples_beside(model).is_file():
            shutil.copyfile(samples_beside(model), samples_beside(target))
    (folder / DEPLOYMENT).write_text(json.dumps(to_json(deployment), indent=1) + "\n", encoding="utf-8")
    (folder / CARD).write_text(model_card(deployment), encoding="utf-8")


def read(folder: str | Path) -> Deployment:
    """Return the content of a deployment folder.

    Raises:
        ModelError: The folder is not a deployment folder, or one of its files was changed, is invalid or is of a newer
            version.
    """
    if not (Path(folder) / DEPLOYMENT).is_file():
        raise _no_deployment(folder)
    return _read(open_folder(folder))


def _no_deployment(folder: str | Path) -> ModelError:
    return ModelError(
        f"{folder} is not a deployment folder: it has no {DEPLOYMENT}; save the result of a study for a "
        "device, or measure a model and save its deployment"
    )


def _read(folder: ModelFolder) -> Deployment:
    path = folder.file(DEPLOYMENT)
    if not path.is_file():
        raise _no_deployment(folder.path)
    try:
        deployment = checked_from_json(Deployment, upgrade(read_json(path, MAX_DEPLOYMENT_BYTES)))
        deployment.check()
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, ModelError) as error:
        raise ModelError(f"{path} cannot be read: {error}; measure the model again") from error
    return deployment


def load(
    folder: str | Path,
    device: str | None = None,
    scenario: str | None = None,
    runtime: str | None = None,
    *,
    trust: bool = False,
    home: str | Path | None = None,
) -> ServedModel | CompiledModel:
    """Load the model of a deployment folder with the settings for a device and a scenario.

    Compiled kernels are native code. They are loaded only if this home wrote the folder, or if it is trusted; without
    trust the model is served by onnxruntime.

    Args:
        folder: A deployment folder.
        device: One of its devices; by default the first.
        scenario: One of the scenarios of the device; by default the first.
        runtime: One of the runtimes that the model was converted for, such as openvino, or that `onefold.compile`
            compared: tvm, onnxruntime, "onnxruntime int8", the latter two also with "spinning". By default the
            recommended one, if it can be used here, and otherwise onnxruntime.
        trust: Load the native code of a folder that this home did not write.
        home: Folder of studies; by default $ONEFOLD_HOME or the user's data folder.

    Returns:
        A callable model: one array per input, the batch first.

    Raises:
        ModelError: The folder is incomplete, was changed, or has no such device, scenario or runtime; UntrustedFolder
            if `runtime` is "tvm" and the folder is not trusted.
    """
    if not (Path(folder) / DEPLOYMENT).is_file():
        raise _no_deployment(folder)
    opened = open_folder(folder, trust=trust, home=home)
    settings = _read(opened).on(device)
    choice = settings.choice(scenario) if scenario is not None else settings.choices[0]
    path = opened.file(model_in(opened.path).name)
    if not path.is_file():
        raise ModelError(f"{folder} has no {MODEL}; copy the whole deployment folder")
    if path.name == PROGRAM:
        if runtime not in (None, PytorchRuntime.name):
            raise ModelError(unknown("runtime", runtime, [PytorchRuntime.name], of=folder))
        return _served(opened, path, choice.point, choice)
    forms, library = read_forms(path), read_library(opened)
    if runtime is None and library is not None and _was_compiled_for(library, settings, choice):
        runtime = _recommended_runtime(library, opened)
    runtime = runtime or _usable(choice.point.runtime, opened, forms)
    if runtime == choice.point.runtime:
        return _served(opened, path, choice.point, choice)
    if runtime in forms or runtime == ORT:
        return _served(opened, path, _point_in(runtime, settings, choice, library), choice)
    known = [] if library is None else [entry.name for entry in library.runtimes if entry.name in ORT_FORMS]
    if library is not None and library.file:
        known.insert(0, TVM)
    if library is None or runtime not in known:
        raise ModelError(unknown("runtime", runtime, dict.fromkeys([ORT, *forms, *known]), of=folder))
    if runtime == TVM:
        before, after = (opened.file(name) if opened.file(name).is_file() else None for name in (BEFORE, AFTER))
        return CompiledModel(opened.code(library.file), library, choice, before, after)
    file, waiting = ORT_FORMS[runtime]
    point = ServingPoint(choice.point.batch_size, library.threads, waiting=waiting)  # as it was timed
    return ServedModel(opened.file(file), point, choice)


def _served(opened: ModelFolder, path: Path, point: ServingPoint, choice: ScenarioSettings) -> ServedModel:
    if point.runtime == PytorchRuntime.name:
        opened.code(path.with_suffix(PytorchRuntime.suffixes[0]).name)  # its programs can read and write files
    return ServedModel(path, point, choice)


def _usable(runtime: str, folder: ModelFolder, forms: Mapping[str, Form]) -> str:
    """Return the recommended runtime, or ONNX Runtime, with a warning, where that cannot be used."""
    if runtime == ORT:
        return runtime
    if runtime not in forms:
        reason = "the model was replaced since it was converted; measure it again"
    elif package := missing_package(find_runtime(runtime)):
        reason = f"{package} is not installed; install it with: pip install 'onefold[{find_runtime(runtime).extra}]'"
    elif runtime == PytorchRuntime.name and not folder.is_trusted:
        reason = "it was not written by this home; load the folder with trust=True if you know where it comes from"
    else:
        return runtime
    log.warning("%s is served by onnxruntime instead of %s: %s", folder.path, runtime, reason)
    return ORT


def _point_in(
    runtime: str, settings: DeviceSettings, choice: ScenarioSettings, library: LibraryManifest | None
) -> ServingPoint:
    """Return the point of a runtime that is nearest to the chosen one: measured, or as `onefold.compile` timed it."""
    own = [served for served in settings.surface.served if served.point.runtime == runtime]
    if own:
        goal = OptimizeFor.LATENCY if choice.point.batch_size == 1 else OptimizeFor.THROUGHPUT
        return replace(best(own, goal).point, batch_size=choice.point.batch_size)
    threads = choice.point.threads if library is None else library.threads
    return ServingPoint(choice.point.batch_size, threads, runtime=runtime)


def _recommended_runtime(library: LibraryManifest, folder: ModelFolder) -> str | None:
    """Return the recommended runtime if it can be used here, and None for onnxruntime."""
    if library.recommended != TVM:
        return library.recommended
    if not folder.is_trusted:
        log.warning(
            "%s was not written by this home: its compiled kernels are not loaded, and onnxruntime serves the model; "
            "load the folder with trust=True if you know where it comes from",
            folder.path,
        )
        return None
    return TVM if find_spec(TVM) else None


def _was_compiled_for(library: LibraryManifest, settings: DeviceSettings, choice: ScenarioSettings) -> bool:
    return library.device == settings.device.name and library.batch_size == choice.point.batch_size


@dataclass(frozen=True, slots=True)
class ServeCheck:
    """The expected and the present cost of one recommended serving point."""

    device: str
    scenario: str
    expected: Served
    measured: Served | None  # None if it cannot be measured
    predicted: Response  # response times when the settings were chosen
    response: Response | None  # response times of a load test now; None unless the device is this machine
    unchecked: str = ""  # why it was not measured

    @property
    def ratio(self) -> float | None:
        """Return the measured latency divided by expected latency; None if it was not measured."""
        return None if self.measured is None else self.measured.latency_s / self.expected.latency_s


def check(
    folder: str | Path,
    host: Device,
    device: str | None = None,
    effort: TimingEffort = PRECISE,
    *,
    measurement_lock: Callable[[], AbstractContextManager[None]] = nullcontext,
    pairings: Path | None = None,
) -> list[ServeCheck]:
    """Measure the recommended serving points of a deployment folder again, on the device or emulated.

    Args:
        folder: A deployment folder.
        host: This machine, calibrated (`onefold.device.host.host`).
        device: One of the devices of the folder; by default all.
        effort: The timing effort.
        measurement_lock: Keeps other measurements away from this machine.
        pairings: The folder of the pairings with agents.

    Returns:
        One check per device and scenario. Points with more threads than can be measured say so in `unchecked`.

    Raises:
        ModelError: The folder is invalid or has no such device.
    """
    deployment = read(folder)
    opened_folder = open_folder(folder)
    model = opened_folder.file(model_in(opened_folder.path).name)
    devices = [deployment.on(device)] if device is not None else list(deployment.devices)
    checks = []
    for settings in devices:
        opened = open_session(settings.device, host, pairings=pairings)
        with opened as session, quiet_host(session, measurement_lock):
            samples = samples_beside(model)
            points = list(dict.fromkeys(choice.point for choice in settings.choices))
            measurable = [point for point in points if point.threads <= session.threads]
            if any(point.runtime == PytorchRuntime.name for point in measurable):
                opened_folder.code(model.with_suffix(PytorchRuntime.suffixes[0]).name)
            session.prepare(model, samples if samples.is_file() else None, measurable)
            measured = {point: session.serve(model, point, effort) for point in measurable}
            checks += [
                ServeCheck(
                    settings.device.name,
                    choice.scenario,
                    settings.expected(choice.point),
                    measured.get(choice.point),
                    choice.predicted,
                    run_load_test(model, choice)
                    if settings.device.name == host.name and choice.point in measured
                    else None,
                    "" if choice.point in measured else _too_many_threads(choice.point, session.threads),
                )
                for choice in settings.choices
            ]
    return checks


def _too_many_threads(point: ServingPoint, measurable: int) -> str:
    return f"needs {point.threads} threads, but only {measurable} can be measured here"


def choose_device_settings(
    device: Device,
    surface: Surface,
    model: Path,
    scenarios: Sequence[str],
    scenario_goal: str,
    host: Device,
    runtimes: Sequence[RuntimeResult] = (),
) -> DeviceSettings:
    """Choose the settings for each scenario on a device; on this machine, load-test the open-loop scenarios.

    With several `runtimes`, those of this machine are compared through the call that serves, in turns.
    """
    is_here = device.name == host.name
    choices = [_choose(surface, model, text, scenario_goal, is_here=is_here) for text in scenarios]
    if is_here:
        choices = [
            replace(choice, confirmed=run_load_test(model, choice))
            if choice.predicted.stable and is_open_loop(parse_scenario(choice.scenario))
            else choice
            for choice in choices
        ]
    compared = runtimes if len(runtimes) < 2 else _with_latencies(runtimes, surface, model, is_here=is_here)
    return DeviceSettings(device, surface, tuple(choices), tuple(compared))


def _choose(surface: Surface, model: Path, text: str, goal: str, *, is_here: bool) -> ScenarioSettings:
    """Return the settings for a scenario; where batches follow each other, those of the runtime that wins a race."""
    scenario = parse_scenario(text)
    by_runtime = _by_runtime(surface)
    if len(by_runtime) < 2 or not is_here or is_open_loop(scenario):
        return choose_settings(scenario, surface.served, goal)
    choices = {name: choose_settings(scenario, served, goal) for name, served in by_runtime.items()}
    per_sample_s = race(model, {name: choice.point for name, choice in choices.items()}, next(iter(choices)))
    fastest = min(per_sample_s, key=per_sample_s.__getitem__)
    others = sorted((seconds, name) for name, seconds in per_sample_s.items() if name != fastest)
    faster = f"{fastest} is {others[0][0] / per_sample_s[fastest]:.2f}x as fast as {others[0][1]}" if others else ""
    return replace(choices[fastest], why="; ".join(filter(None, (choices[fastest].why, faster))))


def _with_latencies(
    runtimes: Sequence[RuntimeResult], surface: Surface, model: Path, *, is_here: bool
) -> list[RuntimeResult]:
    """Return the runtimes with their latencies for one sample."""
    served = {name: best(each, OptimizeFor.LATENCY) for name, each in _by_runtime(surface).items()}
    points = {name: each.point for name, each in served.items()}
    latencies = race(model, points, next(iter(points))) if is_here else {}
    return [
        replace(
            result,
            latency_s=latencies.get(result.runtime, served[result.runtime].latency_s),
            threads=points[result.runtime].threads,
        )
        if result.runtime in points
        else result
        for result in runtimes
    ]


def _by_runtime(surface: Surface) -> dict[str, list[Served]]:
    by_runtime: dict[str, list[Served]] = {}
    for served in surface.served:
        by_runtime.setdefault(served.point.runtime, []).append(served)
    return by_runtime


def run_load_test(model: Path, choice: ScenarioSettings) -> Response:
    """Return the response times of a short load test with these settings on this machine."""
    served = ServedModel(model, choice.point, choice)
    largest = choice.point.batch_size
    arrays = batch_for(model, served.model.inputs, largest)
    batches = {n: [array[:n] for array in arrays] for n in range(1, largest + 1)}
    return load_test(lambda n: served(*batches[n]), parse_scenario(choice.scenario), choice, LOAD_TEST_S)
