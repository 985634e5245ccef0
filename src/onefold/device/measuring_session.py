"""What sessions that measure on the device itself share, wherever the process that serves models runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from onefold.agent.cpu_contention import NEGLIGIBLE
from onefold.agent.forms import Form, form_to_json
from onefold.agent.timing_effort import TimingEffort
from onefold.device.device import Device
from onefold.runtimes.forms import form_of
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.quantities import share
from onefold.vocabulary.records import Energy, Measurement, from_json, to_json
from onefold.vocabulary.serving import Disturbance, LatencySource, Served, ServingPoint


class Measurer(Protocol):
    """Answers the requests of `onefold.agent.runner`, here or on a board."""

    def start(self) -> None:
        """Connect, or start the process."""

    def close(self) -> None:
        """Release everything that was started. Harmless when repeated."""

    def ask(self, action: str, files: Sequence[Path], inputs: Path | None, **message: Any) -> Any:
        """Return the answer to a request about a model, which is one file or two of a form.

        Raises DeviceError if it was not started, or ModelError.
        """


class MeasuringSession:
    """Measure on a device through a `Measurer`, and remember the inputs of each model and what disturbed it."""

    def __init__(self, device: Device, measurer: Measurer) -> None:
        self.device = device
        self._measurer = measurer
        self._loaded: Path | None = None
        self._inputs: dict[Path, Path | None] = {}
        self._forms: dict[tuple[Path, str], Form | None] = {}  # by model and runtime, since it was prepared
        self._answers: dict[tuple[Path, ServingPoint], Mapping[str, Any]] = {}  # of the latest measurement

    def begin(self, run: str) -> None:
        """Keep nothing: everything is measured anew."""

    def prepare(self, model: Path, inputs: Path | None, points: Sequence[ServingPoint]) -> None:
        if not model.is_file():
            raise ModelError(f"there is no model {model}; give the path of an ONNX file")
        self._loaded = None  # set again only when loading succeeds
        self._inputs[model] = inputs
        self._forms = {key: form for key, form in self._forms.items() if key[0] != model}
        for point in points or (ServingPoint(),):
            self._ask("open", model, point)
        self._loaded = model

    def serve(self, model: Path, point: ServingPoint, effort: TimingEffort) -> Served:
        self._load(model, point)
        answer = self._ask("time", model, point, effort=to_json(effort))
        self._answers[model, point] = answer
        return _served(point, answer)

    def memory(self, model: Path, point: ServingPoint) -> int | None:
        self._load(model, point)
        peak_bytes = self._ask("memory", model, point)
        return None if peak_bytes is None else int(peak_bytes)

    def notes(self, model: Path) -> tuple[str, ...]:
        answers = [answer for (measured, _), answer in self._answers.items() if measured == model]
        notes = list(dict.fromkeys(f"throttled: {each['throttling']}" for each in answers if each["throttling"]))
        worst = max((answer["contention"] for answer in answers), default=0.0)
        if worst > NEGLIGIBLE:
            taken = f"other programs took {share(worst)} of the CPU time"
            notes.append(f"contention: {taken} during a measurement and its repeats")
        if any(answer.get("clock") == "cpu" for answer in answers):
            notes.append(
                "with one thread, latencies are CPU time where others took too much of it to time batches by the clock"
            )
        return tuple(notes)

    def _load(self, model: Path, point: ServingPoint) -> None:
        if self._loaded != model:
            self.prepare(model, self._inputs.get(model), [point])

    def _ask(self, action: str, model: Path, point: ServingPoint, **message: Any) -> Any:
        key = model, point.runtime
        if key not in self._forms:
            self._forms[key] = form_of(*key)
        form, files = self._forms[key], [model]
        if form is not None:
            files, message = [model.with_name(name) for name in form.files], {**message, "form": form_to_json(form)}
        return self._measurer.ask(action, files, self._inputs.get(model), point=to_json(point), **message)

    def __enter__(self) -> Self:
        self._measurer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._measurer.close()
        self._loaded = None


def _served(point: ServingPoint, answer: Mapping[str, Any]) -> Served:
    """Return the answer to a timing request as a record; energy is that of one run."""
    energy = from_json(Measurement, answer["cost"]).energy
    return Served(
        point,
        latency_s=answer["latency_s"],
        p90_s=answer["p90_s"],
        p99_s=answer["p99_s"],
        low_s=answer["low_s"],
        high_s=answer["high_s"],
        runs=answer["runs"],
        energy=Energy(None if energy.joules is None else energy.joules / answer["runs"], energy.source),
        memory_bytes=None,
        source=LatencySource.CPU_TIME if answer.get("clock") == "cpu" else LatencySource.MEASURED,
        disturbance=Disturbance(answer["contention"], answer["throttling"]),
    )
