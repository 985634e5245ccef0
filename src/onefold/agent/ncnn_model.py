"""A model in ncnn."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onefold.agent.forms import Form
from onefold.agent.loaded_model import Array


class NcnnModel:
    """A network of ncnn, which computes one sample at a time and knows 32-bit integers and floats alone.

    Raises RuntimeError if ncnn fails, which says so by a number.
    """

    batch_size = 1

    def __init__(self, files: Sequence[Path], point: Any, form: Form) -> None:
        self._ncnn = importlib.import_module("ncnn")
        self.inputs, self.outputs = form.inputs, form.outputs
        self._net = self._ncnn.Net()
        options = self._net.opt
        options.num_threads = point.threads
        options.use_vulkan_compute = False
        for name in ("use_fp16_storage", "use_fp16_packed", "use_fp16_arithmetic", "use_bf16_storage"):
            setattr(options, name, False)  # or the outputs of float models are those of half precision
        if self._net.load_param(str(files[0])) or self._net.load_model(str(files[1])):
            raise RuntimeError("ncnn cannot load the network")
        # ncnn lists them in the order of its layers, and pnnx numbers them: in0, in1, …, out0, out1, …
        self._input_names = sorted(self._net.input_names(), key=_number)
        self._output_names = sorted(self._net.output_names(), key=_number)
        if (len(self._input_names), len(self._output_names)) != (len(self.inputs), len(self.outputs)):
            raise RuntimeError("the network has other inputs or outputs than the model")
        self._dtypes = [
            np.int32 if argument.dtype.startswith(("int", "uint")) else np.float32 for argument in form.inputs
        ]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs of one sample."""
        with self._net.create_extractor() as extractor:
            # ncnn reads the arrays in place, so they must live until it has answered.
            samples = [np.ascontiguousarray(array[0], dtype) for array, dtype in zip(arrays, self._dtypes)]
            for name, sample in zip(self._input_names, samples):
                if extractor.input(name, self._ncnn.Mat(sample)):
                    raise RuntimeError(f"ncnn refuses an input of shape {sample.shape}")
            return [
                self._extract(extractor, name, argument) for name, argument in zip(self._output_names, self.outputs)
            ]

    def _extract(self, extractor: Any, name: str, argument: Any) -> Array:
        code, result = extractor.extract(name)
        if code:
            raise RuntimeError(f"ncnn fails with code {code}")
        shape = tuple(-1 if size is None else size for size in argument.shape[1:])
        return np.array(result).reshape((1, *shape)).astype(argument.dtype, copy=False)


def _number(name: str) -> int:
    return int("".join(filter(str.isdigit, name)) or 0)
