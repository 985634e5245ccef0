"""What a study hands over."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onefold.serving import deploy
from onefold.serving.recommendation import Recommendation
from onefold.training.model_folder import CARD, WEIGHTS
from onefold.training.trial_files import best_weights_file
from onefold.vocabulary.errors import InputError, OnefoldError
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.ranking import best_epoch, front, ranked
from onefold.vocabulary.records import Config, Epoch, Metrics, RungState, Trial
from onefold.vocabulary.serving import Surface
from onefold.vocabulary.variants import COMPRESSED_FOLDER, Shortlist
from onefold.vocabulary.workload import Workload


@dataclass(frozen=True)
class Result:
    """The best trial of a study, its model and where everything is."""

    study: str
    reason: str  # why the study ended
    best: Trial
    trials: tuple[Trial, ...]
    objective: Objective
    test: Metrics  # of the best model, on data that no decision has seen; empty without test data
    folder: Path
    report: Path
    elapsed_s: float
    workload: Workload | None = None
    surfaces: Mapping[str, Surface] = field(default_factory=dict)  # how the best model serves, by device
    recommendation: Recommendation | None = None  # why this one, what else would do, and how to serve it
    shortlist: Shortlist | None = None  # the best trials in several forms, where they were compressed afterwards

    @property
    def config(self) -> Config:
        """The best configuration."""
        return self.best.config

    @property
    def metrics(self) -> Metrics:
        """What the best trial reached on the validation data."""
        return self.best.metrics

    @property
    def front(self) -> list[Trial]:
        """With several goals: the trials that no other beats in all of them."""
        return front(self.trials, self.objective)

    @property
    def keeps_requirements(self) -> bool:
        """Whether the best trial keeps all that was required."""
        return self.objective.violation(self.metrics) == 0

    def model(self) -> Any:
        """The trained network, in evaluation mode."""
        if self.workload is None or not (self.folder / "best" / WEIGHTS).exists():
            raise OnefoldError(f"the study {self.study!r} tuned a function: it has a best configuration but no model")
        import torch

        network = self.workload.build(self.config)
        weights = torch.load(self.folder / "best" / WEIGHTS, map_location="cpu", weights_only=True)
        network.load_state_dict(weights)
        return network.eval()

    @property
    def compressed(self) -> Path | None:
        """The deployment folder of the variant to take; None where nothing was compressed, or to no avail."""
        place = self.folder / COMPRESSED_FOLDER
        return place if self.shortlist is not None and place.is_dir() else None

    def save(self, folder: str | Path) -> Path:
        """Copies the model and its description into a folder of the caller's.

        `weights.pt` and `model.json`; of a study with devices also `model.onnx` and `deployment.json`, which
        `onefold.deploy.load` serves; where the best trials were compressed, the variant to take in `compressed/`.
        Raises InputError when the folder cannot be written.
        """
        source, target = self.folder / "best", Path(folder)
        try:
            target.mkdir(parents=True, exist_ok=True)
            for file in source.iterdir():
                shutil.copy2(file, target)
            if self.compressed is not None:
                shutil.copytree(self.compressed, target / self.compressed.name, dirs_exist_ok=True)
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"the model cannot be saved in {target} ({why}); it is in {source}") from error
        return target


def best_of(trials: Sequence[Trial], epochs: Sequence[Epoch], objective: Objective, judge: Objective) -> Trial | None:
    """The best trial; in a study cut off before any rung was finished, the best of what its epochs showed so far.

    Epochs are compared by `judge`, since they do not show what serving costs.
    """
    so_far = [_as_far_as_it_got(trial, epochs, judge) for trial in trials]
    for candidates, goal in ((trials, objective), (so_far, objective), (so_far, judge)):
        best = next(iter(ranked(candidates, goal)), None)
        if best is not None:
            return best
    return None


def _as_far_as_it_got(trial: Trial, epochs: Sequence[Epoch], objective: Objective) -> Trial:
    mine = [epoch for epoch in epochs if epoch.trial == trial.number]
    if not mine:
        return trial
    last = max(epoch.rung for epoch in mine)
    metrics = best_epoch([epoch for epoch in mine if epoch.rung == last], objective).metrics
    reached = [replace(rung, state=RungState.DONE, metrics=metrics) for rung in trial.rungs if rung.rung == last]
    return replace(trial, rungs=tuple(reached))


def keep_best(folder: Path, best: Trial, card: Mapping[str, Any]) -> None:
    """Puts the best model and its description where the study hands them over.

    What stands there stays as it is until the new files are whole.
    """
    target = folder / "best"
    target.mkdir(parents=True, exist_ok=True)
    files: dict[str, bytes] = {}
    weights = best_weights_file(folder, best.number, best.finished_rungs[-1].rung)
    if weights is not None:
        import torch

        from onefold.training.checkpoint import load_weights

        content = io.BytesIO()  # writing to a file, torch hides a full disk behind an error of its own
        torch.save(load_weights(weights), content)
        files[WEIGHTS] = content.getvalue()
    files[CARD] = (json.dumps(dict(card), indent=2) + "\n").encode()  # the last one: it vouches for the others
    fresh = {target / name: target / f"{name}.new" for name in files}
    try:
        for path, whole in fresh.items():
            whole.write_bytes(files[path.name])
        if kept_card(folder) != card:  # what was kept of a former best must not stand beside this card
            for name in (CARD, WEIGHTS, deploy.DEPLOYMENT, deploy.CARD, deploy.MODEL):
                (target / name).unlink(missing_ok=True)
        for path, whole in fresh.items():
            whole.replace(path)
    finally:
        for whole in fresh.values():
            whole.unlink(missing_ok=True)  # half a file on a full disk helps nobody


def kept_card(folder: Path) -> dict[str, Any]:
    """The description beside the model that a study has handed over; empty where there is none."""
    try:
        found = json.loads((folder / "best" / CARD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
