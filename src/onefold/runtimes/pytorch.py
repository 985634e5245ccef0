"""PyTorch itself: what serves a network that cannot be exported to ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onefold.agent.forms import Form
from onefold.agent.loaded_model import Array, LoadedModel
from onefold.runtimes.runtime import Source
from onefold.runtimes.torch_program import save_program
from onefold.runtimes.torch_source import torch_module
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint


class PytorchRuntime:
    """Converts models to programs of torch.export, which contain pickles: they are loaded only if they are trusted."""

    name, extra, packages, suffixes = "pytorch", "", ("torch",), (".pt2",)

    def convert(self, source: Source) -> Form:
        """Write the program of a model; for any batch size if it allows that, else for one sample."""
        file = source.model.with_suffix(self.suffixes[0])
        if not source.is_onnx:
            from onefold.runtimes.forms import form_of

            form = form_of(source.model, self.name)
            if form is None:
                raise ModelError(f"{source.model} has no description")
            return form
        batch_size: int | None = None
        try:
            save_program(torch_module(source, single_sample=False), source.samples, file)
        except ModelError:
            batch_size = 1
            save_program(torch_module(source), source.samples, file, batch_size=1)
        return Form(self.name, (file.name,), source.inputs, source.outputs, batch_size)

    def open(self, files: Sequence[Path], point: ServingPoint, form: Form) -> LoadedModel:
        """Return the program."""
        return PytorchModel(files, point, form)


class PytorchModel:
    """A program of torch.export, which PyTorch interprets. The threads are those of the process."""

    def __init__(self, files: Sequence[Path], point: ServingPoint, form: Form) -> None:
        import torch

        self.inputs, self.outputs, self._batch_size = form.inputs, form.outputs, form.batch_size
        self._torch, self._threads = torch, point.threads
        self._network = torch.export.load(str(files[0])).module()

    @property
    def batch_size(self) -> int | None:
        """Return the batch size that the program fixes, if any."""
        return self._batch_size

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs of one batch."""
        torch = self._torch
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        with torch.inference_mode():
            outputs: Any = self._network(*(torch.from_numpy(array) for array in arrays))
        return [output.numpy() for output in (outputs if isinstance(outputs, (tuple, list)) else [outputs])]
