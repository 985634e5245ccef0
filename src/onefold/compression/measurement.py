"""Measure variants on a device: latency, memory and energy of a single sample, packed size, FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

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


def measure_single_sample(session: Session, files: Sequence[Path], rounds: int = ROUNDS) -> dict[Path, Served]:
    """Measure each file at batch size 1, interleaved, with one thread or all cores, whichever is faster."""
    fastest: dict[Path, Served] = {}
    points = [ServingPoint(1, threads) for threads in sorted({1, session.threads})]
    memory = {}
    for path in files:  # before any timing, which would leave memory of other models in the process
        session.prepare(path, samples_beside(path), points[:1])
        memory[path] = session.memory(path, points[0])
    for _ in range(rounds):
        for path in files:
            session.prepare(path, samples_beside(path), points)
            for point in points:
                served = session.serve(path, point, PRECISE)
                if path not in fastest or served.latency_s < fastest[path].latency_s:
                    fastest[path] = served
    return {path: replace(served, memory_bytes=memory[path]) for path, served in fastest.items()}


def to_variant(built: BuiltVariant, served: Served) -> Variant:
    """Return the record of a variant from its file and its measurement on a device."""
    content = built.file.read_bytes()
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
    )
