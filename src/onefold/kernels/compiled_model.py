"""A compiled model loaded in TVM: the call that serves it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from onefold.agent.inference_session import open_inference_session
from onefold.arrays.model_inputs import model_inputs
from onefold.device.session_options import session_options
from onefold.kernels.kernel_library import LibraryManifest, PartTensors
from onefold.kernels.toolchain import tvm
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint

Array = np.ndarray[Any, Any]


class CompiledModel:
    """A compiled model: call it with one array per input, the batch first.

    Args:
        library: The library.
        manifest: Its manifest.
        choice: The settings of its serving scenario.
        before: The ONNX file of what comes before the library, if that is a part of the model.
        after: The ONNX file of what comes after it.

    Raises:
        ModelError: A file cannot be loaded.
    """

    def __init__(
        self,
        library: Path,
        manifest: LibraryManifest,
        choice: Any = None,
        before: Path | None = None,
        after: Path | None = None,
    ) -> None:
        self.point = ServingPoint(manifest.batch_size, manifest.threads)
        self.choice = choice
        os.environ.setdefault("TVM_NUM_THREADS", str(manifest.threads))  # read when TVM starts its threads
        self.manifest = manifest
        self._dtypes = tuple(manifest.inputs.values())
        self._library = LoadedLibrary(library)
        self._before, self._after = (None if part is None else OnnxPart(part, self.point) for part in (before, after))
        self._run = self._library.run if manifest.part is None else partial(self._run_parts, manifest.part)

    def __call__(self, *inputs: Any) -> Any:
        """Return the outputs for any number of samples, computed in batches of the compiled size."""
        size = self.manifest.batch_size
        try:
            arrays = model_inputs(inputs, list(self.manifest.inputs), self._dtypes)
            count = len(arrays[0])
            if count == size:
                outputs = self._run(arrays)
            else:
                batches = [self._run_padded(arrays, start, size) for start in range(0, max(1, count), size)]
                outputs = [np.concatenate(parts)[:count] for parts in zip(*batches)]
        except ModelError:
            raise
        except Exception as error:  # numpy and TVM raise many types
            raise ModelError(f"the model takes {self.manifest.inputs}, the batch first: {error}") from error
        return outputs[0] if len(outputs) == 1 else outputs

    def _run_padded(self, arrays: Sequence[Array], start: int, size: int) -> list[Array]:
        """Return the outputs of one batch; an incomplete batch is padded by repetition."""
        parts = [array[start : start + size] for array in arrays]
        return self._run([part if len(part) == size else np.resize(part, (size, *part.shape[1:])) for part in parts])

    def _run_parts(self, tensors: PartTensors, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs of a model that TVM has compiled in part."""
        values = dict(zip(tensors.inputs, arrays))
        if self._before is not None:
            values |= self._before.run(values)
        values |= zip(tensors.made, self._library.run([values[name] for name in tensors.taken]))
        if self._after is not None:
            values |= self._after.run(values)
        return [values[name] for name in tensors.results]


class OnnxPart:
    """A part of a model in onnxruntime. Raises ModelError if the file cannot be loaded."""

    def __init__(self, file: Path, point: ServingPoint) -> None:
        try:
            self._session = open_inference_session(file, session_options(point))
        except Exception as error:  # onnxruntime raises many types
            raise ModelError(f"{file} cannot be loaded: {error}") from error
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._outputs = [value.name for value in self._session.get_outputs()]

    def run(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Return its outputs by name, for inputs by name."""
        return dict(zip(self._outputs, self._session.run(self._outputs, {name: values[name] for name in self._inputs})))


class LoadedLibrary:
    """A library with input tensors that are bound once: TVM allocates and converts nothing per call.

    A conversion of each input and output costs as much as the kernels of a small model. Thread-safe.

    Raises ModelError if the library cannot be loaded.
    """

    def __init__(self, file: Path) -> None:
        runtime = tvm().runtime
        relax = importlib.import_module("tvm.relax")
        try:
            self._machine = relax.VirtualMachine(runtime.load_module(str(file)), runtime.device("cpu", 0))
            self._main = self._machine["main"]
        except Exception as error:  # TVM raises many types
            raise ModelError(f"{file} cannot be loaded: {str(error).strip()}") from error
        self._empty = runtime.empty
        self._tensors: list[Any] = []
        self._views: list[Array] = []  # of the same memory
        self._lock = Lock()

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Return copies of the outputs for one batch. Raises what TVM raises if the shapes do not fit."""
        with self._lock:
            if [view.shape for view in self._views] != [array.shape for array in inputs]:
                self._bind(inputs)
            for view, array in zip(self._views, inputs):
                view[...] = array
            result = self._main(*self._tensors)
            tensors = [result] if hasattr(result, "shape") else result
            return [np.array(np.from_dlpack(tensor)) for tensor in tensors]

    def _bind(self, inputs: Sequence[Array]) -> None:
        self._tensors = [self._empty(array.shape, str(array.dtype)) for array in inputs]
        self._views = [np.from_dlpack(tensor) for tensor in self._tensors]
