"""A session on this machine, or on a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onefold.device.cpu_contention import NEGLIGIBLE
from onefold.device.device import Device
from onefold.device.timing_effort import TimingEffort, median_interval, quantile
from onefold.processes import JSON, Worker, available_cores
from onefold.vocabulary.errors import DeviceError, ModelError, TooLarge
from onefold.vocabulary.quantities import share, size
from onefold.vocabulary.records import Energy, Measurement, from_json, to_json
from onefold.vocabulary.serving import LatencySource, Served, ServingPoint

OUT_OF_MEMORY = ("out of memory", "allocate memory", "bad_alloc", "bad allocation")  # in messages of the runtime


class HostSession:
    """Serve models in a worker process confined to `cores` and `memory_bytes`; by default the whole machine.

    `emulates` is the device that error messages name, if the session emulates one.
    """

    def __init__(
        self,
        device: Device,
        cores: Sequence[int] | None = None,
        memory_bytes: int | None = None,
        *,
        emulates: Device | None = None,
    ) -> None:
        self.device = device
        self._named_device = emulates or device
        self._cores = sorted(cores if cores is not None else available_cores())
        self._memory_bytes = memory_bytes
        self._worker: Worker | None = None
        self._loaded: Path | None = None
        self._inputs: dict[Path, Path | None] = {}
        self._crashed = False  # the worker died while serving a model; the next model gets a new worker
        self._contention: dict[tuple[Path, ServingPoint], float] = {}  # of the latest measurement
        self.confinement: Any = None  # the `Confinement` of the worker, as JSON

    @property
    def threads(self) -> int:
        return min(len(self._cores), self.device.cores)

    def prepare(self, model: Path, inputs: Path | None, points: Sequence[ServingPoint]) -> None:
        if not model.is_file():
            raise ModelError(f"there is no model {model}; give the path of an ONNX file")
        self._loaded = None  # set again only when loading succeeds
        self._inputs[model] = inputs
        if self._crashed:
            self.__exit__()
            self.__enter__()
        for point in points or (ServingPoint(),):
            self._ask("open", model=str(model), inputs=str(inputs) if inputs else None, point=to_json(point))
        self._loaded = model

    def serve(self, model: Path, point: ServingPoint, effort: TimingEffort) -> Served:
        self._load(model, point)
        answer = self._ask("time", point=to_json(point), effort=to_json(effort))
        self._contention[model, point] = answer["contention"]
        times, cost = sorted(answer["times"]), from_json(Measurement, answer["cost"])
        low_s, median_s, high_s = median_interval(times)
        joules = None if cost.energy.joules is None else cost.energy.joules / len(times)
        return Served(
            point,
            latency_s=median_s,
            p90_s=quantile(times, 0.9),
            p99_s=quantile(times, 0.99),
            low_s=low_s,
            high_s=high_s,
            runs=len(times),
            energy=Energy(joules, cost.energy.source),
            memory_bytes=None,
            source=LatencySource.MEASURED,
        )

    def memory(self, model: Path, point: ServingPoint) -> int | None:
        self._load(model, point)
        peak_bytes = self._ask("memory", point=to_json(point))
        return None if peak_bytes is None else int(peak_bytes)

    def notes(self, model: Path) -> tuple[str, ...]:
        worst = max((value for (measured, _), value in self._contention.items() if measured == model), default=0.0)
        if worst <= NEGLIGIBLE:
            return ()
        return (f"contention: other programs took {share(worst)} of the CPU time during a measurement and its repeats",)

    def _load(self, model: Path, point: ServingPoint) -> None:
        if self._loaded != model:
            self.prepare(model, self._inputs.get(model), [point])

    def _ask(self, action: str, **message: Any) -> Any:
        if self._worker is None:
            raise DeviceError("the session is not open; use it in a with block")
        device = self._named_device
        try:
            answer = self._worker.ask({"do": action, **message})
        except (EOFError, OSError):
            self._loaded, self._crashed = None, True
            raise TooLarge(
                f"the process that serves the model was killed, as happens to a model that needs more than the "
                f"{size(device.memory_bytes)} of memory of {device.name}"
            ) from None
        if "error" in answer:
            if any(sign in answer["error"].lower() for sign in OUT_OF_MEMORY):
                raise TooLarge(
                    f"the model needs more than the {size(device.memory_bytes)} of memory of {device.name}; "
                    "make the model smaller or choose another device"
                )
            raise ModelError(f"the model cannot be served on {device.name}: {answer['error']}")
        return answer["answer"]

    def __enter__(self) -> HostSession:
        try:
            self._worker = Worker("onefold.device.runner", environment={"OMP_NUM_THREADS": "1"}, encoding=JSON)
        except OSError as error:
            raise DeviceError(f"the process that serves models cannot be started: {error}") from error
        self.confinement = self._ask("confine", cores=self._cores, memory_bytes=self._memory_bytes)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._worker is None:
            return
        self._worker.kill()
        self._worker = self._loaded = None
        self._crashed = False
        from onefold.device.confinement import remove_group  # imports onnxruntime, which only the worker needs

        remove_group((self.confinement or {}).get("group"))
