"""A session on this machine, or on a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onefold.device.cpu_contention import NEGLIGIBLE
from onefold.device.device import Device
from onefold.device.measuring_process import HANG_TIMEOUT_S, MeasuringProcess
from onefold.device.timing_effort import TimingEffort, median_interval, quantile
from onefold.processes import available_cores
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.quantities import share
from onefold.vocabulary.records import Energy, Measurement, from_json, to_json
from onefold.vocabulary.serving import LatencySource, Served, ServingPoint


class HostSession:
    """Serve models in a worker process confined to `cores` and `memory_bytes`; by default the whole machine.

    `emulates` is the device that error messages name, if the session emulates one. A model that needs more than
    `hang_timeout_s` to be loaded or to answer one batch is given up.
    """

    def __init__(
        self,
        device: Device,
        cores: Sequence[int] | None = None,
        memory_bytes: int | None = None,
        *,
        emulates: Device | None = None,
        hang_timeout_s: float = HANG_TIMEOUT_S,
    ) -> None:
        self.device = device
        self._cores = sorted(cores if cores is not None else available_cores())
        self._process = MeasuringProcess(emulates or device, self._cores, memory_bytes, hang_timeout_s)
        self._loaded: Path | None = None
        self._inputs: dict[Path, Path | None] = {}
        self._contention: dict[tuple[Path, ServingPoint], float] = {}  # of the latest measurement

    @property
    def threads(self) -> int:
        return min(len(self._cores), self.device.cores)

    @property
    def pid(self) -> int | None:
        """Return the id of the process that serves, or None outside the block."""
        return self._process.pid

    @property
    def confinement(self) -> Any:
        """Return the `Confinement` of the process that serves, as JSON."""
        return self._process.confinement

    def prepare(self, model: Path, inputs: Path | None, points: Sequence[ServingPoint]) -> None:
        if not model.is_file():
            raise ModelError(f"there is no model {model}; give the path of an ONNX file")
        self._loaded = None  # set again only when loading succeeds
        self._inputs[model] = inputs
        for point in points or (ServingPoint(),):
            self._ask("open", model, point=to_json(point))
        self._loaded = model

    def serve(self, model: Path, point: ServingPoint, effort: TimingEffort) -> Served:
        self._load(model, point)
        answer = self._ask("time", model, point=to_json(point), effort=to_json(effort))
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
        peak_bytes = self._ask("memory", model, point=to_json(point))
        return None if peak_bytes is None else int(peak_bytes)

    def notes(self, model: Path) -> tuple[str, ...]:
        worst = max((value for (measured, _), value in self._contention.items() if measured == model), default=0.0)
        if worst <= NEGLIGIBLE:
            return ()
        return (f"contention: other programs took {share(worst)} of the CPU time during a measurement and its repeats",)

    def _load(self, model: Path, point: ServingPoint) -> None:
        if self._loaded != model:
            self.prepare(model, self._inputs.get(model), [point])

    def _ask(self, action: str, model: Path, **message: Any) -> Any:
        inputs = self._inputs.get(model)
        return self._process.ask(action, model=str(model), inputs=str(inputs) if inputs else None, **message)

    def __enter__(self) -> HostSession:
        self._process.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.close()
        self._loaded = None
