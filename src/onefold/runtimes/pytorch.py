"""PyTorch itself: what serves a network that cannot be exported to ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onefold.agent.forms import Form
from onefold.agent.loaded_model import Array, LoadedModel
from onefold.runtimes.forms import form_of
from onefold.runtimes.runtime import Source
from onefold.runtimes.torch_program import load_program, save_program
from onefold.runtimes.torch_source import torch_module
from onefold.vocabulary.serving import ServingPoint


class PytorchRuntime:
    """Converts models to TorchScript programs, which can read and write files: they are loaded only if trusted."""

    name, extra, packages, suffixes = "pytorch", "", ("torch",), (".pt",)

    def convert(self, source: Source) -> Form:
        """Write the program of a model, for one sample."""
        form = Form(self.name, (f"{source.model.stem}.pt",), source.inputs, source.outputs, 1)
        if not source.is_onnx:  # it is the program
            return form_of(source.model, self.name) or form
        save_program(torch_module(source), source.samples, source.model.with_suffix(".pt"), batch_size=1)
        return form

    def open(self, files: Sequence[Path], point: ServingPoint, form: Form) -> LoadedModel:
        """Return the program."""
        return PytorchModel(files, point, form)


class PytorchModel:
    """A program that PyTorch interprets. The threads are those of the process."""

    def __init__(self, files: Sequence[Path], point: ServingPoint, form: Form) -> None:
        import torch

        self.inputs, self.outputs, self._batch_size = form.inputs, form.outputs, form.batch_size
        self._torch, self._threads = torch, point.threads
        self._network = load_program(files[0])

    @property
    def batch_size(self) -> int | None:
        """Return the batch size that the program fixes, if any."""
        return self._batch_size

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs of one batch."""
        torch = self._torch
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        with torch.no_grad():
            outputs: Any = self._network(*(torch.from_numpy(array) for array in arrays))
        return [output.numpy() for output in outputs]
