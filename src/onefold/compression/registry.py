"""The compression methods, by name. Recipes, the builders and the CLI read this table.

A new method is one module with a `Compressor` and one `CompressionMethod` that names it, either below or, in another
package, as an entry point of the group "onefold.compressors" (so that worker processes find it too).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from onefold.compression.compressor import STAGES, Compressor, Stage
from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.records import Value
from onefold.vocabulary.variants import FULL_PRECISION, Recipe

ENTRY_POINTS = "onefold.compressors"


@dataclass(frozen=True, slots=True)
class CompressionMethod:
    """A compression method: what recipes, help texts and searches need to know without importing PyTorch."""

    name: str
    parameter: str  # the setting of a recipe that turns it on
    neutral: Value  # value of that setting that leaves the model unchanged: 0.0 if it takes a share, or else a name
    stage: Stage
    summary: str  # what it does, for help texts
    implementation: str  # "module:Class" of its Compressor

    @property
    def takes_share(self) -> bool:
        """Return whether its setting is a share between 0 and 1, and not the name of the method."""
        return isinstance(self.neutral, float)

    @property
    def compressor(self) -> Compressor:
        """Return the implementation."""
        return _implementation(self.implementation)


_METHODS: dict[str, CompressionMethod] = {}


def register(method: CompressionMethod) -> None:
    """Add a compression method to the table; raises InputError if its name or its parameter conflicts."""
    if method.name in _METHODS:
        raise InputError(f"there is a compression method named {method.name!r} already; choose another name")
    others = [other for other in _METHODS.values() if other.parameter == method.parameter]
    if others and (method.takes_share or others[0].neutral != method.neutral):
        raise InputError(
            f"the parameter {method.parameter!r} of {method.name!r} belongs to {others[0].name!r}; choose another one"
        )
    _METHODS[method.name] = method


def methods() -> tuple[CompressionMethod, ...]:
    """Return all compression methods in the order of their registration."""
    _load_entry_points()
    return tuple(_METHODS.values())


def method_named(name: str) -> CompressionMethod:
    """Return a method; raises InputError if there is none of that name."""
    known = {method.name: method for method in methods()}
    if name not in known:
        raise InputError(unknown("compression method", name, known))
    return known[name]


def parameters() -> dict[str, tuple[CompressionMethod, ...]]:
    """Return the methods by the parameter of a recipe that selects them."""
    by_parameter: dict[str, tuple[CompressionMethod, ...]] = {}
    for method in methods():
        by_parameter[method.parameter] = (*by_parameter.get(method.parameter, ()), method)
    return by_parameter


def recipe_of_settings(settings: Mapping[str, Value]) -> Recipe:
    """Return the recipe with these settings, of which neutral ones are left out."""
    neutral = {method.parameter: method.neutral for method in methods()}
    return Recipe.of({name: value for name, value in settings.items() if value != neutral.get(name)})


def check_recipe(recipe: Recipe) -> None:
    """Raise InputError if a setting of a recipe has no method, or a value that its method does not take."""
    known = parameters()
    for parameter, value in recipe.settings.items():
        if parameter not in known:
            raise InputError(unknown("compression setting", parameter, known))
        if known[parameter][0].takes_share:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
                raise InputError(f"{parameter} must be at least 0 and below 1, but got {value!r}")
            continue
        names = (str(known[parameter][0].neutral), *(method.name for method in known[parameter]))
        if value not in names:
            raise InputError(unknown(parameter, value, names))


def active_methods(recipe: Recipe) -> list[tuple[CompressionMethod, Value]]:
    """Return the methods that a valid recipe turns on, each with its setting, in the order to apply them."""
    settings = recipe.settings
    active = [
        (method, settings[method.parameter])
        for method in methods()
        if settings.get(method.parameter, method.neutral) != method.neutral
        and (method.takes_share or settings[method.parameter] == method.name)
    ]
    return sorted(active, key=lambda pair: STAGES.index(pair[0].stage))


def needs_training(recipe: Recipe) -> bool:
    """Return whether a recipe changes the network, so that an ONNX file alone does not do."""
    return any(method.stage != "graph" for method, _ in active_methods(recipe))


@cache
def _implementation(reference: str) -> Compressor:
    module, _, name = reference.partition(":")
    compressor: Compressor = getattr(importlib.import_module(module), name)()
    return compressor


@cache
def _load_entry_points() -> None:
    for point in entry_points(group=ENTRY_POINTS):
        register(point.load())


register(
    CompressionMethod(
        name="magnitude-pruning",
        parameter="sparsity",
        neutral=0.0,
        stage="weights",
        summary="share of the smallest weights to set to zero, such as 0.8",
        implementation="onefold.compression.magnitude_pruning:MagnitudePruning",
    )
)
register(
    CompressionMethod(
        name="channel-pruning",
        parameter="channels",
        neutral=0.0,
        stage="architecture",
        summary="share of the channels to remove from every layer, such as 0.5",
        implementation="onefold.compression.channel_pruning:ChannelPruning",
    )
)
register(
    CompressionMethod(
        name="int8",
        parameter="precision",
        neutral=FULL_PRECISION,
        stage="graph",
        summary="static quantization of weights and activations",
        implementation="onefold.compression.quantization:StaticQuantization",
    )
)
register(
    CompressionMethod(
        name="int8-dynamic",
        parameter="precision",
        neutral=FULL_PRECISION,
        stage="graph",
        summary="dynamic quantization, without calibration",
        implementation="onefold.compression.quantization:DynamicQuantization",
    )
)
register(
    CompressionMethod(
        name="int4",
        parameter="precision",
        neutral=FULL_PRECISION,
        stage="graph",
        summary="4-bit weights of large linear layers, the rest as int8-dynamic",
        implementation="onefold.compression.weight_only_quantization:Int4Quantization",
    )
)
register(
    CompressionMethod(
        name="int8-weight-only",
        parameter="precision",
        neutral=FULL_PRECISION,
        stage="graph",
        summary="8-bit weights, with large linear layers computed from them, and fp32 activations",
        implementation="onefold.compression.weight_only_quantization:Int8WeightOnlyQuantization",
    )
)
register(
    CompressionMethod(
        name="mixed",
        parameter="precision",
        neutral=FULL_PRECISION,
        stage="graph",
        summary="a precision for each layer by its sensitivity, as far as the requirements on size or latency ask for",
        implementation="onefold.compression.mixed_precision:MixedPrecision",
    )
)
register(
    CompressionMethod(
        name="fp16",
        parameter="precision",
        neutral=FULL_PRECISION,
        stage="graph",
        summary="half-precision weights",
        implementation="onefold.compression.quantization:HalfPrecision",
    )
)
