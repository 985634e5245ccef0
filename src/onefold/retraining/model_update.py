"""Writing of a retrained model into its folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from torch import nn

from onefold.report.retraining import RetrainingReport
from onefold.serving import deploy
from onefold.serving.export import check, export, samples_beside
from onefold.training.model_folder import CARD, WEIGHTS
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import to_json
from onefold.vocabulary.retraining import RetrainingSummary

PREVIOUS = "previous"  # folder of the model that was replaced
REPORT = "retraining.html"


def write_model(source: Path | None, target: Path, network: nn.Module, summary: RetrainingSummary) -> Path:
    """Write the report, and the new model if it is better, into `target`; return the path of the report.

    A model that is updated in place keeps its previous files in `previous/`.

    Raises:
        InputError: The folder cannot be written.
    """
    is_in_place = source is not None and target.resolve() == source.resolve()
    try:
        target.mkdir(parents=True, exist_ok=True)
        if source is not None and not is_in_place:
            for file in source.iterdir():
                if file.is_file():
                    shutil.copy2(file, target)
        if summary.kept_new:
            _replace_model(target, network, summary, keep_previous=is_in_place)
        return write_report(target, summary)
    except OSError as error:
        raise InputError(f"cannot save the model in {target}: {error.strerror or error}") from error


def write_report(folder: Path, summary: RetrainingSummary) -> Path:
    """Write the report as HTML and as JSON; return the path of the HTML file."""
    path, report = folder / REPORT, RetrainingReport(summary)
    path.write_text(report.as_html(), encoding="utf-8")
    path.with_suffix(".json").write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    return path


def _replace_model(folder: Path, network: nn.Module, summary: RetrainingSummary, *, keep_previous: bool) -> None:
    """Replace the model's files; each old file stays until its new one is complete."""
    if keep_previous:
        (folder / PREVIOUS).mkdir(exist_ok=True)
        for name in (WEIGHTS, CARD, deploy.MODEL, deploy.DEPLOYMENT):
            if (folder / name).is_file():
                shutil.copy2(folder / name, folder / PREVIOUS)
    new_weights = folder / f"{WEIGHTS}.new"
    try:
        torch.save({name: value.cpu() for name, value in network.state_dict().items()}, new_weights)
        if (folder / deploy.MODEL).is_file():
            _export(folder, network)
        for name in (CARD, deploy.DEPLOYMENT):
            if (folder / name).is_file():
                _add_summary(folder / name, summary)
        new_weights.replace(folder / WEIGHTS)
    finally:
        new_weights.unlink(missing_ok=True)


def _add_summary(file: Path, summary: RetrainingSummary) -> None:
    """Add the outcome of the retraining to a model card or a deployment."""
    content = json.loads(file.read_text(encoding="utf-8"))
    section = content.setdefault("model", {}) if file.name == deploy.DEPLOYMENT else content
    section["retrained"] = {
        "metric": summary.metric,
        "before": summary.before,
        "after": summary.after,
        "plan": to_json(summary.chosen),
    }
    new_file = file.with_name(f"{file.name}.new")
    new_file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    new_file.replace(file)


def _export(folder: Path, network: nn.Module) -> None:
    """Export the network to ONNX again, and check its outputs against torch."""
    with np.load(samples_beside(folder / deploy.MODEL), allow_pickle=False) as samples:
        inputs = [samples[name] for name in samples.files]
    new_model = folder / "new.onnx"
    try:
        export(network, inputs, new_model)
        check(network, new_model)
        new_model.replace(folder / deploy.MODEL)
    finally:
        new_model.unlink(missing_ok=True)
        samples_beside(new_model).unlink(missing_ok=True)
