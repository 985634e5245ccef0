"""ExecuTorch: PyTorch's runtime for devices, with XNNPACK for the CPU."""

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


class ExecutorchRuntime:
    """Converts models to .pte files for one sample."""

    name, extra, packages, suffixes = "executorch", "executorch", ("executorch",), (".pte",)

    def convert(self, source: Source) -> Form:
        """Write the .pte file of a model."""
        import torch

        partitioner = "executorch.backends.xnnpack.partition.xnnpack_partitioner"
        file = source.model.with_suffix(self.suffixes[0])
        network, inputs = torch_module(source), single_sample_inputs(source)
        try:
            lower = importlib.import_module("executorch.exir").to_edge_transform_and_lower
            xnnpack = importlib.import_module(partitioner).XnnpackPartitioner
            program = lower(torch.export.export(network, inputs), partitioner=[xnnpack()]).to_executorch()
            file.write_bytes(program.buffer)
        except Exception as error:  # the compiler raises many types
            raise ModelError(f"ExecuTorch cannot convert the model: {error}") from error
        return Form(self.name, (file.name,), source.inputs, source.outputs, 1)

    def open(self, files: Sequence[Path], point: ServingPoint, form: Form) -> LoadedModel:
        """Return the program."""
        return open_model(files, point, form)
