"""A model loaded in ONNX Runtime with the settings to serve it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onefold.agent.inference_session import open_inference_session
from onefold.arrays.model_inputs import model_inputs
from onefold.device.session_options import session_options
from onefold.serving.scenario_settings import ScenarioSettings
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint

_NUMPY_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(string)": "object"}


class ServedModel:
    """A model in an ONNX Runtime session: call it with one array per input, the batch first.

    `point` is the serving point of the session and `choice` the settings for its scenario, if any: they also have the
    maximum wait for a batch (`wait_s`) and the expected response times. `session` is the `InferenceSession`.
    """

    def __init__(self, path: Path, point: ServingPoint, choice: ScenarioSettings | None = None) -> None:
        self.point = point
        self.choice = choice
        try:
            self.session = open_inference_session(path, session_options(point))
        except Exception as error:  # the runtime raises many types
            raise ModelError(f"{path} cannot be served: {error}") from error
        inputs = self.session.get_inputs()
        self._names = [value.name for value in inputs]
        self._dtypes = [_NUMPY_TYPES.get(value.type, value.type[7:-1]) for value in inputs]
        self._output_names = [value.name for value in self.session.get_outputs()]

    @property
    def inputs(self) -> list[tuple[str, str, tuple[int | None, ...]]]:
        """Return the name, the numpy type and the shape of each input; dimensions that are not fixed are None."""
        shapes = [
            tuple(size if isinstance(size, int) else None for size in value.shape)
            for value in self.session.get_inputs()
        ]
        return list(zip(self._names, self._dtypes, shapes))

    @property
    def output_names(self) -> tuple[str, ...]:
        """Return the names of the outputs."""
        return tuple(self._output_names)

    def __call__(self, *inputs: Any) -> Any:
        """Return the outputs for any number of samples, computed in batches of the recommended size.

        Inputs may be lists or arrays of another precision of the same kind. Returns an array, or a list of arrays for a
        model with several outputs. Raises ModelError if the inputs do not fit the model.
        """
        size = self.point.batch_size
        try:
            arrays = model_inputs(inputs, self._names, self._dtypes)
            count = len(arrays[0])
            if count <= size:
                outputs = self._run_batch(arrays)
            else:
                batches = [
                    self._run_batch([array[start : start + size] for array in arrays])
                    for start in range(0, count, size)
                ]
                outputs = [np.concatenate(parts) for parts in zip(*batches)]
        except ModelError:
            raise
        except Exception as error:  # numpy and the runtime raise many types
            expected = ", ".join(f"{value.name} {value.type} {value.shape}" for value in self.session.get_inputs())
            raise ModelError(f"the model takes {expected}, the batch first: {error}") from error
        return outputs[0] if len(outputs) == 1 else outputs

    def _run_batch(self, arrays: Sequence[Any]) -> list[Any]:
        return list(self.session.run(self._output_names, dict(zip(self._names, arrays))))
