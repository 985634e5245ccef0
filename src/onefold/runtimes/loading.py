"""Load a model in the runtime of a serving point, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onefold.agent.forms import Form
from onefold.agent.loaded_model import LoadedModel
from onefold.agent.loading import open_model as open_without_torch
from onefold.runtimes.pytorch import PytorchModel, PytorchRuntime
from onefold.runtimes.registry import find_runtime, require_installed


def open_model(files: Sequence[Path], point: Any, form: Form | None) -> LoadedModel:
    """Return a model in the runtime of a serving point; unlike a board, this machine may also serve with PyTorch.

    Raises MissingExtra if the runtime is not installed, and what it raises if it cannot load the model.
    """
    if form is not None:
        require_installed(find_runtime(form.runtime))
    if form is not None and form.runtime == PytorchRuntime.name:
        return PytorchModel(files, point, form)
    return open_without_torch(files, point, form)
