"""What variants are like: how fast they are served, how much memory and energy that takes, how small they pack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onefold.compression import ENCODINGS, pack
from onefold.compression.quantization import operator_density, weight_sparsity
from onefold.compression.variant_builder import BuiltVariant
from onefold.device import PRECISE, Session
from onefold.device.roofline import operator_costs
from onefold.serving.export import samples_beside
from onefold.serving.signature import architecture
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import Served, ServingPoint
from onefold.vocabulary.variants import Variant

ROUNDS = 3  # in which variants are timed in turns; the quickest counts, since whatever disturbs makes slower


def timed(session: Session, files: Sequence[Path], rounds: int = ROUNDS) -> dict[Path, Served]:
    """What a single sample costs, variant by variant in turns, with the number of threads that suits each."""
    found: dict[Path, Served] = {}
    points = [ServingPoint(1, threads) for threads in sorted({1, session.threads})]
    memory = {}
    for path in files:  # first, while the process holds on to nothing of those that come later
        session.prepare(path, samples_beside(path), points[:1])
        memory[path] = session.memory(path, points[0])
    for _ in range(rounds):
        for path in files:
            session.prepare(path, samples_beside(path), points)
            for point in points:
                served = session.serve(path, point, PRECISE)
                if path not in found or served.latency_s < found[path].latency_s:
                    found[path] = served
    return {path: replace(served, memory_bytes=memory[path]) for path, served in found.items()}


def variant_of(made: BuiltVariant, served: Served) -> Variant:
    """A variant with all that is known of it."""
    content = made.file.read_bytes()
    # A runtime's own integer operators are of no standard; they do what those do that they came from.
    counted, density = operator_costs(made.exact, 1), operator_density(made.exact)
    return Variant(
        made.recipe,
        made.metrics,
        served.latency_s,
        served.source,
        Energy(served.energy_per_sample_j, served.energy.source),
        served.memory_bytes,
        len(content),
        {name: len(pack(content, name)) for name in ENCODINGS},
        sum(op.flops for op in counted),
        sum(op.flops * density.get(op.name, 1.0) for op in counted),
        architecture(made.file).parameters,
        weight_sparsity(made.file),
        made.left,
        made.notes,
    )
