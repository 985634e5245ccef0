"""A session with a device that is emulated on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onefold.agent.timing_effort import TimingEffort
from onefold.arrays.headers import open_regular_file, read_headers
from onefold.device.device import MAX_SPREAD, Device
from onefold.device.host_session import HostSession
from onefold.device.measuring_process import HANG_TIMEOUT_S
from onefold.device.onnx_graph import NO_SHAPES, Shapes
from onefold.device.operator_groups import INT8
from onefold.device.roofline import OperatorCost, latency_ratio, operator_costs, uncounted_kinds
from onefold.processes import available_cores
from onefold.vocabulary.errors import TooLarge
from onefold.vocabulary.quantities import share, size
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import LatencySource, Served, ServingPoint


class EmulatedSession:
    """Measure on this machine, confined to the device's cores and memory, and scale the times by a roofline model.

    A latency is multiplied by the ratio of the device's roofline to this machine's, summed over the operators. Energy
    follows from the device's power. Every result is labeled `emulated`.
    """

    needs_host = True

    def __init__(
        self,
        device: Device,
        host: Device,
        hang_timeout_s: float = HANG_TIMEOUT_S,
        cores: Sequence[int] | None = None,
    ) -> None:
        self.device = device
        confined = list(cores or available_cores())[: device.cores]
        self._host_session = HostSession(
            host, confined, device.memory_bytes, emulates=device, hang_timeout_s=hang_timeout_s
        )
        self._ratios: dict[tuple[Path, int, int], float] = {}
        self._costs: dict[tuple[Path, int], tuple[OperatorCost, ...]] = {}
        self._samples: dict[Path, Shapes] = {}  # by model

    @property
    def threads(self) -> int:
        return min(self._host_session.threads, self.device.cores)

    @property
    def pid(self) -> int | None:
        """Return the id of the process that serves, or None outside the block."""
        return self._host_session.pid

    @property
    def confinement(self) -> Any:
        """Return the `Confinement` of the process that serves, as JSON."""
        return self._host_session.confinement

    def begin(self, run: str) -> None:
        self._host_session.begin(run)

    def prepare(self, model: Path, inputs: Path | None, points: Sequence[ServingPoint]) -> None:
        self._check_memory(model)
        self._host_session.prepare(model, inputs, points)
        self._use_samples(model, input_shapes(inputs) if inputs is not None else NO_SHAPES)
        for point in points:
            self._ratio(model, point)

    def serve(self, model: Path, point: ServingPoint, effort: TimingEffort) -> Served:
        measured = self._host_session.serve(model, point, effort)
        ratio = self._ratio(model, point)
        latency_s = measured.latency_s * ratio
        return replace(
            measured,
            latency_s=latency_s,
            p90_s=measured.p90_s * ratio,
            p99_s=measured.p99_s * ratio,
            low_s=measured.low_s * ratio,
            high_s=measured.high_s * ratio,
            energy=Energy(latency_s * self.device.power_w(point.threads), "modelled"),
            source=LatencySource.EMULATED,
        )

    def memory(self, model: Path, point: ServingPoint) -> int | None:
        peak_bytes = self._host_session.memory(model, point)
        self._check_memory(model, peak_bytes or 0)
        return peak_bytes

    def notes(self, model: Path) -> tuple[str, ...]:
        kinds = uncounted_kinds(self._operator_costs(model, 1))
        uncounted = (f"FLOPs unknown, only memory traffic counted: {', '.join(kinds)}",) if kinds else ()
        return (*uncounted, *self._caveats(model), *self._host_session.notes(model))

    def _caveats(self, model: Path) -> Iterator[str]:
        """Explain which figures of the two machines the emulation lacks."""
        device, host = self.device, self._host_session.device
        if not device.operator_rates:
            yield f"the figures of {device.name} are not from the probe, so emulated latencies are rough"
        has_int8 = any(cost.group.endswith(INT8) for cost in self._operator_costs(model, 1))
        if has_int8 and not (device.int8_gops and host.int8_gops):
            unknown = device if not device.int8_gops else host
            yield f"the int8 speed of {unknown.name} is unknown; int8 is taken to gain as much there as here"
        if host.spread is not None and host.spread > MAX_SPREAD:
            yield f"the calibration of this machine scatters by {share(host.spread)}; calibrate it when it is quiet"

    def _ratio(self, model: Path, point: ServingPoint) -> float:
        """Return the device's latency divided by this machine's, cached per model, batch size and threads."""
        key = model, point.batch_size, point.threads
        if key not in self._ratios:
            costs = self._operator_costs(model, point.batch_size)
            self._ratios[key] = latency_ratio(costs, self._host_session.device, self.device, point.threads)
        return self._ratios[key]

    def _operator_costs(self, model: Path, batch_size: int) -> tuple[OperatorCost, ...]:
        if (model, batch_size) not in self._costs:
            self._costs[model, batch_size] = operator_costs(model, batch_size, self._samples.get(model, NO_SHAPES))
        return self._costs[model, batch_size]

    def _use_samples(self, model: Path, samples: Shapes) -> None:
        if self._samples.get(model, NO_SHAPES) != samples:
            self._ratios = {key: ratio for key, ratio in self._ratios.items() if key[0] != model}
            self._costs = {key: costs for key, costs in self._costs.items() if key[0] != model}
        self._samples[model] = samples

    def _check_memory(self, model: Path, needed_bytes: int = 0) -> None:
        needed_bytes = max(needed_bytes, model.stat().st_size if model.is_file() else 0)
        if needed_bytes > self.device.memory_bytes:
            raise TooLarge(
                f"the model needs {size(needed_bytes)} of memory, but {self.device.name} has "
                f"{size(self.device.memory_bytes)}; make the model smaller or choose another device"
            )

    def __enter__(self) -> EmulatedSession:
        self._host_session.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._host_session.__exit__(*exc)


def input_shapes(inputs: Path) -> Shapes:
    """Return the shapes of the arrays in an .npz file by name."""
    with open_regular_file(inputs) as file:
        return {name: header.shape for name, header in read_headers(file, inputs).items()}
