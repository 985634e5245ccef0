"""Build variants of a model of which only the ONNX file exists, with graph-stage methods alone.

Without a workload there is no metric. Variants are compared by their agreement with the plain model's outputs.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.arrays.files import read_arrays
from onefold.compression.graph_methods import compress_graph
from onefold.compression.onnx_metadata import strip_metadata
from onefold.compression.registry import methods, needs_training
from onefold.compression.variant_builder import PLAIN, BuiltVariant, Report
from onefold.device.random_inputs import random_input
from onefold.processes import scratch_folder
from onefold.serving import deploy
from onefold.serving.export import SAMPLES, samples_beside
from onefold.serving.external_data import with_embedded_weights
from onefold.vocabulary.errors import DatasetError, InputError, ModelError
from onefold.vocabulary.records import Metrics
from onefold.vocabulary.serving import ServingPoint
from onefold.vocabulary.variants import Recipe

RANDOM_SAMPLES = 64  # where no samples are given
NUMPY_TYPES = {"float": "f4", "double": "f8"}  # of ONNX Runtime's type names, where the two differ
Array = NDArray[Any]


class OnnxVariantBuilder:
    """Build variants of an ONNX file. `samples` is an .npz file with the calibration set."""

    metric, higher_is_better = "agreement", True

    def __init__(self, model: Path, folder: Path, samples: Path | None, report: Report) -> None:
        self._report = report
        self._plain = folder / "plain.onnx"
        with scratch_folder() as temporary:  # apart, since the model's file may be named plain.onnx too
            shutil.copyfile(with_embedded_weights(model, temporary), self._plain)
        served = deploy.ServedModel(self._plain, ServingPoint(RANDOM_SAMPLES))
        self._has_real_samples = samples is not None
        self._samples = _read_samples(samples, served) if samples is not None else _random_samples(served)
        self._outputs = _first_output(served(*self._samples.values()))
        self._save_samples(self._plain)
        self.provenance: Mapping[str, Any] = {"file": model.name}

    def build(self, recipes: Sequence[Recipe]) -> list[BuiltVariant]:
        """Return the plain model and one variant per recipe; raises InputError for recipes that need training."""
        for recipe in recipes:
            if needs_training(recipe):
                possible = ", ".join(method.name for method in methods() if method.stage == "graph")
                raise InputError(
                    f"{recipe}: pruning is followed by training, for which an ONNX file does not suffice; give the "
                    f"folder of a trained model, or a recipe with one of {possible} only"
                )
        built = [BuiltVariant(PLAIN, self._plain, self._plain, {self.metric: 1.0})]
        for recipe in dict.fromkeys(recipe for recipe in recipes if not recipe.is_plain):
            path, uncompressed = compress_graph(self._plain, recipe, self._samples if self._has_real_samples else None)
            strip_metadata(path)
            self._save_samples(path)
            metrics = self._agreement(path)
            notes = () if self._has_real_samples else ("agreement on random inputs, which says little: give samples",)
            built.append(BuiltVariant(recipe, path, self._plain, metrics, uncompressed, notes))
            self._report(f"{recipe}: agreement {metrics[self.metric]:.4g}")
        return built

    def test(self, file: Path) -> Metrics:  # noqa: ARG002 - the interface of VariantBuilder
        """Return no metrics, since there is no test data."""
        return {}

    def _agreement(self, path: Path) -> Metrics:
        """Return the share of samples with the same class; for other outputs, 1 minus the relative error."""
        outputs = _first_output(deploy.ServedModel(path, ServingPoint(RANDOM_SAMPLES))(*self._samples.values()))
        plain = self._outputs
        if plain.ndim == 2 and plain.shape[1] > 1:
            return {self.metric: float((outputs.argmax(axis=1) == plain.argmax(axis=1)).mean())}
        error = np.linalg.norm(outputs - plain) / max(float(np.linalg.norm(plain)), 1e-12)
        return {self.metric: max(0.0, 1.0 - float(error))}

    def _save_samples(self, path: Path) -> None:
        few = {name: array[:SAMPLES] for name, array in self._samples.items()}
        np.savez(samples_beside(path), **few)  # type: ignore[arg-type]


def _read_samples(path: Path, served: deploy.ServedModel) -> dict[str, Array]:
    """Read one array per input, matched by name if the names are those of the inputs, or else by order."""
    inputs = {each.name: each.type.removeprefix("tensor(").removesuffix(")") for each in served.session.get_inputs()}
    try:
        arrays = read_arrays(path)
    except DatasetError as error:
        raise InputError(
            f"the samples in {path} cannot be read: {error}; expected an .npz file with one array per input"
        ) from error
    if len(arrays) != len(inputs):
        names = ", ".join(inputs)
        raise InputError(f"the model has {len(inputs)} inputs ({names}), but {path} has {len(arrays)} arrays")
    if set(arrays) != set(inputs):
        arrays = dict(zip(inputs, arrays.values()))
    return {name: arrays[name].astype(NUMPY_TYPES.get(kind, kind)) for name, kind in inputs.items()}


def _random_samples(served: deploy.ServedModel) -> dict[str, Array]:
    try:
        return {each.name: random_input(each, RANDOM_SAMPLES) for each in served.session.get_inputs()}
    except ValueError as error:
        raise ModelError(f"no random inputs can be generated for the model: {error}; give samples") from error


def _first_output(outputs: Any) -> Array:
    return np.asarray(outputs[0] if isinstance(outputs, list) else outputs)
