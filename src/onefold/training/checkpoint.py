"""Where a trial stands: its model, optimiser and epochs so far, on disk after every epoch."""

from __future__ import annotations

import io
import logging
import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from onefold.training.assignment import Assignment, seed_of
from onefold.training.seeding import seed_everything
from onefold.vocabulary.knobs import Settled
from onefold.vocabulary.records import Epoch, Measurement, from_json, to_json
from onefold.vocabulary.workload import Workload

log = logging.getLogger(__name__)


@dataclass
class Progress:
    """A trial in the making."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Any = None
    history: list[Epoch] = field(default_factory=list)
    settled: Settled | None = None  # the knobs that were found for it

    @property
    def epochs(self) -> int:
        """How many epochs it has had."""
        return len(self.history)

    @property
    def cost(self) -> Measurement:
        """What they cost together."""
        return sum((epoch.measurement for epoch in self.history), Measurement.nothing())

    def save(self, path: Path) -> None:
        """Replaces the checkpoint as a whole: whoever reads it finds the old one or the new one."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict() if self.schedule is not None else None,
            "history": [to_json(epoch) for epoch in self.history],
            "settled": to_json(self.settled),
        }
        _write(state, path)

    def save_weights(self, path: Path) -> None:
        """Keeps the weights alone."""
        _write({"model": self.model.state_dict()}, path)


def _write(state: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(".new")
    content = io.BytesIO()  # writing to a file, torch hides a full disk behind an error of its own
    torch.save(state, content)
    with whole.open("wb") as file:
        file.write(content.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    whole.replace(path)


def begin(workload: Workload, work: Assignment, device: torch.device) -> Progress:
    """The trial from its checkpoint, or with fresh weights when it has none."""
    seed_everything(seed_of(work.seed, work.trial))
    model = workload.build(work.config).to(device)
    optimizer = workload.optimizer(model, work.config)
    progress = Progress(model, optimizer, workload.schedule(optimizer, work.config, work.most_epochs))
    state = _read(work.checkpoint, device)
    if state is None:
        return progress
    history = [from_json(Epoch, epoch) for epoch in state["history"]]
    if work.grant.fresh and history[-1].rung != work.rung:
        return progress
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if progress.schedule is not None:
        progress.schedule.load_state_dict(state["schedule"])
    progress.history = history
    if state.get("settled") is not None:
        progress.settled = from_json(Settled, state["settled"])
    return progress


def weights_of(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The weights in a checkpoint, or of a rung's best epoch."""
    return torch.load(path, map_location=device, weights_only=True)["model"]  # type: ignore[no-any-return]


def _read(path: Path, device: torch.device) -> dict[str, Any] | None:
    try:
        return torch.load(path, map_location=device, weights_only=True)  # type: ignore[no-any-return]
    except FileNotFoundError:
        return None
    except (RuntimeError, EOFError, OSError, LookupError, ValueError, pickle.UnpicklingError) as error:
        log.warning("the checkpoint %s cannot be read and the trial starts again: %s", path.name, error)
        return None
