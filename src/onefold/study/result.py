"""The result of a study."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onefold.serving import deploy
from onefold.serving.recommendation import Recommendation
from onefold.training.model_folder import CARD, WEIGHTS
from onefold.training.trial_files import best_weights_file
from onefold.vocabulary.errors import InputError, OnefoldError
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.ranking import front
from onefold.vocabulary.records import Config, Measurement, Metrics, Trial
from onefold.vocabulary.serving import Surface
from onefold.vocabulary.variants import COMPRESSED_FOLDER, Shortlist
from onefold.vocabulary.workload import Workload


@dataclass(frozen=True)
class Result:
    """The winner of a study, its model, all other trials, and the files."""

    study: str
    reason: str  # why the study ended
    best: Trial
    trials: tuple[Trial, ...]
    objective: Objective
    test: Metrics  # metrics of the winner on test data, which no decision has seen; empty without
    folder: Path
    report: Path
    elapsed_s: float
    cost: Measurement = field(default_factory=Measurement.nothing)  # of all training
    workload: Workload | None = None
    surfaces: Mapping[str, Surface] = field(default_factory=dict)  # the serving cost of the winner, by device
    recommendation: Recommendation | None = None  # why this trial, the alternatives, and how to serve it
    shortlist: Shortlist | None = None  # variants of the best trials, if compressed after the study

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name}={value:.4g}" for name, value in self.metrics.items())
        return f"Result(study={self.study!r}, trial={self.best.number}, {metrics}, report={str(self.report)!r})"

    @property
    def config(self) -> Config:
        """Return the winning configuration."""
        return self.best.config

    @property
    def metrics(self) -> Metrics:
        """Return the metrics of the winner on validation data."""
        return self.best.metrics

    @property
    def front(self) -> list[Trial]:
        """Return the Pareto front of the trials."""
        return front(self.trials, self.objective)

    @property
    def is_feasible(self) -> bool:
        """Return whether the winner meets all requirements."""
        return self.objective.violation(self.metrics) == 0

    def model(self) -> Any:
        """Return the trained network in evaluation mode; raise OnefoldError if a function was tuned."""
        if self.workload is None or not (self.folder / "best" / WEIGHTS).exists():
            raise OnefoldError(f"the study {self.study!r} tuned a function: it has a configuration but no model")
        import torch

        network = self.workload.build(self.config)
        weights = torch.load(self.folder / "best" / WEIGHTS, map_location="cpu", weights_only=True)
        network.load_state_dict(weights)
        return network.eval()

    @property
    def compressed(self) -> Path | None:
        """Return the deployment folder of the recommended variant; None if nothing was compressed or none is better."""
        place = self.folder / COMPRESSED_FOLDER
        return place if self.shortlist is not None and place.is_dir() else None

    def save(self, folder: str | Path) -> Path:
        """Copy the model and its card into a folder, and return the folder.

        It holds `weights.pt` and `model.json`; with devices also `model.onnx` and `deployment.json`, which
        `onefold.deploy.load` serves; with `compress="after"` the recommended variant in `compressed/`.
        Raises InputError if the folder cannot be written.
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
            raise InputError(f"cannot save the model in {target} ({why}); it is in {source}") from error
        return target


def keep_best(folder: Path, best: Trial, card: Mapping[str, Any]) -> None:
    """Write the best model and its card into the study's folder; the old files stay until the new ones are complete."""
    target = folder / "best"
    target.mkdir(parents=True, exist_ok=True)
    files: dict[str, bytes] = {}
    weights = best_weights_file(folder, best.number, best.finished_rungs[-1].rung)
    if weights is not None:
        import torch

        from onefold.training.checkpoint import load_weights

        content = io.BytesIO()  # torch.save to a file hides a full disk behind a RuntimeError
        torch.save(load_weights(weights), content)
        files[WEIGHTS] = content.getvalue()
    files[CARD] = (json.dumps(dict(card), indent=2) + "\n").encode()  # last: it vouches for the others
    fresh = {target / name: target / f"{name}.new" for name in files}
    try:
        for path, new in fresh.items():
            new.write_bytes(files[path.name])
        if read_card(folder) != card:  # files of an earlier winner must not stay beside this card
            for name in (CARD, WEIGHTS, deploy.DEPLOYMENT, deploy.CARD, deploy.MODEL):
                (target / name).unlink(missing_ok=True)
        for path, new in fresh.items():
            new.replace(path)
    finally:
        for new in fresh.values():
            new.unlink(missing_ok=True)  # a partial file after an error, such as a full disk


def read_card(folder: Path) -> dict[str, Any]:
    """Return the card of the model that a study has handed over; empty if there is none."""
    try:
        found = json.loads((folder / "best" / CARD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
