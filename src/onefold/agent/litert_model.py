"""A model in LiteRT, formerly TensorFlow Lite."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onefold.agent.forms import Form
from onefold.agent.loaded_model import Array


class LitertModel:
    """A .tflite file in an interpreter with XNNPACK. Raises what LiteRT raises."""

    def __init__(self, files: Sequence[Path], point: Any, form: Form) -> None:
        interpreter = importlib.import_module("ai_edge_litert.interpreter").Interpreter
        self.inputs, self.outputs, self._batch_size = form.inputs, form.outputs, form.batch_size
        self._interpreter = interpreter(model_path=str(files[0]), num_threads=point.threads)
        self._interpreter.allocate_tensors()
        self._inputs = _in_order(self._interpreter.get_input_details(), len(self.inputs))
        self._outputs = _in_order(self._interpreter.get_output_details(), len(self.outputs))

    @property
    def batch_size(self) -> int | None:
        """Return the batch size that the form fixes, if any."""
        return self._batch_size

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs of one batch."""
        for detail, array in zip(self._inputs, arrays):
            self._interpreter.set_tensor(detail["index"], array.astype(detail["dtype"], copy=False))
        self._interpreter.invoke()
        return [
            np.asarray(self._interpreter.get_tensor(detail["index"]), argument.dtype)
            for detail, argument in zip(self._outputs, self.outputs)
        ]


def _in_order(details: Sequence[Any], count: int) -> list[Any]:
    """Return the tensors in the order of the arguments, which their names end with: `serving_default_args_1:0`."""
    if len(details) != count:
        raise RuntimeError("the file has other inputs or outputs than the model")
    return sorted(details, key=lambda detail: int("".join(filter(str.isdigit, detail["name"].split(":")[0])) or 0))
