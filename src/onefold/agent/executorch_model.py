"""A model in ExecuTorch."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onefold.agent.forms import Form
from onefold.agent.loaded_model import Array


class ExecutorchModel:
    """A .pte file, whose operators run in XNNPACK where it has them. Raises what ExecuTorch raises.

    The threads are those of the process: models that are open together share the number of the latest.
    """

    def __init__(self, files: Sequence[Path], point: Any, form: Form) -> None:
        self._torch = importlib.import_module("torch")
        runtime = importlib.import_module("executorch.runtime").Runtime
        self.inputs, self.outputs, self._batch_size = form.inputs, form.outputs, form.batch_size
        _limit_threads(point.threads)
        self._program = runtime.get().load_program(str(files[0]))  # its memory must outlive the method
        self._method = self._program.load_method("forward")
        if self._method is None:
            raise RuntimeError("the file has no method forward")

    @property
    def batch_size(self) -> int | None:
        """Return the batch size that the form fixes, if any."""
        return self._batch_size

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs of one batch."""
        results = self._method.execute([self._torch.from_numpy(array) for array in arrays])
        return [result.numpy().copy() for result in results]


def _limit_threads(threads: int) -> None:
    bindings = importlib.import_module("executorch.extension.pybindings.portable_lib")
    if bindings._threadpool_get_thread_count() != threads:
        bindings._unsafe_reset_threadpool(threads)
