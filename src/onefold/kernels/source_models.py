"""Loads the models to compile: each becomes an ONNX file with a batch of inputs and its reference outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from onefold.agent.random_inputs import random_input
from onefold.arrays.files import check_samples, read_arrays
from onefold.model_folder import Manifest, check_target, open_folder
from onefold.runtimes.forms import digest_of
from onefold.serving import deploy
from onefold.serving.export import check, export, samples_beside
from onefold.serving.external_data import with_embedded_weights
from onefold.serving.tuner import check_batch_size
from onefold.vocabulary.errors import DatasetError, InputError, ModelError
from onefold.vocabulary.serving import ServingPoint
from onefold.vocabulary.workload import Workload
from onefold.vocabulary.workload_reference import load

if TYPE_CHECKING:
    from torch import nn

MIN_CALIBRATION, MAX_CALIBRATION = 32, 64  # samples to quantize with
CALIBRATION = "calibration.npz"
ModelLike: TypeAlias = "str | Path | nn.Module"  # a folder, an ONNX file, a workload's file or name, or a module
Samples: TypeAlias = Sequence[Any] | str | Path


@dataclass(frozen=True)
class SourceModel:
    """A model, ready to be compiled."""

    name: str
    file: Path  # ONNX
    input_names: tuple[str, ...]
    inputs: tuple[np.ndarray[Any, Any], ...]  # one batch
    outputs: tuple[np.ndarray[Any, Any], ...]  # of onnxruntime, for that batch
    folder: Path | None = None  # deployment folder to write the library into
    calibration: Path | None = None  # an .npz with enough real samples to quantize with
    is_trusted: bool = True  # whether the other files of its deployment folder are
    manifest: Manifest | None = None  # of its deployment folder when it was opened
    origin: str = ""  # what the caller gave, for messages

    @property
    def batch_size(self) -> int:
        """Return the number of samples in `inputs`."""
        return len(self.inputs[0]) if self.inputs and self.inputs[0].ndim else 1

    @property
    def digest(self) -> str:
        """Return a digest of the ONNX file."""
        return digest_of(self.file)

    def create_folder(self, home: Path) -> None:
        """Create its deployment folder, unless there is one."""
        from onefold.serving.api import measure

        if self.folder is not None and not (self.folder / deploy.MODEL).is_file():
            measure(self.file, save=self.folder, home=home)


def load_models(
    models: Sequence[ModelLike],
    samples: Samples | None,
    folder: Path,
    save: Path | None,
    batch_size: int = 1,
    *,
    trust: bool = False,
    home: Path | None = None,
) -> list[SourceModel]:
    """Return the models with distinct names.

    Args:
        models: Deployment folders, ONNX files, workloads or torch modules.
        samples: Samples of the inputs, or the path of an .npz with them.
        folder: For temporary files.
        save: Where models without a deployment folder get one; None leaves them without.
        batch_size: Number of samples in `inputs`.
        trust: Whether deployment folders that this home did not write are trusted.
        home: Folder of studies.

    Raises:
        InputError: A model or the samples do not exist, or `save` cannot be used.
        ModelError: A model cannot be exported or run.
    """
    if isinstance(samples, (str, Path)) and not Path(samples).is_file():
        raise InputError(f"no such samples: {samples}; expected an .npz file with an array for each input")
    if isinstance(samples, (str, Path)):
        check_samples(samples)  # before tuning, since they are read after it
    loaded: list[SourceModel] = []
    for at, model in enumerate(models):
        model_folder = folder / f"model-{at}"
        model_folder.mkdir()
        file, deployment, name = _onnx_file(model, samples, model_folder)
        name = _unique_name(name, {source.name for source in loaded})
        origin = str(model) if isinstance(model, (str, Path)) else f"the {type(model).__name__} module"
        if deployment is None and save is not None:
            deployment = save if len(models) == 1 else save / name
            _check_save(deployment, file)
            check_batch_size(file, origin)
        source = _with_outputs(name, file, origin, deployment, _calibration(samples, model_folder), batch_size)
        if deployment is not None and deployment.is_dir():
            opened = open_folder(deployment, trust=trust, home=home)
            source = replace(source, is_trusted=opened.is_trusted, manifest=opened.manifest)
        loaded.append(source)
    if save is not None:
        _check_save_is_used(save, [source.folder for source in loaded if source.folder is not None])
    return loaded


def _onnx_file(model: ModelLike, samples: Samples | None, folder: Path) -> tuple[Path, Path | None, str]:
    """Return the ONNX file of a model, its deployment folder if it has one, and its name."""
    if not isinstance(model, (str, Path)):
        if samples is None or isinstance(samples, (str, Path)):
            raise InputError("a torch module needs samples of its inputs: compile(network, samples=[inputs])")
        return _exported(model, samples, folder), None, type(model).__name__.lower()
    path = Path(str(model)).expanduser()
    if path.is_dir():
        deploy.read(path)
        return open_folder(path).file(deploy.MODEL), path, path.resolve().name
    if path.suffix == ".onnx":
        if not path.is_file():
            raise InputError(f"no such model: {path}; expected an ONNX file, a deployment folder or a workload")
        return with_embedded_weights(path, folder), None, path.stem
    workload = load(str(model))
    inputs = [np.asarray(part[:MAX_CALIBRATION]) for part in workload.data().train[:-1]]
    _save_calibration(inputs, folder)
    return _exported(_untrained(workload), inputs, folder), None, workload.name


def _untrained(workload: Workload) -> Any:
    """Return the workload's network with its default hyperparameters: its latency does not depend on the weights."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same command compiles the same model
        return workload.build(workload.space.complete({}))


def _exported(network: Any, samples: Sequence[Any], folder: Path) -> Path:
    file = export(network, samples, folder / deploy.MODEL)
    check(network, file)
    return file


def _check_save(folder: Path, file: Path) -> None:
    """Raise InputError if the model cannot be written there: better now than after tuning."""
    check_target(folder, "save", is_replaced=False)
    existing = folder / deploy.MODEL
    if existing.is_file() and existing.read_bytes() != file.read_bytes():
        raise InputError(f"{folder} holds another model; save to another path, or compile {folder} itself")


def _check_save_is_used(save: Path, folders: Sequence[Path]) -> None:
    """Raise InputError if all models have deployment folders, so that nothing would be written to `save`."""
    if not any(folder.resolve().is_relative_to(save.resolve()) for folder in folders):
        raise InputError(
            f"save is for models without a deployment folder, but the library is written into {folders[0]}; "
            f"leave save out, or compile {folders[0] / deploy.MODEL}"
        )


def _calibration(samples: Samples | None, folder: Path) -> Path | None:
    """Return an .npz with enough real samples to quantize with: the given ones or those of the workload."""
    if isinstance(samples, (str, Path)):
        return Path(samples)
    if samples is not None and len(samples[0]) >= MIN_CALIBRATION:
        return _save_calibration([np.asarray(sample)[:MAX_CALIBRATION] for sample in samples], folder)
    saved = folder / CALIBRATION
    return saved if saved.is_file() else None


def _save_calibration(inputs: Sequence[np.ndarray[Any, Any]], folder: Path) -> Path:
    arrays = {f"input{at}": array for at, array in enumerate(inputs)}
    np.savez(folder / CALIBRATION, **arrays)  # type: ignore[arg-type]
    return folder / CALIBRATION


def _with_outputs(
    name: str, file: Path, origin: str, folder: Path | None, calibration: Path | None, batch_size: int
) -> SourceModel:
    """Return the model with one batch and onnxruntime's outputs, which were compared with PyTorch's on export."""
    try:
        served = deploy.ServedModel(file, ServingPoint(batch_size))
    except ModelError as error:
        raise ModelError(str(error).replace(str(file), origin)) from error
    samples, arguments = samples_beside(file), served.model.inputs
    names = tuple(argument.name for argument in arguments)
    try:
        if samples.is_file():
            arrays = read_arrays(samples, names, rows=batch_size)
            inputs = [np.resize(array, (batch_size, *array.shape[1:])) for array in arrays.values()]
        else:
            inputs = [random_input(argument, batch_size) for argument in arguments]
        outputs = served.model.run(inputs)
    except DatasetError:
        raise
    except Exception as error:  # numpy and onnxruntime raise many types
        raise ModelError(f"{origin} cannot be run with a batch size of {batch_size}: {error}") from error
    return SourceModel(name, file, names, tuple(inputs), tuple(outputs), folder, calibration, origin=origin)


def _unique_name(name: str, taken: set[str]) -> str:
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model"
    number, unique = 2, plain
    while unique in taken:
        unique, number = f"{plain}-{number}", number + 1
    return unique
