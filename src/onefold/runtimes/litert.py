"""LiteRT, formerly TensorFlow Lite: the runtime of Android."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from onefold.agent.forms import Form
from onefold.agent.loaded_model import LoadedModel
from onefold.agent.loading import open_model
from onefold.runtimes.runtime import Source
from onefold.runtimes.torch_source import single_sample_inputs, torch_module
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint


class LitertRuntime:
    """Converts models to .tflite files for one sample."""

    name, extra, packages, suffixes = "litert", "litert", ("ai-edge-litert", "litert-torch"), (".tflite",)

    def convert(self, source: Source) -> Form:
        """Write the .tflite file of a model."""
        file = source.model.with_suffix(self.suffixes[0])
        network, inputs = torch_module(source), single_sample_inputs(source)
        try:
            converted = importlib.import_module("litert_torch").convert(network, inputs)
            converted.export(str(file))
        except Exception as error:  # the converter raises many types
            raise ModelError(f"litert-torch cannot convert the model: {error}") from error
        return Form(self.name, (file.name,), source.inputs, source.outputs, 1)

    def open(self, files: Sequence[Path], point: ServingPoint, form: Form) -> LoadedModel:
        """Return the model in an interpreter."""
        return open_model(files, point, form)
