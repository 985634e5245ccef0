"""Which layers to reduce first: the order in which a model gets smaller at the least change of its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerOption:
    """A precision that a layer can have, the size of its weights in it, and how much it changes the outputs alone."""

    precision: str
    bytes: float
    change: float = 0.0


@dataclass(frozen=True, slots=True)
class PrecisionStep:
    """Reduce a layer to an option."""

    layer: str
    option: LayerOption


def reduction_steps(options: Mapping[str, Sequence[LayerOption]]) -> list[PrecisionStep]:
    """Return the steps from full precision to the smallest model, each at the least further change per byte saved.

    The first option of a layer is full precision. A layer may be reduced several times, and each step makes the model
    smaller. Changes of several layers are taken to add up.
    """
    current = {layer: choices[0] for layer, choices in options.items()}
    steps: list[PrecisionStep] = []
    while candidates := [
        PrecisionStep(layer, option)
        for layer, choices in options.items()
        for option in choices
        if option.bytes < current[layer].bytes
    ]:
        step = min(candidates, key=lambda step: _cost(current[step.layer], step.option))
        current[step.layer] = step.option
        steps.append(step)
    return steps


def precisions_after(steps: Sequence[PrecisionStep]) -> dict[str, str]:
    """Return the precision of each layer that the steps have reduced."""
    return {step.layer: step.option.precision for step in steps}


def _cost(before: LayerOption, after: LayerOption) -> tuple[float, float]:
    """Return the further change per byte saved; of equal ones, the step that saves more comes first."""
    saved = before.bytes - after.bytes
    return max(0.0, after.change - before.change) / saved, -saved
