"""Mixed precision: each layer gets the lowest precision that its sensitivity allows, until requirements are met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.compression.compressor import CompressedGraph, Samples
from onefold.compression.onnx_metadata import strip_metadata
from onefold.compression.onnx_preprocessing import preprocessed
from onefold.compression.precision_assembly import BITS, PrecisionAssembly
from onefold.compression.precision_plan import LayerOption, PrecisionStep, precisions_after, reduction_steps
from onefold.compression.quantization import checked_calibration_set
from onefold.compression.requirements import LATENCY_S, Requirements, requirement_text
from onefold.compression.step_search import first_by_bisection, first_by_scan
from onefold.compression.weight_only_quantization import Int8WeightOnlyQuantization
from onefold.serving import deploy
from onefold.serving.export import SAMPLES, samples_beside
from onefold.serving.signature import architecture
from onefold.vocabulary import quantities
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint
from onefold.vocabulary.variants import FULL_PRECISION, LayerPrecision

MAX_CHANGE = 0.02  # of the outputs, where no requirement says how far to go
MAX_SAMPLES = 128  # with which changes are measured
FULL_BITS = 32.0


class MixedPrecision(Int8WeightOnlyQuantization):
    """Reduce the layers that change the outputs least per byte saved, one after the other.

    It stops as soon as the requirements on size and latency are met, and without any before the outputs change by more
    than MAX_CHANGE.
    """

    def compress_onnx(self, source: Path, target: Path, samples: Samples | None) -> tuple[str, ...]:
        """Quantize as far as the outputs on the samples hardly change."""
        return self.compress_within(source, target, samples, Requirements()).uncompressed

    def compress_within(
        self, source: Path, target: Path, samples: Samples | None, requirements: Requirements
    ) -> CompressedGraph:
        """Choose a precision for each layer; raises ModelError if the requirements cannot be met."""
        calibration_set = checked_calibration_set(samples, "mixed")
        with preprocessed(source, "mixed") as model:
            search = _Search(model, calibration_set, requirements)
            steps = search.steps()
            chosen = steps[: search.enough(steps)]
            search.assembly.write(precisions_after(chosen), target)
        return CompressedGraph(layers=_described(search.options, precisions_after(chosen)))


class _Search:
    """Measure how sensitive the layers of a preprocessed model are, and how far they have to be reduced."""

    def __init__(self, model: Path, samples: Samples, requirements: Requirements) -> None:
        self.assembly = PrecisionAssembly(model, samples)
        self._requirements = requirements
        self._trial = model.with_name("trial.onnx")
        self._samples = {name: array[:MAX_SAMPLES] for name, array in samples.items()}
        self._batch_size = architecture(model).batch_size or MAX_SAMPLES
        self._outputs = self._served(model)
        self.options: Mapping[str, Sequence[LayerOption]] = {}

    def steps(self) -> list[PrecisionStep]:
        """Measure each layer in each of its precisions alone; return the order in which to reduce them."""
        needs_latency = self._requirements.on_latency is not None
        needs_size = bool(self._requirements.on_size) or not needs_latency
        options: dict[str, list[LayerOption]] = {}
        for layer, precisions in self.assembly.precisions(for_latency=needs_latency, for_size=needs_size).items():
            count = self.assembly.weight_count(layer)
            options[layer] = [LayerOption(FULL_PRECISION, count * FULL_BITS / 8)]
            for precision in precisions:
                change = self._change({layer: precision})
                options[layer].append(LayerOption(precision, count * BITS[precision] / 8, change))
        self.options = options
        return reduction_steps(options)

    def enough(self, steps: Sequence[PrecisionStep]) -> int:
        """Return after how many steps the requirements are met; without any, how many hardly change the outputs.

        Each step makes the model smaller, but not always faster: integer kernels do not pay for narrow layers.
        """
        of_size, last = replace(self._requirements, measure_latency=None), len(steps)
        if not of_size.on_size and self._requirements.on_latency is None:
            return first_by_bisection(0, last, lambda n: self._change(precisions_after(steps[:n])) > MAX_CHANGE) - 1
        found = 0
        if of_size.on_size:
            found = first_by_bisection(0, last, lambda n: of_size.are_met(self._measured(steps[:n], of_size)))
        if found > last:
            raise ModelError(self._shortfall(of_size, self._measured(steps, of_size), "with every layer reduced"))
        if self._requirements.on_latency is None:
            return found
        measured: dict[int, Mapping[str, float]] = {}

        def is_met(count: int) -> bool:
            measured[count] = self._measured(steps[:count], self._requirements)
            return self._requirements.are_met(measured[count])

        found = first_by_scan(found, last, is_met)
        if found > last:
            fastest = min(measured, key=lambda count: measured[count][LATENCY_S])
            reduced = (
                f"at its fastest, with {len(precisions_after(steps[:fastest]))} of {len(self.options)} layers reduced"
            )
            raise ModelError(self._shortfall(self._requirements, measured[fastest], reduced))
        return found

    def _shortfall(self, requirements: Requirements, measured: Mapping[str, float], state: str) -> str:
        wanted = ", ".join(requirement_text(name, requirements.bounds[name]) for name in measured)
        reached = ", ".join(f"{name} {quantities.metric(name, value)}" for name, value in measured.items())
        return f"mixed precision cannot meet {wanted}: {state}, the model has {reached}"

    def _measured(self, steps: Sequence[PrecisionStep], requirements: Requirements) -> Mapping[str, float]:
        self.assembly.write(precisions_after(steps), self._trial)
        strip_metadata(self._trial)  # as the variant will be
        few = {name: array[:SAMPLES] for name, array in self._samples.items()}
        np.savez(samples_beside(self._trial), **few)  # type: ignore[arg-type]
        return requirements.measured(self._trial)

    def _change(self, precisions: Mapping[str, str]) -> float:
        """Return by how much the outputs change with these precisions, relative to their norm."""
        self.assembly.write(precisions, self._trial)
        pairs = zip(self._served(self._trial), self._outputs)
        return max(float(np.linalg.norm(new - old)) / max(float(np.linalg.norm(old)), 1e-12) for new, old in pairs)

    def _served(self, model: Path) -> list[NDArray[Any]]:
        outputs = deploy.ServedModel(model, ServingPoint(self._batch_size))(*self._samples.values())
        return [np.asarray(each, np.float64) for each in (outputs if isinstance(outputs, list) else [outputs])]


def _described(
    options: Mapping[str, Sequence[LayerOption]], precisions: Mapping[str, str]
) -> tuple[LayerPrecision, ...]:
    """Return the precision of each layer with the reason for it."""
    layers = []
    for layer, choices in options.items():
        chosen = next(each for each in choices if each.precision == precisions.get(layer, FULL_PRECISION))
        reasons = [_effect(chosen, choices[0], "saves", "changes")] if chosen is not choices[0] else []
        smaller = [each for each in choices if each.bytes < chosen.bytes]
        reasons += [_effect(each, chosen, f"{each.precision} would save", "change") for each in smaller[:1]]
        why = "; ".join(reasons) or "no lower precision serves the requirements"
        layers.append(LayerPrecision(layer.strip("/"), chosen.precision, chosen.change, why))
    return tuple(layers)


def _effect(option: LayerOption, before: LayerOption, saves: str, changes: str) -> str:
    saved = quantities.size(before.bytes - option.bytes)
    return f"{saves} {saved} and {changes} the outputs by {quantities.share(option.change)}"
