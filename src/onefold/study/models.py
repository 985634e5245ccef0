"""Models as people have them, opened as ONNX files with inputs and the right answers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onefold import deploy
from onefold.device.inputs import made_up
from onefold.errors import InputError, ModelError
from onefold.inference.export import check, export, samples_beside
from onefold.serving import ServingPoint
from onefold.study.training import whole_config
from onefold.workload import load

FEWEST, ENOUGH = 32, 64  # inputs to quantise with
MANY = "many.npz"
Given = Any  # a folder, an ONNX file, a workload's file or name, or a torch module


@dataclass(frozen=True)
class Opened:
    """A model, ready to be compiled."""

    name: str
    file: Path  # ONNX
    names: tuple[str, ...]  # of the inputs
    inputs: tuple[np.ndarray[Any, Any], ...]  # one sample
    answers: tuple[np.ndarray[Any, Any], ...]
    folder: Path | None = None  # to put the library into
    many: Path | None = None  # an .npz with enough real inputs to quantise with

    @property
    def digest(self) -> str:
        """The same for the same file."""
        return hashlib.sha256(self.file.read_bytes()).hexdigest()[:16]

    def make_folder(self) -> None:
        """Makes a deployment folder of it."""
        from onefold.study.measuring import measure

        measure(self.file, save=self.folder)


def opened(
    models: Sequence[Given], samples: Sequence[Any] | Path | None, folder: Path, save: Path | None
) -> list[Opened]:
    """All of them, with names of their own; those without a folder get one in `save`."""
    found: list[Opened] = []
    for at, one in enumerate(models):
        place = folder / f"model-{at}"
        place.mkdir()
        file, home, name = _file_of(one, samples, place)
        name = _free(name, {each.name for each in found})
        if home is None and save is not None:
            home = save if len(models) == 1 else save / name
        found.append(_with_answers(name, file, home, _many(samples, place)))
    return found


def _file_of(model: Given, samples: Sequence[Any] | Path | None, folder: Path) -> tuple[Path, Path | None, str]:
    """The ONNX file, the deployment folder if it is in one, and what to call it."""
    if hasattr(model, "state_dict"):
        if samples is None or isinstance(samples, (str, Path)):
            raise InputError("a torch module needs samples of its inputs: compile(network, samples=[inputs])")
        file = export(model, samples, folder / deploy.MODEL)
        check(model, file)
        return file, None, type(model).__name__.lower()
    path = Path(str(model)).expanduser()
    if path.is_dir():
        deploy.read(path)
        return path / deploy.MODEL, path, path.resolve().name
    if path.suffix == ".onnx":
        if not path.is_file():
            raise InputError(f"there is no model {path}; give an ONNX file, a deployment folder or a workload")
        return path, None, path.stem
    workload = load(str(model))
    network = workload.build(whole_config(workload.space, {})).eval()
    inputs = [np.asarray(part[:ENOUGH]) for part in workload.data().train[:-1]]
    file = export(network, inputs, folder / deploy.MODEL)
    check(network, file)
    _keep(inputs, folder)
    return file, None, workload.name


def _many(samples: Sequence[Any] | Path | None, folder: Path) -> Path | None:
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


def _with_answers(name: str, file: Path, folder: Path | None, many: Path | None) -> Opened:
    """One sample, and what onnxruntime answers to it; of exported networks that was compared with PyTorch's."""
    served = deploy.ServedModel(file, ServingPoint(1))
    kept = samples_beside(file)
    wanted = served.session.get_inputs()
    try:
        if kept.is_file():
            with np.load(kept, allow_pickle=False) as arrays:
                inputs = [np.ascontiguousarray(arrays[each.name][:1]) for each in wanted]
        else:
            inputs = [made_up(each, 1) for each in wanted]
    except (KeyError, ValueError) as error:
        raise ModelError(f"{file} has no inputs to try it with: {error}") from error
    answers = served.session.run(None, dict(zip((each.name for each in wanted), inputs)))
    return Opened(name, file, tuple(each.name for each in wanted), tuple(inputs), tuple(answers), folder, many)


def _free(name: str, taken: set[str]) -> str:
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model"
    number, found = 2, plain
    while found in taken:
        found, number = f"{plain}-{number}", number + 1
    return found
