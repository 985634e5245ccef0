"""A model in OpenVINO."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onefold.agent.forms import Form
from onefold.agent.loaded_model import Array


class OpenvinoModel:
    """An intermediate representation, compiled for the CPU. Raises what OpenVINO raises."""

    def __init__(self, files: Sequence[Path], point: Any, form: Form) -> None:
        openvino = importlib.import_module("openvino")
        self.inputs, self.outputs, self._batch_size = form.inputs, form.outputs, form.batch_size
        core = openvino.Core()
        settings = {
            "INFERENCE_NUM_THREADS": point.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",  # of float layers; by default they are bfloat16 where the CPU has it
            "ENABLE_CPU_PINNING": False,
        }
        # By content: files on a board have no suffix, by which OpenVINO tells formats apart.
        weights = openvino.Tensor(np.fromfile(files[1], np.uint8))
        compiled = core.compile_model(core.read_model(files[0].read_bytes(), weights), "CPU", settings)
        self._request = compiled.create_infer_request()
        self._positions = range(len(self.inputs))

    @property
    def batch_size(self) -> int | None:
        """Return the batch size that the form fixes, if any."""
        return self._batch_size

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs of one batch."""
        results = self._request.infer(dict(zip(self._positions, arrays)), share_inputs=True, share_outputs=True)
        return [np.array(results[position]) for position in range(len(self.outputs))]
