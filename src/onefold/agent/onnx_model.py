"""A model in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onefold.agent.forms import Argument
from onefold.agent.inference_session import open_inference_session
from onefold.agent.loaded_model import Array
from onefold.agent.session_options import session_options

_NUMPY_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(string)": "object"}


class OnnxModel:
    """An ONNX file in a session of ONNX Runtime. Raises what ONNX Runtime raises."""

    def __init__(self, file: Path, point: Any) -> None:
        self._session = open_inference_session(file, session_options(point))
        self.inputs = tuple(_argument(value) for value in self._session.get_inputs())
        self.outputs = tuple(_argument(value) for value in self._session.get_outputs())
        self._names = [argument.name for argument in self.inputs]
        self._output_names = [argument.name for argument in self.outputs]
        sizes = {argument.shape[0] for argument in self.inputs if argument.shape}
        self._batch_size = sizes.pop() if len(sizes) == 1 else None

    @property
    def batch_size(self) -> int | None:
        """Return the batch size that the file fixes, if any."""
        return self._batch_size

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs of one batch."""
        return list(self._session.run(self._output_names, dict(zip(self._names, arrays))))


def _argument(value: Any) -> Argument:
    shape = tuple(size if isinstance(size, int) and size > 0 else None for size in value.shape)
    return Argument(value.name, _NUMPY_TYPES.get(value.type, value.type[7:-1]), shape)
