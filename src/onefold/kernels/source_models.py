"""Models as people have them, opened as ONNX files with inputs and the right answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onefold.device.random_inputs import random_input
from onefold.kernels.kernel_library import digest_of
from onefold.serving import deploy
from onefold.serving.export import check, export, samples_beside
from onefold.serving.external_data import with_embedded_weights
from onefold.vocabulary.errors import InputError, ModelError
from onefold.vocabulary.serving import ServingPoint
from onefold.vocabulary.workload import Workload
from onefold.vocabulary.workload_reference import load

FEWEST, ENOUGH = 32, 64  # inputs to quantise with
MANY = "many.npz"
Given = Any  # a folder, an ONNX file, a workload's file or name, or a torch module


@dataclass(frozen=True)
class SourceModel:
    """A model, ready to be compiled."""

    name: str
    file: Path  # ONNX
    names: tuple[str, ...]  # of the inputs
    inputs: tuple[np.ndarray[Any, Any], ...]  # one batch
    answers: tuple[np.ndarray[Any, Any], ...]
    folder: Path | None = None  # to put the library into
    many: Path | None = None  # an .npz with enough real inputs to quantise with

    @property
    def digest(self) -> str:
        """The same for the same file."""
        return digest_of(self.file)

    def make_folder(self, home: Path) -> None:
        """Makes a deployment folder of it, unless it is in one."""
        from onefold.serving.api import measure

        if self.folder is not None and not (self.folder / deploy.MODEL).is_file():
            measure(self.file, save=self.folder, home=home)


def opened(
    models: Sequence[Given],
    samples: Sequence[Any] | str | Path | None,
    folder: Path,
    save: Path | None,
    batch_size: int = 1,
) -> list[SourceModel]:
    """All of them, with names of their own; those without a folder get one in `save`."""
    if isinstance(samples, (str, Path)) and not Path(samples).is_file():
        raise InputError(f"there are no samples {samples}; give an .npz with an array for each input")
    found: list[SourceModel] = []
    for at, one in enumerate(models):
        place = folder / f"model-{at}"
        place.mkdir()
        file, home, name = _file_of(one, samples, place)
        name = _free(name, {each.name for each in found})
        if home is None and save is not None:
            home = save if len(models) == 1 else save / name
            _check_place(home, file)
        found.append(_with_answers(name, file, home, _many(samples, place), batch_size))
    if save is not None:
        _check_use(save, [one.folder for one in found if one.folder is not None])
    return found


def _file_of(model: Given, samples: Sequence[Any] | str | Path | None, folder: Path) -> tuple[Path, Path | None, str]:
    """The ONNX file, the deployment folder if it is in one, and what to call it."""
    if hasattr(model, "state_dict"):
        if samples is None or isinstance(samples, (str, Path)):
            raise InputError("a torch module needs samples of its inputs: compile(network, samples=[inputs])")
        return _exported(model, samples, folder), None, type(model).__name__.lower()
    path = Path(str(model)).expanduser()
    if path.is_dir():
        deploy.read(path)
        return path / deploy.MODEL, path, path.resolve().name
    if path.suffix == ".onnx":
        if not path.is_file():
            raise InputError(f"there is no model {path}; give an ONNX file, a deployment folder or a workload")
        return with_embedded_weights(path, folder), None, path.stem
    workload = load(str(model))
    inputs = [np.asarray(part[:ENOUGH]) for part in workload.data().train[:-1]]
    _keep(inputs, folder)
    return _exported(_untrained(workload), inputs, folder), None, workload.name


def _untrained(workload: Workload) -> Any:
    """A workload's network with its author's defaults: what it costs does not depend on what it has learned."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same command is to mean the same model
        return workload.build(workload.space.complete({}))


def _exported(network: Any, samples: Sequence[Any], folder: Path) -> Path:
    file = export(network, samples, folder / deploy.MODEL)
    check(network, file)
    return file


def _check_place(folder: Path, file: Path) -> None:
    """Raises InputError where the model cannot be put: better told now than after all tuning."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--save is a folder for the model, but {folder} is a file; give another place")
    there = folder / deploy.MODEL
    if there.is_file() and there.read_bytes() != file.read_bytes():
        raise InputError(f"{folder} holds another model; give another place with --save, or compile {folder} itself")


def _check_use(save: Path, folders: Sequence[Path]) -> None:
    """Raises InputError where nothing would be saved there: a deployment folder gets its library itself."""
    if not any(folder.resolve().is_relative_to(save.resolve()) for folder in folders):
        raise InputError(
            f"--save is for models that are in no deployment folder: {folders[0]} gets its library itself; "
            f"leave --save out, or compile {folders[0] / deploy.MODEL}"
        )


def _many(samples: Sequence[Any] | str | Path | None, folder: Path) -> Path | None:
    """Where enough real inputs are to quantise with: those that were given, or those of the workload."""
    if isinstance(samples, (str, Path)):
        return Path(samples)
    if samples is not None and len(samples[0]) >= FEWEST:
        return _keep([np.asarray(each)[:ENOUGH] for each in samples], folder)
    kept = folder / MANY
    return kept if kept.is_file() else None


def _keep(inputs: Sequence[np.ndarray[Any, Any]], folder: Path) -> Path:
    np.savez(folder / MANY, **{f"input{at}": each for at, each in enumerate(inputs)})  # type: ignore[arg-type]
    return folder / MANY


def _with_answers(name: str, file: Path, folder: Path | None, many: Path | None, batch_size: int) -> SourceModel:
    """One batch, and what onnxruntime answers to it; of exported networks that was compared with PyTorch's."""
    served = deploy.ServedModel(file, ServingPoint(batch_size))
    kept, wanted = samples_beside(file), served.session.get_inputs()
    names = tuple(each.name for each in wanted)
    try:
        if kept.is_file():
            with np.load(kept, allow_pickle=False) as arrays:
                inputs = [np.resize(arrays[each], (batch_size, *arrays[each].shape[1:])) for each in names]
        else:
            inputs = [random_input(each, batch_size) for each in wanted]
        answers = served.session.run(None, dict(zip(names, inputs)))
    except Exception as error:  # numpy and the runtime raise many kinds
        raise ModelError(f"{file} cannot be tried with batches of {batch_size}: {error}") from error
    return SourceModel(name, file, names, tuple(inputs), tuple(answers), folder, many)


def _free(name: str, taken: set[str]) -> str:
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model"
    number, found = 2, plain
    while found in taken:
        found, number = f"{plain}-{number}", number + 1
    return found
