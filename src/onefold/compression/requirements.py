"""Requirements on the properties of a variant, some of which can be measured on its file alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onefold.compression.encoding import pack_smallest
from onefold.vocabulary import quantities
from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.forks import ENCODED_BYTES
from onefold.vocabulary.requirement import Bound
from onefold.vocabulary.variants import Variant

SIZE_BYTES, LATENCY_S = "size_bytes", "latency_s"
LATENCY_MARGIN = 0.05  # of the limit: the final measurement may come out slower
LatencyMeter = Callable[[Path], float]


@dataclass(frozen=True)
class Requirements:
    """Bounds by property of a variant: its metrics, or its size, latency, memory, energy and FLOPs.

    Those on size and latency direct methods that choose how far to compress a model; `measure_latency` measures a file.
    """

    bounds: Mapping[str, Bound] = field(default_factory=dict)
    measure_latency: LatencyMeter | None = None

    def check(self, metrics: Iterable[str]) -> None:
        """Raise InputError for a property that no variant has; `metrics` are those of the workload."""
        known = [*metrics, *PROPERTIES]
        for name in self.bounds:
            if name not in known:
                raise InputError(unknown("requirement", name, known))

    @property
    def on_size(self) -> Mapping[str, float]:
        """Return the upper limits of the file's size, plain or packed."""
        return {name: limit for name in (ENCODED_BYTES, SIZE_BYTES) if (limit := self._limit(name)) is not None}

    @property
    def on_latency(self) -> float | None:
        """Return the upper limit of the latency, if the latency of a file can be measured."""
        return self._limit(LATENCY_S) if self.measure_latency is not None else None

    def measured(self, model: Path) -> dict[str, float]:
        """Return the properties of a file that are limited."""
        content, measured = model.read_bytes(), {}
        if SIZE_BYTES in self.on_size:
            measured[SIZE_BYTES] = float(len(content))
        if ENCODED_BYTES in self.on_size:
            measured[ENCODED_BYTES] = float(len(pack_smallest(content)))
        if self.on_latency is not None and self.measure_latency is not None:
            measured[LATENCY_S] = self.measure_latency(model)
        return measured

    def are_met(self, measured: Mapping[str, float]) -> bool:
        """Return whether the measured properties of a file are within the limits, the latency with a margin."""
        limits = dict(self.on_size)
        if self.on_latency is not None:
            limits[LATENCY_S] = (1 - LATENCY_MARGIN) * self.on_latency
        return all(measured[name] <= limit for name, limit in limits.items())

    def _limit(self, name: str) -> float | None:
        bound = self.bounds.get(name)
        return bound.limit if bound is not None and not bound.at_least else None


PROPERTIES: Mapping[str, Callable[[Variant], float | None]] = {
    LATENCY_S: lambda variant: variant.latency_s,
    ENCODED_BYTES: lambda variant: variant.smallest_bytes,
    SIZE_BYTES: lambda variant: variant.size_bytes,
    "memory_bytes": lambda variant: variant.memory_bytes,
    "energy_j": lambda variant: variant.energy.joules,
    "flops": lambda variant: variant.flops,
}


def property_of(variant: Variant, name: str) -> float | None:
    """Return a metric or another property of a variant; None if it is unknown."""
    if name in variant.metrics:
        return variant.metrics[name]
    return PROPERTIES[name](variant) if name in PROPERTIES else None


def violated_requirements(variant: Variant, bounds: Mapping[str, Bound]) -> tuple[str, ...]:
    """Return the requirements that a variant violates, with its values, among those on its known properties."""
    return tuple(
        f"{name} {quantities.metric(name, value)} violates {requirement_text(name, bounds[name])}"
        for name, value in _known_properties(variant, bounds).items()
        if bounds[name].violation(value) > 0
    )


def total_violation(variant: Variant, bounds: Mapping[str, Bound]) -> float:
    """Return how far a variant violates the requirements in all, each relative to its limit."""
    return sum(bounds[name].violation(value) for name, value in _known_properties(variant, bounds).items())


def requirement_text(name: str, bound: Bound) -> str:
    """Return a requirement as users write it, its limit in the unit of the property: "encoded_bytes<=29.3 KiB"."""
    if bound.limit is None or bound.from_best is not None:
        return f"{name}{bound}"
    return f"{name}{'>=' if bound.at_least else '<='}{quantities.metric(name, bound.limit)}"


def _known_properties(variant: Variant, names: Iterable[str]) -> dict[str, float]:
    return {name: value for name in names if (value := property_of(variant, name)) is not None}
