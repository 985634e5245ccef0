"""Compressed forms of a model: how they are made, and what each of them is like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from onefold.vocabulary.errors import InputError, suggestion
from onefold.vocabulary.records import Energy, Metrics
from onefold.vocabulary.serving import LatencySource

Precision = Literal["fp32", "fp16", "int8", "int8-dynamic"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
HOUR_S = 3600.0
COMPRESSED_FOLDER = "compressed"  # in a study's folder: the deployment of the recommended variant
SHORTLIST = "shortlist"  # the key of a study's result under which the variants of its best trials are kept


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is compressed; what is left at its default stays as it is."""

    sparsity: float = 0.0  # the share of its weights that become zero, the smallest first
    channels: float = 0.0  # the share of its channels that are taken out, which makes the network really smaller
    precision: str = "fp32"

    def check(self) -> None:
        """Tells the first mistake."""
        for name, share in (("sparsity", self.sparsity), ("share of channels", self.channels)):
            if not 0 <= share < 1:
                raise InputError(f"the {name} is at least 0 and below 1, since something must be left; got {share:g}")
        if self.precision not in PRECISIONS:
            raise InputError(
                f"the precision {self.precision!r} is not known{suggestion(self.precision, PRECISIONS)}; "
                f"there are {', '.join(PRECISIONS)}"
            )

    @property
    def is_plain(self) -> bool:
        """Whether it leaves everything as it is."""
        return self == Recipe()

    def __str__(self) -> str:
        parts = []
        if self.channels:
            parts.append(f"{self.channels:.0%} fewer channels")
        if self.sparsity:
            parts.append(f"{self.sparsity:.0%} zeros")
        if self.precision != "fp32":
            parts.append(self.precision)
        return ", ".join(parts) or "plain"


@dataclass(frozen=True, slots=True)
class Variant:
    """A form of a model, served by the runtime on a device, and what it is like."""

    recipe: Recipe
    metrics: Metrics  # of what the runtime answers, on the validation data
    latency_s: float  # of a single sample: the median
    source: LatencySource  # how the latency was obtained
    energy: Energy  # of a single sample
    memory_bytes: int | None  # of the process that serves it
    size_bytes: int  # of the model's file
    encoded_bytes: Mapping[str, int]  # by encoding: of the packed file
    flops: float  # of a single sample, counted on the graph
    useful_flops: float  # without multiplications by weights that are zero
    parameters: int
    zeros: float  # the share of its weights that are zero
    left: tuple[str, ...] = ()  # layers that could not be quantised
    notes: tuple[str, ...] = field(default=())

    @property
    def smallest_bytes(self) -> int:
        """The size of its smallest packed form."""
        return min(self.encoded_bytes.values(), default=self.size_bytes)

    def charge_mah(self, volts: float) -> float | None:
        """Battery charge of a thousand samples, in mAh: an estimate from the energy and a voltage."""
        joules = self.energy.joules
        return None if joules is None else 1000 * joules / volts / HOUR_S * 1000


@dataclass(frozen=True, slots=True)
class TrialVariant:
    """A variant of one of a study's best trials; `refused` says why it must not be taken."""

    trial: int
    variant: Variant
    refused: str = ""

    def __str__(self) -> str:
        return f"trial {self.trial}, {self.variant.recipe}"


@dataclass(frozen=True)
class Shortlist:
    """The best trials of a study, each in several forms, and the one to take."""

    device: str
    metric: str
    candidates: tuple[TrialVariant, ...]
    taken: int  # its place among them
    why: str
    test: Metrics = field(default_factory=dict)  # of the one taken, on data that no decision has seen
    failures: Mapping[str, str] = field(default_factory=dict)  # by trial: why there are no variants of it

    @property
    def choice(self) -> TrialVariant:
        """The one to take."""
        return self.candidates[self.taken]
