"""A model loaded in its runtime with the settings to serve it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onefold.agent.forms import Argument
from onefold.agent.loaded_model import run_batch
from onefold.arrays.model_inputs import model_inputs
from onefold.device.session_options import check_point
from onefold.runtimes.forms import form_of
from onefold.runtimes.loading import open_model
from onefold.serving.scenario_settings import ScenarioSettings
from onefold.vocabulary.errors import MissingExtra, ModelError
from onefold.vocabulary.serving import ServingPoint


class ServedModel:
    """A model in the runtime of its serving point: call it with one array per input, the batch first.

    Args:
        path: The model; its forms for other runtimes than ONNX Runtime lie beside it.
        point: The serving point.
        choice: The settings for its scenario, if any: they also have the maximum wait for a batch (`wait_s`) and the
            expected response times.

    Raises:
        ModelError: The model has no form for the runtime, or cannot be loaded.
        MissingExtra: The runtime is not installed.
    """

    def __init__(self, path: Path, point: ServingPoint, choice: ScenarioSettings | None = None) -> None:
        self.point = point
        self.choice = choice
        check_point(point)
        form = form_of(path, point.runtime)
        files = [path] if form is None else [path.with_name(name) for name in form.files]
        try:
            self.model = open_model(files, point, form)
        except MissingExtra:
            raise
        except Exception as error:  # runtimes raise many types
            raise ModelError(f"{path} cannot be served: {error}") from error
        self._names = [argument.name for argument in self.model.inputs]
        self._dtypes = [argument.dtype for argument in self.model.inputs]

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """Return the name, the numpy type and the shape of each input; dimensions that are not fixed are None."""
        return self.model.inputs

    @property
    def output_names(self) -> tuple[str, ...]:
        """Return the names of the outputs."""
        return tuple(output.name for output in self.model.outputs)

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
                outputs = run_batch(self.model, arrays)
            else:
                batches = [
                    run_batch(self.model, [array[start : start + size] for array in arrays])
                    for start in range(0, count, size)
                ]
                outputs = [np.concatenate(parts) for parts in zip(*batches)]
        except ModelError:
            raise
        except Exception as error:  # numpy and the runtimes raise many types
            raise ModelError(f"the model takes {_described(self.model.inputs)}, the batch first: {error}") from error
        return outputs[0] if len(outputs) == 1 else outputs


def _described(inputs: Sequence[Argument]) -> str:
    """Return the inputs of a model in words: `input0 float32 [batch, 28, 28]`."""
    shapes = (
        ", ".join(
            "batch" if axis == 0 else "any" if size is None else str(size) for axis, size in enumerate(each.shape)
        )
        for each in inputs
    )
    return ", ".join(f"{each.name} {each.dtype} [{shape}]" for each, shape in zip(inputs, shapes))
