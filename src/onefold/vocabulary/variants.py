"""Compressed variants of a model: the recipe that describes each of them, and its measured properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import OMIT_IF_EMPTY, Energy, Metrics, Value
from onefold.vocabulary.serving import LatencySource

FULL_PRECISION = "fp32"
SECONDS_PER_HOUR = 3600.0
COMPRESSED_FOLDER = "compressed"  # in a study's folder: the deployment folder of the selected variant
COMPRESSION = "compression"  # the key in a model's card that says how its file is compressed
SHORTLIST = "shortlist"  # the key in a study's result that holds the variants of its best trials


@suggest_fields
@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of the compression methods to apply to a model; a default leaves that aspect unchanged.

    `onefold.compression.registry` lists the methods and validates a recipe. Methods that are not built in take their
    setting from `extra`, as pairs of parameter and value: `Recipe.of({"sparsity": 0.5, "rank": 0.25})`.
    """

    sparsity: float = 0.0  # share of weights set to zero
    channels: float = 0.0  # share of channels removed from every layer
    precision: str = FULL_PRECISION
    extra: tuple[tuple[str, Value], ...] = field(default=(), metadata=OMIT_IF_EMPTY)

    def __post_init__(self) -> None:
        for name in ("sparsity", "channels"):
            share = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
                raise InputError(f"{name} must be at least 0 and below 1, such as 0.5, but got {share!r}")
        if not isinstance(self.precision, str):
            raise InputError(f'precision must be a name such as "int8", but got {self.precision!r}')

    @classmethod
    def of(cls, settings: Mapping[str, Value]) -> Recipe:
        """Return the recipe with these values by parameter."""
        known = {name: value for name, value in settings.items() if name in _BUILT_IN}
        extra = tuple(sorted((name, value) for name, value in settings.items() if name not in _BUILT_IN))
        return cls(**known, extra=extra)  # type: ignore[arg-type]

    @property
    def settings(self) -> dict[str, Value]:
        """Return the values that differ from their defaults, by parameter."""
        built_in = {name: getattr(self, name) for name in _BUILT_IN}
        return {name: value for name, value in built_in.items() if value != _DEFAULTS[name]} | dict(self.extra)

    @property
    def is_plain(self) -> bool:
        """Return whether the recipe leaves the model unchanged."""
        return not self.settings

    @property
    def folder_name(self) -> str:
        """Return the name without spaces that the folder of the variant has: "plain", "sparsity-0.8-int8"."""
        settings = self.settings
        precision = settings.pop("precision", None)
        parts = [f"{name}-{value}" for name, value in settings.items()]
        return "-".join([*parts, *([str(precision)] if precision else [])]) or "plain"

    def is_named(self, name: str) -> bool:
        """Return whether a name is that of the recipe or of its folder: "80% sparsity, int8", "sparsity-0.8-int8"."""
        return name.casefold() in (str(self).casefold(), self.folder_name.casefold())

    def __str__(self) -> str:
        parts = []
        if self.channels:
            parts.append(f"{self.channels:.0%} fewer channels")
        if self.sparsity:
            parts.append(f"{self.sparsity:.0%} sparsity")
        parts += [f"{name} {value}" for name, value in self.extra]
        if self.precision != FULL_PRECISION:
            parts.append(self.precision)
        return ", ".join(parts) or "plain"


_BUILT_IN = ("sparsity", "channels", "precision")
_DEFAULTS = {name: getattr(Recipe(), name) for name in _BUILT_IN}
RECIPES = (  # of a study, in the loop or after it
    Recipe(precision="int8"),
    Recipe(sparsity=0.8, precision="int8"),
    Recipe(channels=0.5, precision="int8"),
    Recipe(sparsity=0.8, channels=0.5, precision="int8"),
)


@dataclass(frozen=True, slots=True)
class LayerPrecision:
    """The precision that was chosen for a layer, and why."""

    layer: str
    precision: str
    change: float  # of the outputs on the calibration set, relative to their size, with this layer alone reduced
    why: str


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of a model with its properties, as ONNX Runtime serves it on a device."""

    recipe: Recipe
    metrics: Metrics  # of the runtime's outputs on the validation data
    latency_s: float  # median of a single sample
    source: LatencySource  # how the latency was obtained
    energy: Energy  # of a single sample
    memory_bytes: int | None  # of the serving process
    size_bytes: int  # of the ONNX file
    encoded_bytes: Mapping[str, int]  # size of the packed file, by encoding
    flops: float  # of a single sample, counted on the graph
    useful_flops: float  # without multiplications by zero weights
    parameters: int
    zeros: float  # share of weights that are zero
    left: tuple[str, ...] = ()  # layers that could not be quantized
    notes: tuple[str, ...] = field(default=())
    control: Metrics = field(default_factory=dict)  # of the uncompressed network, trained as long; if asked for
    latency_rsd: float | None = None  # relative standard deviation of the latency over repeated measurements
    layers: tuple[LayerPrecision, ...] = field(default=(), metadata=OMIT_IF_EMPTY)  # if precisions were chosen by layer

    @property
    def smallest_bytes(self) -> int:
        """Return the size of the smallest packed file."""
        return min(self.encoded_bytes.values(), default=self.size_bytes)

    def charge_mah(self, volts: float) -> float | None:
        """Estimate the battery charge in mAh of a thousand samples; None if the energy is unknown."""
        joules = self.energy.joules
        return None if joules is None else 1000 * joules / volts / SECONDS_PER_HOUR * 1000


@dataclass(frozen=True, slots=True)
class TrialVariant:
    """A variant of one of a study's best trials; `refused` gives the reason why it must not be selected."""

    trial: int
    variant: Variant
    refused: str = ""

    def __str__(self) -> str:
        return f"trial {self.trial}, {self.variant.recipe}"


@dataclass(frozen=True)
class Shortlist:
    """The variants of a study's best trials, and which of them is selected."""

    device: str
    metric: str
    candidates: tuple[TrialVariant, ...]
    taken: int  # index of the selected candidate
    why: str
    test: Metrics = field(default_factory=dict)  # metrics of the selected candidate on the test data
    failures: Mapping[str, str] = field(default_factory=dict)  # by trial: the reason why it has no variants

    @property
    def choice(self) -> TrialVariant:
        """Return the selected candidate."""
        return self.candidates[self.taken]
