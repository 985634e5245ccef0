"""The checkpoint of a trial: model, optimizer, schedule and epochs, written after every epoch."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from onefold.training.assignment import Assignment
from onefold.training.network import build_network
from onefold.training.seeds import derive_seed, seed_everything
from onefold.training.trial_files import checkpoint_file
from onefold.vocabulary.errors import StoreError
from onefold.vocabulary.knobs import SettledKnobs
from onefold.vocabulary.log import log_of
from onefold.vocabulary.records import Epoch, Measurement, from_json, to_json
from onefold.vocabulary.workload import Workload

log = log_of(__name__)


@dataclass
class TrainingState:
    """The state of a trial between two epochs."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Any = None
    history: list[Epoch] = field(default_factory=list)
    settled: SettledKnobs | None = None

    @property
    def epochs(self) -> int:
        """Return the number of finished epochs."""
        return len(self.history)

    @property
    def cost(self) -> Measurement:
        """Return the total cost of the finished epochs."""
        return sum((epoch.measurement for epoch in self.history), Measurement.nothing())

    def save(self, path: Path) -> None:
        """Replace the checkpoint atomically."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict() if self.schedule is not None else None,
            "history": [to_json(epoch) for epoch in self.history],
            "settled": to_json(self.settled),
        }
        _write(state, path)

    def save_weights(self, path: Path) -> None:
        """Write the weights only."""
        _write({"model": self.model.state_dict()}, path)


def open_state(workload: Workload, assignment: Assignment, folder: Path, device: torch.device) -> TrainingState:
    """Return the state in the trial's checkpoint, or the initial state if it has none."""
    seed_everything(derive_seed(assignment.seed, assignment.trial))
    model = build_network(workload, assignment.config).to(device)
    optimizer = workload.optimizer(model, assignment.config)
    schedule = workload.schedule(optimizer, assignment.config, assignment.max_epochs)
    initial = TrainingState(model, optimizer, schedule)
    checkpoint = _read(checkpoint_file(folder, assignment.trial), device)
    if checkpoint is None:
        return initial
    history = [from_json(Epoch, epoch) for epoch in checkpoint["history"]]
    if assignment.grant.fresh and history[-1].rung != assignment.rung:
        return initial
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    if schedule is not None:
        schedule.load_state_dict(checkpoint["schedule"])
    settled = checkpoint.get("settled")
    return TrainingState(
        model, optimizer, schedule, history, None if settled is None else from_json(SettledKnobs, settled)
    )


def load_weights(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return the weights in a checkpoint or in a file of weights; raise StoreError if the file is damaged."""
    if problem := _damage(path):
        raise StoreError(
            f"the weights {path} are damaged ({problem}); restore the file from a backup, or train the "
            "configuration again"
        )
    return torch.load(path, map_location=device, weights_only=True)["model"]  # type: ignore[no-any-return]


def _write(state: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    complete = path.with_suffix(".new")
    content = io.BytesIO()  # when it writes to a file, torch raises its own error instead of "no space left on device"
    torch.save(state, content)
    with complete.open("wb") as file:
        file.write(content.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    complete.replace(path)


def _damage(path: Path) -> str:
    """Say what differs from the checksums in the file, which torch writes but does not read; empty if nothing does."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        return str(error)
    return "" if damaged is None else f"the checksum of {damaged} does not match"


def _read(path: Path, device: torch.device) -> dict[str, Any] | None:
    try:
        if problem := _damage(path):
            raise ValueError(problem)
        return torch.load(path, map_location=device, weights_only=True)  # type: ignore[no-any-return]
    except FileNotFoundError:
        return None
    except (RuntimeError, EOFError, OSError, LookupError, ValueError, pickle.UnpicklingError) as error:
        log.warning("the checkpoint %s is unreadable, so the trial starts again: %s", path.name, error)
        return None
