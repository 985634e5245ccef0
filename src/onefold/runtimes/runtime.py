"""The seam of runtimes: convert a model into a runtime's own format, and load it there to serve it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from onefold.agent.forms import Argument, Form
from onefold.agent.loaded_model import Array, LoadedModel
from onefold.vocabulary.serving import ServingPoint


@dataclass(frozen=True)
class Source:
    """A model to convert, with a batch of inputs and the outputs that it has for them."""

    model: Path  # an ONNX file, or a traced program of PyTorch
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    samples: tuple[Array, ...]  # one array per input, the batch first
    expected: tuple[Array, ...]  # one array per output
    is_quantized: bool = False  # the runtimes round integers differently

    @property
    def is_onnx(self) -> bool:
        """Return whether the model is an ONNX file."""
        return self.model.suffix == ".onnx"


class Runtime(Protocol):
    """What serves models, in the format that it reads.

    - `convert` writes the files of the format beside the model, named like it with `suffixes`. They contain no code, no
      stack traces and no local paths, and answer like the model. It raises ModelError for a model that the
      runtime cannot have, with the reason.
    - `open` loads them with the threads of a serving point. It raises what the runtime raises.
    - Packages are imported when they are needed, not before.

    `RuntimeContract` in `tests/runtimes` tests these rules for any implementation.
    """

    @property
    def name(self) -> str:
        """Return its name in serving points and options."""

    @property
    def extra(self) -> str:
        """Return the extra of Onefold that installs it; empty if every installation has it."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the distributions that `convert` and `open` need; the first one has its version."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Return the suffixes of its files; the first one is opened."""

    def convert(self, source: Source) -> Form:
        """Write the files of a model beside it, and return their description."""

    def open(self, files: Sequence[Path], point: ServingPoint, form: Form) -> LoadedModel:
        """Return the model, loaded in this process."""


def files_of(form: Form, folder: Path) -> list[Path]:
    """Return the paths of the files of a form in a folder."""
    return [folder / name for name in form.files]
