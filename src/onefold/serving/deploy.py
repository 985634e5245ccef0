"""The deployment folder: a model with the settings to serve it, and what to expect.

deploy/model.onnx          the network
deploy/deployment.json     per device: what each serving point costs, and the choice for each scenario
deploy/README.md           the model card
deploy/kernels.so, .json   its kernels, compiled, where onefold compile made them

served = onefold.deploy.load("deploy/")
outputs = served(inputs)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onefold.device import PRECISE, Device, TimingEffort, open_session
from onefold.device.session_options import session_options
from onefold.kernels.kernel_library import ORT, ORT_FORMS, TVM, CompiledModel, LibraryManifest, read_library
from onefold.serving.export import samples_beside
from onefold.serving.load_test import load_test
from onefold.serving.point_prediction import interpolate_batch_size
from onefold.serving.queue_simulation import Response
from onefold.serving.scenarios import ScenarioSettings, choose, is_load
from onefold.serving.scenarios import scenario as scenario_of
from onefold.vocabulary.errors import ModelError, suggestion
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import from_json, to_json
from onefold.vocabulary.serving import SERVING_METRICS, Served, ServingPoint, Surface

MODEL, DEPLOYMENT, CARD = "model.onnx", "deployment.json", "README.md"
VERSION = 1
CONFIRM_S = 1.5  # how long a scenario is served for real
_KINDS = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(string)": "object"}  # as numpy calls them


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """How to serve on one device: all that is known, and the choice for each scenario."""

    device: Device
    surface: Surface
    choices: tuple[ScenarioSettings, ...]

    def choice(self, scenario: str) -> ScenarioSettings:
        """The choice for a scenario."""
        for choice in self.choices:
            if choice.scenario == scenario:
                return choice
        raise ModelError(
            f"there are no settings for the scenario {scenario!r}"
            f"{suggestion(scenario, [choice.scenario for choice in self.choices])}"
        )

    def expected(self, point: ServingPoint) -> Served:
        """What this point is expected to cost; a batch size between measured ones is predicted."""
        found = interpolate_batch_size(self.surface.served, point)
        if found is None:
            raise ModelError(
                f"nothing is known about serving on {self.device.name} at {point}; measure the model again"
            )
        return found


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the folder says."""

    host: Device  # the machine that measured
    devices: tuple[DeviceSettings, ...]
    runtime: str
    model: Mapping[str, Any] = field(default_factory=dict)  # where it comes from: study, trial, config, metrics
    version: int = VERSION

    def on(self, device: str | None = None) -> DeviceSettings:
        """The settings for a device; for the first one without a name."""
        if device is None:
            return self.devices[0]
        for found in self.devices:
            if found.device.name == device:
                return found
        known = [found.device.name for found in self.devices]
        raise ModelError(f"there are no settings for the device {device!r}{suggestion(device, known)}")


class ServedModel:
    """A model that is loaded with the recommended settings: call it with one array per input, the batch first."""

    def __init__(self, path: Path, point: ServingPoint, choice: ScenarioSettings | None = None) -> None:
        import onnxruntime

        self.point = point
        self.choice = choice  # of a scenario: also how long to wait for a batch to fill (wait_s), and what to expect
        try:
            self.session = onnxruntime.InferenceSession(
                str(path), session_options(point), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime raises many kinds
            raise ModelError(f"{path} cannot be served: {error}") from error
        self._names = [each.name for each in self.session.get_inputs()]
        self._kinds = [_KINDS.get(each.type, each.type[7:-1]) for each in self.session.get_inputs()]

    def __call__(self, *inputs: Any) -> Any:
        """The outputs for any number of samples, served in batches of the recommended size.

        Lists and numbers of another precision are turned into what the model takes.
        """
        import numpy as np

        if len(inputs) != len(self._names):
            raise ModelError(f"the model takes {len(self._names)} inputs ({', '.join(self._names)}), got {len(inputs)}")
        size = self.point.batch_size
        try:
            arrays = [np.asarray(each).astype(kind, "C", "same_kind") for each, kind in zip(inputs, self._kinds)]
            if len({len(array) for array in arrays}) > 1:
                raise ValueError(f"the inputs have different numbers of samples: {[len(array) for array in arrays]}")
            parts = [
                self.session.run(None, dict(zip(self._names, (array[at : at + size] for array in arrays))))
                for at in range(0, max(1, len(arrays[0])), size)
            ]
        except Exception as error:  # numpy and the runtime raise many kinds
            wanted = ", ".join(f"{each.name} {each.type} {each.shape}" for each in self.session.get_inputs())
            raise ModelError(f"the model takes {wanted}, the batch first: {error}") from error
        outputs = [np.concatenate(each) for each in zip(*parts)]
        return outputs[0] if len(outputs) == 1 else outputs


def write(folder: Path, model: Path, deployment: Deployment) -> Path:
    """Makes the deployment folder of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    if model.resolve() != (folder / MODEL).resolve():
        shutil.copyfile(model, folder / MODEL)
        if samples_beside(model).is_file():
            shutil.copyfile(samples_beside(model), samples_beside(folder / MODEL))
    whole = folder / f"{DEPLOYMENT}.new"
    whole.write_text(json.dumps(to_json(deployment), indent=1) + "\n", encoding="utf-8")
    (folder / CARD).write_text(card(deployment), encoding="utf-8")
    whole.replace(folder / DEPLOYMENT)
    return folder


def read(folder: str | Path) -> Deployment:
    """What a deployment folder says."""
    path = Path(folder) / DEPLOYMENT
    if not path.is_file():
        raise ModelError(
            f"{folder} is no deployment folder: it has no {DEPLOYMENT}; make one with onefold tune … --device NAME "
            "--save FOLDER, or with onefold measure model.onnx --save FOLDER"
        )
    try:
        found = from_json(Deployment, json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not found.devices:
        raise ModelError(f"{path} names no device; measure the model again")
    return found


def load(
    folder: str | Path, device: str | None = None, scenario: str | None = None, runtime: str | None = None
) -> ServedModel | CompiledModel:
    """The model of a deployment folder, ready to serve with the settings for a device and a scenario.

    Without them: the first device and its first scenario. `runtime` is one of those that `onefold compile` compared
    (tvm, onnxruntime, "onnxruntime int8", and the latter two with "spinning"); without it the recommended one where the
    scenario serves batches of the size that was compiled and tvm is installed where it is to be used, otherwise
    onnxruntime.
    """
    settings = read(folder).on(device)
    choice = settings.choice(scenario) if scenario is not None else settings.choices[0]
    path = Path(folder) / MODEL
    if not path.is_file():
        raise ModelError(f"{folder} has no {MODEL}; copy the whole deployment folder")
    library = read_library(Path(folder))
    if runtime is None and library is not None and _is_for(library, settings, choice):
        runtime = library.recommended if library.recommended != TVM or find_spec(TVM) else None
    if runtime in (None, ORT):
        return ServedModel(path, choice.point, choice)
    known = [TVM, *(one.name for one in library.runtimes if one.name in ORT_FORMS)] if library is not None else []
    if library is None or runtime not in known:
        raise ModelError(f"{folder} has no runtime {runtime!r}{suggestion(str(runtime), [ORT, *known])}")
    if runtime == TVM:
        return CompiledModel(Path(folder), library, choice)
    file, waiting = ORT_FORMS[runtime]
    point = ServingPoint(choice.point.batch_size, library.threads, waiting=waiting)  # as it was timed
    return ServedModel(Path(folder) / file, point, choice)


def _is_for(library: LibraryManifest, settings: DeviceSettings, choice: ScenarioSettings) -> bool:
    """Whether what was compiled is what this scenario serves."""
    return library.device == settings.device.name and library.batch_size == choice.point.batch_size


@dataclass(frozen=True, slots=True)
class ServeCheck:
    """One recommended point: what was expected, and what it costs now."""

    device: str
    scenario: str
    expected: Served
    measured: Served
    predicted: Response  # of the scenario, when it was chosen
    response: Response | None  # of the scenario, served for real; None where the device is not this machine

    @property
    def ratio(self) -> float:
        """Measured over expected latency."""
        return self.measured.latency_s / self.expected.latency_s


def check(
    folder: str | Path, host: Device, device: str | None = None, effort: TimingEffort = PRECISE
) -> list[ServeCheck]:
    """Serves the recommended points again, on the device or in its place, and puts measured beside expected."""
    deployment = read(folder)
    model = Path(folder) / MODEL
    wanted = [deployment.on(device)] if device is not None else list(deployment.devices)
    found = []
    for settings in wanted:
        with open_session(settings.device, host) as session:
            samples = samples_beside(model)
            points = list(dict.fromkeys(choice.point for choice in settings.choices))
            able = [point for point in points if point.threads <= session.threads]
            session.prepare(model, samples if samples.is_file() else None, able)
            measured = {point: session.serve(model, point, effort) for point in able}
        found += [
            ServeCheck(
                settings.device.name,
                choice.scenario,
                settings.expected(choice.point),
                measured[choice.point],
                choice.predicted,
                respond(model, choice) if settings.device.name == host.name else None,
            )
            for choice in settings.choices
            if choice.point in measured
        ]
    return found


def settings(
    device: Device, surface: Surface, model: Path, scenarios: Sequence[str], goal: str, host: Device
) -> DeviceSettings:
    """How to serve on a device; where that is this machine, choices for loads from outside are tried for real."""
    choices = [choose(scenario_of(text), surface.served, goal) for text in scenarios]
    if device.name == host.name:
        choices = [
            replace(each, confirmed=respond(model, each))
            if each.predicted.stable and is_load(scenario_of(each.scenario))
            else each
            for each in choices
        ]
    return DeviceSettings(device, surface, tuple(choices))


def respond(model: Path, choice: ScenarioSettings) -> Response:
    """What a client sees: the scenario's arrivals, served for real by the recommended settings."""
    import numpy as np

    from onefold.device.random_inputs import random_input

    served = ServedModel(model, choice.point, choice)
    most = choice.point.batch_size
    kept = samples_beside(model)
    if kept.is_file():
        with np.load(kept, allow_pickle=False) as samples:
            arrays = [np.resize(samples[name], (most, *samples[name].shape[1:])) for name in samples.files]
    else:
        arrays = [random_input(each, most) for each in served.session.get_inputs()]
    inputs = {n: [each[:n] for each in arrays] for n in range(1, most + 1)}
    return load_test(lambda n: served(*inputs[n]), scenario_of(choice.scenario), choice, CONFIRM_S)


def card(deployment: Deployment) -> str:
    """The model card, as Markdown."""
    about = deployment.model
    lines = ["# Model card", ""]
    if about.get("workload") or about.get("study"):
        lines += [f"Tuned by Onefold: study {about.get('study')}, trial {about.get('trial')}.", ""]
    for title, key in (("Configuration", "config"), ("On validation data", "metrics"), ("On test data", "test")):
        values = {name: value for name, value in (about.get(key) or {}).items() if not _is_serving(name)}
        if values:
            lines += [f"## {title}", "", "| name | value |", "| --- | --- |"]
            lines += [f"| {name} | {_figure(value)} |" for name, value in values.items()] + [""]
    for settings in deployment.devices:
        lines += [*_device_lines(settings), ""]
    lines += [
        "## How the numbers were obtained",
        "",
        f"With {deployment.runtime} on {deployment.host.title}. `measured`: on the device itself. `emulated`: on that "
        "machine, confined to the device's cores and memory, and carried over by a roofline. `predicted`: worked out "
        "from other points. Responses of scenarios are simulated from the latencies. Energy says its own source.",
        "",
    ]
    return "\n".join(lines)


def _is_serving(metric: str) -> bool:
    """Whether it is told by the tables of the devices, with how it was obtained."""
    return any(name.partition("@")[0] in SERVING_METRICS for name in Objective(minimize=metric).inputs)


_HEADS = (
    "scenario", "batch", "threads", "graph level", "wait", "latency", "p90", "p99", "samples/s", "energy/sample",
    "memory", "source",
)  # fmt: skip


def _device_lines(settings: DeviceSettings) -> Sequence[str]:
    rows = [f"| {' | '.join(_HEADS)} |", f"|{' --- |' * len(_HEADS)}"]
    for choice in settings.choices:
        served = settings.expected(choice.point)
        joules = served.energy_per_sample_j
        energy = "unknown" if joules is None else f"{joules:.3g} J ({served.energy.source})"
        rows.append(
            f"| {choice.scenario} | {choice.point.batch_size} | {choice.point.threads} | {choice.point.graph_level} "
            f"| {choice.wait_s * 1e3:.3g} ms | {served.latency_s * 1e3:.3g} ms | {served.p90_s * 1e3:.3g} ms "
            f"| {served.p99_s * 1e3:.3g} ms | {served.throughput_per_s:.4g} | {energy} "
            f"| {_memory(served.memory_bytes)} | {served.source.value} |"
        )
    reasons = [f"- {choice.scenario}: {choice.why}" for choice in settings.choices if choice.why]
    tried = [
        f"- {choice.scenario}: served for real, the mean response was {choice.confirmed.mean_s * 1e3:.3g} ms"
        for choice in settings.choices
        if choice.confirmed is not None
    ]
    notes = [f"- note: {note}" for note in settings.surface.notes]
    return [f"## On {settings.device.title} (`{settings.device.name}`)", "", *rows, "", *reasons, *tried, *notes]


def _memory(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 2**20:.3g} MiB"


def _figure(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
