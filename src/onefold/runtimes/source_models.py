"""Open a model that is to be converted: its samples, and what it answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from onefold.agent.forms import Argument
from onefold.agent.loaded_model import Array, LoadedModel, run_batch
from onefold.agent.onnx_model import OnnxModel
from onefold.agent.random_inputs import random_input
from onefold.arrays.files import read_arrays
from onefold.runtimes.forms import form_of
from onefold.runtimes.pytorch import PytorchModel
from onefold.runtimes.runtime import Source
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint

MAX_SAMPLES, RANDOM_SAMPLES = 256, 2
QUANTIZED = ("QuantizeLinear", "DynamicQuantizeLinear")


def open_source(model: Path) -> Source:
    """Return a model with a batch of its samples, which are random if none lie beside it. Raises ModelError."""
    is_onnx = model.suffix == ".onnx"
    loaded = _loaded_onnx(model) if is_onnx else _loaded_program(model)
    samples = model.with_suffix(".npz")
    if samples.is_file():
        names = [argument.name for argument in loaded.inputs]
        arrays = tuple(read_arrays(samples, names, rows=MAX_SAMPLES).values())
    else:
        arrays = tuple(random_input(argument, RANDOM_SAMPLES) for argument in loaded.inputs)
    arrays = tuple(np.ascontiguousarray(array) for array in arrays)
    try:
        expected = tuple(run_batch(loaded, arrays))
    except Exception as error:  # runtimes raise many types
        raise ModelError(f"the model cannot be run: {error}") from error
    return Source(
        model,
        tuple(_measured(argument, array) for argument, array in zip(loaded.inputs, arrays)),
        tuple(_measured(argument, array) for argument, array in zip(loaded.outputs, expected)),
        arrays,
        expected,
        is_quantized=is_onnx and _is_quantized(model),
    )


def _measured(argument: Argument, array: Array) -> Argument:
    """Return an argument with the sizes that its samples have, where the model says none."""
    known = argument.shape if len(argument.shape) == array.ndim else (None,) * array.ndim
    sizes = (*known[:1], *(size or wanted for size, wanted in zip(known[1:], array.shape[1:])))
    return replace(argument, dtype=array.dtype.name, shape=sizes)


def _loaded_onnx(model: Path) -> LoadedModel:
    try:
        return OnnxModel(model, ServingPoint())
    except Exception as error:  # ONNX Runtime raises many types
        raise ModelError(f"{model} cannot be served: {error}") from error


def _loaded_program(model: Path) -> LoadedModel:
    form = form_of(model, "pytorch")
    if form is None:
        raise ModelError(f"{model} has no description beside it")
    return PytorchModel([model], ServingPoint(runtime="pytorch"), form)


def _is_quantized(model: Path) -> bool:
    import onnx

    return any(node.op_type in QUANTIZED for node in onnx.load(str(model), load_external_data=False).graph.node)
