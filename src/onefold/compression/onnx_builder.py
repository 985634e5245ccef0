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

from onefold.agent.random_inputs import random_input
from onefold.arrays.files import read_arrays
from onefold.compression.graph_methods import compress_graph
from onefold.compression.onnx_metadata import strip_metadata
from onefold.compression.registry import methods, needs_training
from onefold.compression.requirements import Requirements
from onefold.compression.variant_builder import PLAIN, BuiltVariant, Report, recorded_failure
from onefold.processes import scratch_folder
from onefold.runtimes.output_comparison import AGREEMENT, agreement
from onefold.serving import deploy
from onefold.serving.export import SAMPLES, samples_beside
from onefold.serving.external_data import with_embedded_weights
from onefold.serving.runtime_selection import RuntimeScore
from onefold.serving.tuner import check_batch_size
from onefold.vocabulary.errors import DatasetError, InputError, ModelError
from onefold.vocabulary.records import Metrics
from onefold.vocabulary.serving import ONNXRUNTIME, ServingPoint
from onefold.vocabulary.variants import Recipe

RANDOM_SAMPLES = 64  # where no samples are given, if the batch size is not fixed
Array = NDArray[Any]


class OnnxVariantBuilder:
    """Build variants of an ONNX file. `samples` is an .npz file with the calibration set."""

    metric, higher_is_better = AGREEMENT, True

    def __init__(
        self,
        model: Path,
        folder: Path,
        samples: Path | None,
        report: Report,
        requirements: Requirements | None = None,
    ) -> None:
        self._report = report
        self._requirements = requirements or Requirements()
        self._requirements.check([self.metric])
        self._plain = folder / "plain.onnx"
        with scratch_folder() as temporary:  # apart, since the model's file may be named plain.onnx too
            shutil.copyfile(with_embedded_weights(model, temporary), self._plain)
        self._batch_size = check_batch_size(self._plain, model.name).batch_size or RANDOM_SAMPLES
        served = deploy.ServedModel(self._plain, ServingPoint(self._batch_size))
        self._has_real_samples = samples is not None
        self._samples = _read_samples(samples, served) if samples is not None else _random_samples(served)
        self._outputs = _outputs(served, self._samples)
        self._save_samples(self._plain)
        self.provenance: Mapping[str, Any] = {"file": model.name}
        self.failures: dict[Recipe, str] = {}  # why a variant was not built

    def build(self, recipes: Sequence[Recipe], *, skip_failures: bool = False) -> list[BuiltVariant]:
        """Return the plain model and one variant per recipe; raises InputError for recipes that need training.

        Raises ModelError if a variant cannot be built; with `skip_failures` the reason is in `failures` instead.
        """
        for recipe in recipes:
            if needs_training(recipe):
                possible = ", ".join(method.name for method in methods() if method.stage == "graph")
                raise InputError(
                    f"{recipe}: pruning is followed by training, for which an ONNX file does not suffice; give the "
                    f"folder of a trained model, or a recipe with one of {possible} only"
                )
        built = [BuiltVariant(PLAIN, self._plain, self._plain, {self.metric: 1.0})]
        for recipe in dict.fromkeys(recipe for recipe in recipes if not recipe.is_plain):
            with recorded_failure(recipe, self.failures, skip_failures=skip_failures):
                built.append(self._build(recipe))
                self._report(f"{recipe}: agreement {built[-1].metrics[self.metric]:.4g}")
        return built

    def _build(self, recipe: Recipe) -> BuiltVariant:
        real_samples = self._samples if self._has_real_samples else None
        path, graph = compress_graph(self._plain, recipe, real_samples, self._requirements)
        strip_metadata(path)
        self._save_samples(path)
        metrics = self._agreement(path)
        notes = () if self._has_real_samples else ("agreement on random inputs, which says little: give samples",)
        return BuiltVariant(recipe, path, self._plain, metrics, graph.uncompressed, notes, layers=graph.layers)

    @property
    def batch_size(self) -> int:
        """Return the number of samples at once with which the agreement is computed."""
        return min(self._batch_size, *(len(array) for array in self._samples.values()))

    def test(self, file: Path) -> Metrics:  # noqa: ARG002 - the interface of VariantBuilder
        """Return no metrics, since there is no test data."""
        return {}

    def _agreement(self, path: Path) -> Metrics:
        """Return the agreement of the output that agrees least."""
        return self._agreement_in(path, ONNXRUNTIME)

    def _agreement_in(self, path: Path, runtime: str) -> Metrics:
        outputs = _outputs(deploy.ServedModel(path, ServingPoint(self._batch_size, runtime=runtime)), self._samples)
        return {self.metric: min(agreement(*pair) for pair in zip(outputs, self._outputs))}

    @property
    def scoring(self) -> RuntimeScore:
        """Return how a file is scored in a runtime: by its agreement with the plain model's outputs."""
        return RuntimeScore(self.metric, self.higher_is_better, self._agreement_in)

    def _save_samples(self, path: Path) -> None:
        few = {name: array[:SAMPLES] for name, array in self._samples.items()}
        np.savez(samples_beside(path), **few)  # type: ignore[arg-type]


def _read_samples(path: Path, served: deploy.ServedModel) -> dict[str, Array]:
    """Read one array per input, of the same name; the one of an .npy file is that of the only input."""
    inputs = {argument.name: argument.dtype for argument in served.inputs}
    try:
        arrays = read_arrays(path)
    except DatasetError as error:
        raise InputError(
            f"the samples in {path} cannot be read: {error}; expected an .npz file with one array per input"
        ) from error
    if list(arrays) == [""] and len(inputs) == 1:
        arrays = dict(zip(inputs, arrays.values()))
    if set(arrays) != set(inputs):
        given = ", ".join(filter(None, arrays)) or "no array with a name"
        raise InputError(
            f"the inputs of the model are {', '.join(inputs)}, but {path} has {given}; write an .npz file with one "
            "array per input and no others, each under the name of its input"
        )
    return {name: arrays[name].astype(dtype) for name, dtype in inputs.items()}


def _random_samples(served: deploy.ServedModel) -> dict[str, Array]:
    try:
        return {each.name: random_input(each, served.point.batch_size) for each in served.model.inputs}
    except (ValueError, TypeError) as error:
        raise ModelError(f"no random inputs can be generated for the model: {error}; give samples") from error


def _outputs(served: deploy.ServedModel, samples: Mapping[str, Array]) -> list[Array]:
    outputs = served(*samples.values())
    return [np.asarray(output) for output in (outputs if isinstance(outputs, list) else [outputs])]
