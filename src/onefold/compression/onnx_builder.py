"""Variants of a model of which only the graph is there: nothing can be trained, so it is quantised and encoded.

Without a workload nobody knows what its answers are worth. What is known is how often a variant answers as the plain
model does: `agreement`.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.compression import quantize_onnx, strip_metadata
from onefold.compression.variant_builder import BuiltVariant, Tell
from onefold.device.random_inputs import random_input
from onefold.serving import deploy
from onefold.serving.export import SAMPLES, samples_beside
from onefold.serving.external_data import with_embedded_weights
from onefold.vocabulary.errors import InputError, ModelError
from onefold.vocabulary.records import Metrics
from onefold.vocabulary.serving import ServingPoint
from onefold.vocabulary.variants import Recipe

MADE_UP = 64  # samples, where none are given
NUMPY = {"float": "f4", "double": "f8"}  # what numpy calls the runtime's types, where the names differ
Array = NDArray[Any]


class OnnxVariantBuilder:
    """Makes variants of an ONNX file."""

    metric, higher_is_better = "agreement", True

    def __init__(self, model: Path, folder: Path, samples: Path | None, tell: Tell) -> None:
        self._folder = folder
        self._tell = tell
        self._plain = folder / "plain.onnx"
        with tempfile.TemporaryDirectory() as beside:  # the model's name may be one of those that are used here
            shutil.copyfile(with_embedded_weights(model, Path(beside)), self._plain)
        served = deploy.ServedModel(self._plain, ServingPoint(MADE_UP))
        self._are_given = samples is not None
        self._samples = _read(samples, served) if samples is not None else _made_up(served)
        self._wanted = _first(served(*self._samples.values()))
        self._keep_samples(self._plain)
        self.about: Mapping[str, Any] = {"file": model.name}

    def make(self, recipes: Sequence[Recipe]) -> list[BuiltVariant]:
        """The plain model first, then each recipe."""
        for recipe in recipes:
            if recipe.sparsity or recipe.channels:
                raise InputError(
                    f"{recipe}: pruning is followed by training, which takes the folder that onefold tune … --save "
                    "wrote; of a graph alone the precision can be reduced: int8, int8-dynamic, fp16"
                )
        made = [BuiltVariant(Recipe(), self._plain, self._plain, {self.metric: 1.0})]
        for recipe in dict.fromkeys(recipe for recipe in recipes if not recipe.is_plain):
            path = self._folder / f"{recipe.precision}.onnx"
            left = quantize_onnx(self._plain, path, recipe.precision, self._samples if self._are_given else None)
            strip_metadata(path)
            self._keep_samples(path)
            metrics = self._agreement(path)
            notes = () if self._are_given else ("agreement on made-up inputs, which says little: give --samples",)
            made.append(BuiltVariant(recipe, path, self._plain, metrics, left, notes))
            self._tell(f"{recipe}: agreement {metrics[self.metric]:.4g}")
        return made

    def test(self, file: Path) -> Metrics:  # noqa: ARG002 - as of a network
        """There is no test data."""
        return {}

    def _agreement(self, path: Path) -> Metrics:
        """The share of samples with the same class; where answers are no classes, 1 less the relative error."""
        answers = _first(deploy.ServedModel(path, ServingPoint(MADE_UP))(*self._samples.values()))
        wanted = self._wanted
        if wanted.ndim == 2 and wanted.shape[1] > 1:
            return {self.metric: float((answers.argmax(axis=1) == wanted.argmax(axis=1)).mean())}
        error = np.linalg.norm(answers - wanted) / max(float(np.linalg.norm(wanted)), 1e-12)
        return {self.metric: max(0.0, 1.0 - float(error))}

    def _keep_samples(self, path: Path) -> None:
        few = {name: array[:SAMPLES] for name, array in self._samples.items()}
        np.savez(samples_beside(path), **few)  # type: ignore[arg-type]


def _read(path: Path, served: deploy.ServedModel) -> dict[str, Array]:
    """The samples of a file, one array for each input: by their names if those are the inputs', otherwise in order."""
    inputs = {each.name: each.type.removeprefix("tensor(").removesuffix(")") for each in served.session.get_inputs()}
    try:
        content = np.load(path, allow_pickle=False)
        arrays = {"": content} if isinstance(content, np.ndarray) else {name: content[name] for name in content.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(
            f"the samples in {path} cannot be read: {error}; give an .npz with an array per input"
        ) from error
    if len(arrays) != len(inputs):
        names = ", ".join(inputs)
        raise InputError(f"the model takes {len(inputs)} inputs ({names}), but {path} has {len(arrays)} arrays")
    if set(arrays) != set(inputs):
        arrays = dict(zip(inputs, arrays.values()))
    return {name: arrays[name].astype(NUMPY.get(kind, kind)) for name, kind in inputs.items()}


def _made_up(served: deploy.ServedModel) -> dict[str, Array]:
    try:
        return {each.name: random_input(each, MADE_UP) for each in served.session.get_inputs()}
    except ValueError as error:
        raise ModelError(f"no inputs can be made up for the model: {error}") from error


def _first(outputs: Any) -> Array:
    return np.asarray(outputs[0] if isinstance(outputs, list) else outputs)
