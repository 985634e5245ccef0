"""OpenVINO: Intel's runtime, which also serves int8 models with the processor's integer instructions."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from onefold.agent.forms import Form
from onefold.agent.loaded_model import LoadedModel
from onefold.agent.loading import open_model
from onefold.runtimes.runtime import Source
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint


class OpenvinoRuntime:
    """Converts ONNX files to OpenVINO's intermediate representation (IR)."""

    name, extra, packages, suffixes = "openvino", "openvino", ("openvino",), (".xml", ".bin")

    def convert(self, source: Source) -> Form:
        """Write the IR of a model."""
        if not source.is_onnx:
            raise ModelError("OpenVINO converts ONNX files, and the network cannot be exported to ONNX")
        openvino = importlib.import_module("openvino")
        files = [source.model.with_suffix(suffix) for suffix in self.suffixes]
        try:
            openvino.save_model(openvino.convert_model(str(source.model)), str(files[0]), compress_to_fp16=False)
        except Exception as error:  # OpenVINO raises many types
            raise ModelError(f"OpenVINO cannot convert the model: {error}") from error
        sizes = {argument.shape[0] for argument in source.inputs if argument.shape}
        batch_size = sizes.pop() if len(sizes) == 1 else None
        return Form(self.name, tuple(file.name for file in files), source.inputs, source.outputs, batch_size)

    def open(self, files: Sequence[Path], point: ServingPoint, form: Form) -> LoadedModel:
        """Return the model, compiled for the CPU."""
        return open_model(files, point, form)
