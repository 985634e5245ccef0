"""Writing of a retrained model into its folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import nn

from onefold.arrays.files import read_arrays
from onefold.model_folder import CARD, PREVIOUS, REFERENCE, ModelFolder, find_weights, new_generation, sync_folder
from onefold.report.retraining import RetrainingReport
from onefold.retraining.allocator import release_free_memory
from onefold.retraining.samples import NewData, Samples
from onefold.serving.deployment_files import CARD as DEPLOYMENT_CARD
from onefold.serving.deployment_files import DEPLOYMENT, FORM_FILES, MODEL, PROGRAM, model_in
from onefold.serving.export import SAMPLES, TOLERANCE, check, difference, export, samples_beside
from onefold.serving.program_export import export_program
from onefold.serving.weight_exchange import WeightExchange
from onefold.training.trained_model import HEAD
from onefold.training.weights import write_weights
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import to_json
from onefold.vocabulary.retraining import GrownClasses, RetrainingSummary
from onefold.vocabulary.typed_json import checked_from_json

REPORT = "retraining.html"
DERIVED = (
    "kernels.so", "kernels.tar", "kernels.json", "kernels.html", "model.int8.onnx", "model.packed", *FORM_FILES,
)  # fmt: skip


def write_model(
    source: ModelFolder | None,
    target: Path,
    network: nn.Module,
    data: NewData,
    summary: RetrainingSummary,
    home: Path,
    completed: Callable[[RetrainingSummary], RetrainingSummary],
    exchange: WeightExchange | None = None,
) -> tuple[Path, RetrainingSummary]:
    """Write the new model, if it is better, and the report into `target`.

    A model that is updated in place keeps its previous files in `previous/`.

    Args:
        source: The folder that the model was read from.
        target: The folder to write.
        network: The network with its new weights.
        data: The new data, which has samples of new classes for the reference set.
        summary: The outcome.
        home: The folder of studies that records the new folder.
        completed: Called when the model is written, with the summary of what was measured until then.
        exchange: Gives the ONNX file in the source the new weights; without it the network is exported again.

    Returns:
        The path of the report, and the completed summary.

    Raises:
        InputError: The folder cannot be written.
    """
    is_in_place = source is not None and target.resolve() == source.path.resolve()
    record = source is None or source.is_trusted
    try:
        omitted = {PREVIOUS} if is_in_place and summary.kept_new else set()
        manifest = None if source is None else source.manifest
        with new_generation(target, home=home, update=is_in_place, record=record, opened=manifest, omit=omitted) as new:
            if source is not None and not is_in_place:
                for file in source.path.iterdir():
                    if file.is_file() and not file.is_symlink():
                        shutil.copy2(file, new)
                if manifest is not None:
                    manifest.check(new, source.path)
            if summary.kept_new:
                _replace_model(new, network, summary, exchange, keep_previous=is_in_place)
                if summary.grown is not None:
                    _extend_reference(new / REFERENCE, data.validation, summary.grown)
            sync_folder(new)  # so that the time to write is part of what is reported
            summary = completed(summary)
            report = target / write_report(new, summary).name
        return report, summary
    except OSError as error:
        raise InputError(f"cannot save the model in {target}: {error.strerror or error}") from error


def write_report(folder: Path, summary: RetrainingSummary) -> Path:
    """Write the report as HTML and as JSON; return the path of the HTML file."""
    path, report = folder / REPORT, RetrainingReport(summary)
    path.write_text(report.as_html(), encoding="utf-8")
    path.with_suffix(".json").write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    return path


def _replace_model(
    folder: Path,
    network: nn.Module,
    summary: RetrainingSummary,
    exchange: WeightExchange | None,
    *,
    keep_previous: bool,
) -> None:
    """Replace the files of the model in a new generation of its folder."""
    if keep_previous:
        previous = folder / PREVIOUS
        shutil.rmtree(previous, ignore_errors=True)
        previous.mkdir()
        for file in [entry for entry in folder.iterdir() if entry.is_file()]:
            if file == find_weights(folder):
                file.rename(previous / file.name)  # it is about to be written again
            else:
                shutil.copy2(file, previous)
    is_program = model_in(folder).name == PROGRAM
    for name in DERIVED:  # from the weights that are replaced
        (folder / name).unlink(missing_ok=True)
    write_weights(folder, network.state_dict())
    if (folder / MODEL).is_file():
        _write_onnx(folder, network, exchange)
    elif is_program:
        samples = list(read_arrays(samples_beside(folder / MODEL), rows=SAMPLES).values())
        export_program(network, samples, folder / PROGRAM, "it could not be exported before it was retrained")
    for name in (CARD, DEPLOYMENT):
        if (folder / name).is_file():
            _add_summary(folder / name, summary)
    if (folder / DEPLOYMENT_CARD).is_file() and (folder / DEPLOYMENT).is_file():
        _rewrite_card(folder)


def _rewrite_card(folder: Path) -> None:
    from onefold.serving.deployment import Deployment, upgrade
    from onefold.serving.model_card import model_card

    content = json.loads((folder / DEPLOYMENT).read_text(encoding="utf-8"))
    deployment = checked_from_json(Deployment, upgrade(content))
    (folder / DEPLOYMENT_CARD).write_text(model_card(deployment), encoding="utf-8")


def _add_summary(file: Path, summary: RetrainingSummary) -> None:
    """Add the outcome of the retraining to a model card or a deployment."""
    content = json.loads(file.read_text(encoding="utf-8"))
    section = content.setdefault("model", {}) if file.name == DEPLOYMENT else content
    section["retrained"] = {
        "metric": summary.metric,
        "before": summary.before,
        "after": summary.after,
        "plan": to_json(summary.chosen),
    }
    if summary.grown is not None:  # the workload builds the network without the new classes
        section[HEAD] = {"module": summary.grown.module, "classes": summary.grown.classes}
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _extend_reference(file: Path, fresh: Samples, grown: GrownClasses) -> None:
    """Add samples of new classes to the reference set, about as many of each as it has of an old one."""
    if not file.is_file():
        return
    arrays = read_arrays(file)
    *inputs, targets = (name for name in sorted(arrays))  # inputs, inputs0, …, targets
    per_class = max(2, len(arrays[targets]) // grown.before)
    labels = np.concatenate(list(fresh.targets()))
    if labels.ndim != 1 or len(labels) != len(fresh):  # no class per sample, or rows that were left out
        return
    chosen = [np.flatnonzero(labels == label)[:per_class] for label in range(grown.before, grown.classes)]
    *added, added_targets = fresh.batch(np.concatenate(chosen))
    for name, values in zip([*inputs, targets], [*added, added_targets]):
        whole = values.float() if values.is_floating_point() else values
        arrays[name] = np.concatenate([arrays[name], whole.cpu().numpy().astype(arrays[name].dtype)])
    np.savez(file, **arrays)  # type: ignore[arg-type]


def _write_onnx(folder: Path, network: nn.Module, exchange: WeightExchange | None) -> None:
    """Give the ONNX file the weights of the network, and check its outputs against torch."""
    if exchange is not None and exchange.fits(network):
        release_free_memory()
        (folder / MODEL).unlink()
        exchange.write(folder / MODEL)
        if difference(network, folder / MODEL) <= TOLERANCE:
            return
    inputs = list(read_arrays(samples_beside(folder / MODEL), rows=SAMPLES).values())
    release_free_memory()
    export(network, inputs, folder / MODEL)
    release_free_memory()
    check(network, folder / MODEL)
