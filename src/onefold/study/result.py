"""The result of a study."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onefold.model_folder import CARD, PROFILE, REFERENCE, find_weights, new_generation, saving
from onefold.serving import deploy
from onefold.serving.deployment_files import DEPLOYMENT, MODEL
from onefold.serving.export import samples_beside
from onefold.serving.recommendation import Recommendation
from onefold.training.trial_files import best_weights_file, fork_file
from onefold.vocabulary.errors import InputError, ModelError, OnefoldError
from onefold.vocabulary.forks import fork_of
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Config, Measurement, Metrics, Trial
from onefold.vocabulary.serving import Surface, without_serving
from onefold.vocabulary.variants import COMPRESSED_FOLDER, COMPRESSION, Shortlist
from onefold.vocabulary.workload import Workload


@dataclass(frozen=True)
class Result:
    """The winner of a study, its model, all other trials, and the files."""

    study: str
    reason: str  # why the study ended
    best: Trial  # with the metrics of the model handed over, whose serving costs were measured again
    trials: tuple[Trial, ...]
    ranking: tuple[Trial, ...]  # those with a result, best first; before any finished rung, by their epochs so far
    front: list[Trial]  # the Pareto front, by number
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
    def is_feasible(self) -> bool:
        """Return whether the winner meets all requirements."""
        return self.objective.violation(self.metrics) == 0

    def model(self) -> Any:
        """Return the trained network in evaluation mode; raise OnefoldError if a function was tuned."""
        best = self.folder / "best"
        if fork_of(self.config) is not None:
            raise OnefoldError(f"the model is compressed, and no PyTorch network; serve {best / MODEL} instead")
        if self.workload is None or not find_weights(best).exists():
            raise OnefoldError(f"the study {self.study!r} tuned a function: it has a configuration but no model")
        from onefold.training.weights import read_weights  # imports torch

        network = self.workload.build(self.config)
        network.load_state_dict(read_weights(best))
        return network.eval()

    @property
    def compressed(self) -> Path | None:
        """Return the deployment folder of the recommended variant; None if nothing was compressed or none is better."""
        folder = self.folder / COMPRESSED_FOLDER
        return folder if self.shortlist is not None and folder.is_dir() else None

    def save(self, folder: str | Path) -> Path:
        """Copy the model and its card into a folder, and return the folder.

        It holds `weights.safetensors` and `model.json`; with devices also `model.onnx` and `deployment.json`, which
        `onefold.deploy.load` serves; with `compress="after"` the recommended variant in `compressed/`. A model that is
        there already is replaced as a whole. Raises InputError if the folder cannot be written.
        """
        return copy_best(self.folder, Path(folder), self.compressed)


def copy_best(study: Path, target: Path, compressed: Path | None, *, for_card: Mapping[str, Any] | None = None) -> Path:
    """Copy the model that a study has handed over, and its recommended variant if there is one, into a folder.

    Its card has `for_card` too. Raises InputError if the folder cannot be written.
    """
    source = study / "best"
    try:
        with saving(target, f"; it is in {source}"), new_generation(target, home=study.parent.parent) as new:
            shutil.copytree(source, new, dirs_exist_ok=True)
            if for_card:
                _extend_card(study, new, for_card)
            if compressed is not None:
                shutil.copytree(compressed, new / compressed.name)
    except ModelError as error:
        raise InputError(f"cannot save the model in {target} ({error}); it is in {source}") from error
    return target


def _extend_card(study: Path, new: Path, for_card: Mapping[str, Any]) -> None:
    card = {**read_card(study), **for_card}
    write_card(new, card)
    if (new / DEPLOYMENT).is_file():
        deploy.write_files(new, new / MODEL, replace(deploy.read(study / "best"), model=card))


def keep_best(folder: Path, best: Trial, card: Mapping[str, Any], home: Path) -> None:
    """Write the best model and its card into the study's folder, in place of an earlier one."""
    with new_generation(folder / "best", home=home, update=is_same_model(read_card(folder), card)) as new:
        write_files(folder, new, best, card, shared=(REFERENCE, PROFILE))


def write_files(study: Path, new: Path, trial: Trial, card: Mapping[str, Any], *, shared: Sequence[str]) -> None:
    """Write the model of a trial into a folder: weights, or the file of a fork; its card, and the `shared` files."""
    rung = trial.finished_rungs[-1].rung
    weights = best_weights_file(study, trial.number, rung)
    if fork_of(trial.config) is not None:
        from onefold.compression.api import write_packed

        model = fork_file(study, trial.number, rung)
        shutil.copyfile(model, new / MODEL)
        shutil.copyfile(samples_beside(model), samples_beside(new / MODEL))
        write_packed(new)
    elif weights is not None:
        from onefold.training.checkpoint import load_weights
        from onefold.training.weights import write_weights

        write_weights(new, load_weights(weights))
    for name in shared:
        if (study / name).is_file():
            shutil.copy2(study / name, new)
    write_card(new, card)


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write the card of a model into its folder."""
    (folder / CARD).write_text(json.dumps(dict(card), indent=2) + "\n", encoding="utf-8")


def is_same_model(card: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two cards are those of one model; its serving costs may have been measured again.

    If one of them is about the compressed file of the model, its metrics are not those of the training.
    """
    of_file = ("variant", COMPRESSION, "metrics", "test") if COMPRESSION in (*card, *other) else ()
    first, second = (
        {**each, "metrics": without_serving(each.get("metrics") or {}), **dict.fromkeys(of_file)}
        for each in (card, other)
    )
    return first == second


def read_card(folder: Path) -> dict[str, Any]:
    """Return the card of the model that a study has handed over; empty if there is none."""
    try:
        card = json.loads((folder / "best" / CARD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return card if isinstance(card, dict) else {}
