"""ONNX Runtime, which reads ONNX files themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onefold.agent.forms import Form
from onefold.agent.loaded_model import LoadedModel
from onefold.agent.loading import open_model
from onefold.runtimes.runtime import Source
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint


class OnnxRuntime:
    """The reference: other formats are converted from its files and compared with its outputs."""

    name, extra, packages, suffixes = "onnxruntime", "", ("onnxruntime",), (".onnx",)

    def convert(self, source: Source) -> Form:
        """Return the description of an ONNX file."""
        if not source.is_onnx:
            raise ModelError("the network cannot be exported to ONNX")
        sizes = {argument.shape[0] for argument in source.inputs if argument.shape}
        batch_size = sizes.pop() if len(sizes) == 1 else None
        return Form(self.name, (source.model.name,), source.inputs, source.outputs, batch_size)

    def open(self, files: Sequence[Path], point: ServingPoint, form: Form) -> LoadedModel:
        """Return the model in a session."""
        return open_model(files, point, form)
