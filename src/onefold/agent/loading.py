"""Load a model in its runtime. Runtimes are imported when one of their models is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from onefold.agent.forms import Form
from onefold.agent.loaded_model import LoadedModel
from onefold.agent.onnx_model import OnnxModel

ONNXRUNTIME = "onnxruntime"
_CLASSES = {
    "openvino": ("onefold.agent.openvino_model", "OpenvinoModel"),
    "ncnn": ("onefold.agent.ncnn_model", "NcnnModel"),
    "litert": ("onefold.agent.litert_model", "LitertModel"),
    "executorch": ("onefold.agent.executorch_model", "ExecutorchModel"),
}


def open_model(files: Sequence[Path], point: Any, form: Optional[Form]) -> LoadedModel:  # noqa: UP045
    """Return a model in the runtime of a serving point.

    Args:
        files: The files of the form, or the ONNX file.
        point: The serving point.
        form: The form; None for an ONNX file.

    Raises:
        ValueError: The runtime is unknown, not installed or not that of the form.
        Exception: What the runtime raises.
    """
    if form is None or point.runtime == ONNXRUNTIME:
        if point.runtime != ONNXRUNTIME:
            raise ValueError(f"the model has no form for {point.runtime}")
        return OnnxModel(files[0], point)
    if point.runtime != form.runtime or form.runtime not in _CLASSES:
        raise ValueError(f"models for {form.runtime} cannot be loaded as {point.runtime}")
    module, name = _CLASSES[form.runtime]
    try:
        loaded: LoadedModel = getattr(importlib.import_module(module), name)(files, point, form)
    except ImportError as error:
        raise ValueError(f"{form.runtime} is not installed here ({error})") from error
    return loaded
