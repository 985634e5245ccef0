"""Being on a device: serve a model at a point and learn what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from onefold.device.cpu_contention import NEGLIGIBLE
from onefold.device.device import Device
from onefold.device.roofline import OperatorCost, latency_ratio, operator_costs, unknown
from onefold.device.timing_effort import TimingEffort, interval, quantile
from onefold.processes import JSON, Worker, available_cores
from onefold.vocabulary.errors import DeviceError, ModelError, TooLarge
from onefold.vocabulary.records import Energy, Measurement, from_json, to_json
from onefold.vocabulary.serving import LatencySource, Served, ServingPoint

OUT_OF_MEMORY = ("out of memory", "allocate memory", "bad_alloc", "bad allocation")  # as the runtime says it


class Session(Protocol):
    """A device that is there to be used. `with session:` opens and closes it."""

    device: Device

    @property
    def threads(self) -> int:
        """The most threads that can be tried here; more are only ever predicted."""

    def prepare(self, model: Path, inputs: Path | None, points: Sequence[ServingPoint]) -> None:
        """Loads a model for these points. Not timed: it may be done while the machine is busy."""

    def serve(self, model: Path, point: ServingPoint, effort: TimingEffort) -> Served:
        """What serving at this point costs. Timed: nothing else should run meanwhile."""

    def memory(self, model: Path, point: ServingPoint) -> int | None:
        """The peak memory, in bytes, of a process that serves at this point and nothing else. Not timed."""

    def notes(self, model: Path) -> tuple[str, ...]:
        """What to know about the figures that were measured of a model, in words."""

    def __enter__(self) -> Session: ...

    def __exit__(self, *exc: object) -> None: ...


class HostSession:
    """This machine, or a part of it: a process of its own, confined to `cores` and `memory_bytes`."""

    def __init__(
        self,
        device: Device,
        cores: Sequence[int] | None = None,
        memory_bytes: int | None = None,
        *,
        instead_of: Device | None = None,
    ) -> None:
        self.device = device
        self._named = instead_of or device  # whom errors speak of
        self._cores = sorted(cores if cores is not None else available_cores())
        self._memory_bytes = memory_bytes
        self._worker: Worker | None = None
        self._opened: Path | None = None
        self._inputs: dict[Path, Path | None] = {}
        self._ended = False  # the process died of a model; the next one gets a new process
        self._waited: dict[tuple[Path, ServingPoint], float] = {}  # how much of the latest measurement others had
        self.confinement: Any = None  # how it is kept to its cores and memory

    @property
    def threads(self) -> int:
        return min(len(self._cores), self.device.cores)

    def prepare(self, model: Path, inputs: Path | None, points: Sequence[ServingPoint]) -> None:
        if not model.is_file():
            raise ModelError(f"there is no model {model}; give the path of an ONNX file")
        self._opened = None  # what was open before is not what a failing model leaves behind
        self._inputs[model] = inputs
        if self._ended:
            self.__exit__()
            self.__enter__()
        for point in points or (ServingPoint(),):
            self._ask("open", model=str(model), inputs=str(inputs) if inputs else None, point=to_json(point))
        self._opened = model

    def serve(self, model: Path, point: ServingPoint, effort: TimingEffort) -> Served:
        self._open(model, point)
        found = self._ask("time", point=to_json(point), effort=to_json(effort))
        self._waited[model, point] = found["waited"]
        times, cost = sorted(found["times"]), from_json(Measurement, found["cost"])
        low, middle, high = interval(times)
        joules = None if cost.energy.joules is None else cost.energy.joules / len(times)
        return Served(
            point,
            latency_s=middle,
            p90_s=quantile(times, 0.9),
            p99_s=quantile(times, 0.99),
            low_s=low,
            high_s=high,
            runs=len(times),
            energy=Energy(joules, cost.energy.source),
            memory_bytes=None,
            source=LatencySource.MEASURED,
        )

    def memory(self, model: Path, point: ServingPoint) -> int | None:
        self._open(model, point)
        found = self._ask("memory", point=to_json(point))
        return None if found is None else int(found)

    def notes(self, model: Path) -> tuple[str, ...]:
        waited = max((share for (of, _), share in self._waited.items() if of == model), default=0.0)
        if waited <= NEGLIGIBLE:
            return ()
        return (f"other programs had {waited:.0%} of the processor during a measurement, also when it was repeated",)

    def _open(self, model: Path, point: ServingPoint) -> None:
        if self._opened != model:
            self.prepare(model, self._inputs.get(model), [point])

    def _ask(self, action: str, **message: Any) -> Any:
        if self._worker is None:
            raise DeviceError("the session is not open: use it in a with block")
        try:
            answer = self._worker.ask({"do": action, **message})
        except (EOFError, OSError):
            self._opened, self._ended = None, True
            raise TooLarge(
                f"the process that serves the model was ended; a model that needs more than the "
                f"{_size(self._named.memory_bytes)} of {self._named.name} ends so"
            ) from None
        if "error" in answer:
            if any(sign in answer["error"].lower() for sign in OUT_OF_MEMORY):
                raise TooLarge(
                    f"the model needs more memory than the {_size(self._named.memory_bytes)} that "
                    f"{self._named.name} has; make the model smaller or choose another device"
                )
            raise ModelError(f"the model cannot be served on {self._named.name}: {answer['error']}")
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
        self._worker = self._opened = None
        self._ended = False
        from onefold.device.confinement import remove_group  # which loads what only the far side needs

        remove_group((self.confinement or {}).get("group"))


class EmulatedSession:
    """A device that is not there: this machine, confined to as many cores and as much memory, its times carried over.

    Each operator's time is multiplied by the ratio of the device's roofline to this machine's. Joules come from the
    device's power. Everything it says is labelled `emulated`.
    """

    def __init__(self, device: Device, host: Device) -> None:
        self.device = device
        cores = available_cores()[: device.cores]
        self._inner = HostSession(host, cores, device.memory_bytes, instead_of=device)
        self._factors: dict[tuple[Path, int, int], float] = {}
        self._counted: dict[tuple[Path, int], tuple[OperatorCost, ...]] = {}

    @property
    def threads(self) -> int:
        return min(self._inner.threads, self.device.cores)

    @property
    def confinement(self) -> Any:
        """How it is kept to the device's cores and memory."""
        return self._inner.confinement

    def prepare(self, model: Path, inputs: Path | None, points: Sequence[ServingPoint]) -> None:
        self._check_memory(model)
        self._inner.prepare(model, inputs, points)
        for point in points:
            self._factor(model, point)

    def serve(self, model: Path, point: ServingPoint, effort: TimingEffort) -> Served:
        here = self._inner.serve(model, point, effort)
        factor = self._factor(model, point)
        latency_s = here.latency_s * factor
        return replace(
            here,
            latency_s=latency_s,
            p90_s=here.p90_s * factor,
            p99_s=here.p99_s * factor,
            low_s=here.low_s * factor,
            high_s=here.high_s * factor,
            energy=Energy(latency_s * self.device.power_w(point.threads), "modelled"),
            source=LatencySource.EMULATED,
        )

    def memory(self, model: Path, point: ServingPoint) -> int | None:
        found = self._inner.memory(model, point)
        self._check_memory(model, found or 0)
        return found

    def notes(self, model: Path) -> tuple[str, ...]:
        kinds = unknown(self._operators(model, 1))
        counted = (f"operations not counted, only the bytes moved: {', '.join(kinds)}",) if kinds else ()
        return (*counted, *self._inner.notes(model))

    def _factor(self, model: Path, point: ServingPoint) -> float:
        """The device's time over this machine's, worked out once per model, batch size and threads."""
        key = model, point.batch_size, point.threads
        if key not in self._factors:
            found = self._operators(model, point.batch_size)
            self._factors[key] = latency_ratio(found, self._inner.device, self.device, point.threads)
        return self._factors[key]

    def _operators(self, model: Path, batch_size: int) -> tuple[OperatorCost, ...]:
        if (model, batch_size) not in self._counted:
            self._counted[model, batch_size] = operator_costs(model, batch_size)
        return self._counted[model, batch_size]

    def _check_memory(self, model: Path, needed: int = 0) -> None:
        needed = max(needed, model.stat().st_size if model.is_file() else 0)
        if needed > self.device.memory_bytes:
            raise TooLarge(
                f"the model needs {_size(needed)} of memory, but {self.device.name} has "
                f"{_size(self.device.memory_bytes)}; make the model smaller or choose another device"
            )

    def __enter__(self) -> EmulatedSession:
        self._inner.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._inner.__exit__(*exc)


def open_session(device: Device, host: Device) -> HostSession | EmulatedSession:
    """The session for a device: this machine itself, or this machine in its place."""
    return HostSession(device) if device.name == host.name else EmulatedSession(device, host)


def runtime() -> str:
    """What serves the models, with its version: another one has other kernels."""
    return f"onnxruntime {version('onnxruntime')}"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.3g} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.3g} MB"
