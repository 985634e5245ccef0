"""Measure variants on a device: latency, memory and energy of a single sample, packed size, FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev

from onefold.compression.encoding import ENCODINGS, pack
from onefold.compression.onnx_weights import operator_density, weight_sparsity
from onefold.compression.variant_builder import BuiltVariant
from onefold.device import PRECISE, Session
from onefold.device.roofline import operator_costs
from onefold.serving.export import samples_beside
from onefold.serving.signature import architecture
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import Served, ServingPoint
from onefold.vocabulary.variants import Variant

ROUNDS = 3  # over all variants in turn; the fastest counts, since interference only ever slows down


@dataclass(frozen=True, slots=True)
class Repeated:
    """The fastest of several measurements of a model, and the latencies of all at its serving point."""

    fastest: Served
    latencies_s: tuple[float, ...]

    @property
    def rsd(self) -> float | None:
        """Return the relative standard deviation; None for a single measurement."""
        return stdev(self.latencies_s) / mean(self.latencies_s) if len(self.latencies_s) > 1 else None


def measure_single_sample(session: Session, files: Sequence[Path], rounds: int = ROUNDS) -> dict[Path, Repeated]:
    """Measure each file at batch size 1, interleaved, with one thread or all cores, whichever is faster."""
    points = [ServingPoint(1, threads) for threads in sorted({1, session.threads})]
    memory = {}
    for path in files:  # before any timing, which would leave memory of other models in the process
        session.prepare(path, samples_beside(path), points[:1])
        memory[path] = session.memory(path, points[0])
    measured: dict[Path, list[Served]] = {path: [] for path in files}
    for _ in range(rounds):
        for path in files:
            session.prepare(path, samples_beside(path), points)
            measured[path] += [session.serve(path, point, PRECISE) for point in points]
    return {path: _fastest(served, memory[path]) for path, served in measured.items()}


def _fastest(measured: Sequence[Served], memory_bytes: int | None) -> Repeated:
    fastest = min(measured, key=lambda served: served.latency_s)
    latencies = tuple(served.latency_s for served in measured if served.point == fastest.point)
    return Repeated(replace(fastest, memory_bytes=memory_bytes), latencies)


def to_variant(built: BuiltVariant, repeated: Repeated) -> Variant:
    """Return the record of a variant from its file and its measurements on a device."""
    content, served = built.file.read_bytes(), repeated.fastest
    # FLOPs are counted before quantization: integer operators of the runtime are outside the ONNX standard.
    counted, density = operator_costs(built.exact, 1), operator_density(built.exact)
    return Variant(
        recipe=built.recipe,
        metrics=built.metrics,
        latency_s=served.latency_s,
        source=served.source,
        energy=Energy(served.energy_per_sample_j, served.energy.source),
        memory_bytes=served.memory_bytes,
        size_bytes=len(content),
        encoded_bytes={name: len(pack(content, name)) for name in ENCODINGS},
        flops=sum(operator.flops for operator in counted),
        useful_flops=sum(operator.flops * density.get(operator.name, 1.0) for operator in counted),
        parameters=architecture(built.file).parameters,
        zeros=weight_sparsity(built.file),
        left=built.uncompressed,
        notes=built.notes,
        control=built.control,
        layers=built.layers,
        latency_rsd=repeated.rsd,
    )
