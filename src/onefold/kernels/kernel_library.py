"""The library of a compiled model in its deployment folder, and how to serve with it.

deploy/kernels.so      the model, compiled; kernels.tar where another machine links it
deploy/kernels.json    for which device, how fast it was beside other runtimes, and which of them to take
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onefold.kernels.toolchain import tvm
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.kernels import RuntimeLatency
from onefold.vocabulary.records import from_json, to_json
from onefold.vocabulary.serving import ServingPoint

LIBRARY, ARCHIVE, ABOUT, INT8 = "kernels.so", "kernels.tar", "kernels.json", "model.int8.onnx"
MODEL = "model.onnx"  # beside them
VERSION = 1
TVM, ORT = "tvm", "onnxruntime"
ORT_FORMS = {  # the file that it serves, and what its threads do without work
    ORT: (MODEL, "sleeping"),
    f"{ORT} spinning": (MODEL, "spinning"),
    f"{ORT} int8": (INT8, "sleeping"),
    f"{ORT} int8 spinning": (INT8, "spinning"),
}


@dataclass(frozen=True, slots=True)
class LibraryManifest:
    """What the folder says about its kernels."""

    device: str
    target: str
    threads: int
    batch_size: int
    inputs: Mapping[str, str]  # by name: the type of their numbers
    runtimes: tuple[RuntimeLatency, ...]  # fastest first
    recommended: str
    file: str = LIBRARY
    notes: tuple[str, ...] = field(default=())
    model: str = ""  # that was compiled: its digest
    version: int = VERSION


def write_library(folder: Path, library: Path | None, about: LibraryManifest, int8: Path | None = None) -> None:
    """Puts a library into a folder; what was there stays until all of the new is written, and goes then."""
    moved = []
    for source, name in ((library, about.file), (int8, INT8)):
        if source is not None:
            shutil.copyfile(source, folder / f"{name}.new")
            moved.append(name)
    (folder / f"{ABOUT}.new").write_text(json.dumps(to_json(about), indent=1) + "\n", encoding="utf-8")
    for name in (*moved, ABOUT):
        (folder / f"{name}.new").replace(folder / name)
    for name in {LIBRARY, ARCHIVE, INT8} - {about.file, *moved}:  # of a compilation before this one
        (folder / name).unlink(missing_ok=True)


def digest_of(model: Path) -> str:
    """The same for the same file."""
    return hashlib.sha256(model.read_bytes()).hexdigest()[:16]


def read_library(folder: Path) -> LibraryManifest | None:
    """What a folder says about kernels; None where it has none, or those of a model that was there before."""
    path = folder / ABOUT
    if not path.is_file():
        return None
    try:
        found = from_json(LibraryManifest, json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read: {error}; compile the model again") from error
    is_of_another = found.model and (folder / MODEL).is_file() and found.model != digest_of(folder / MODEL)
    return None if is_of_another else found


class CompiledModel:
    """A compiled model: call it with one array per input, the batch first."""

    def __init__(self, folder: Path, about: LibraryManifest, choice: Any = None) -> None:
        self.point = ServingPoint(about.batch_size, about.threads)
        self.choice = choice  # of a scenario: also how long to wait for a batch to fill, and what to expect
        os.environ.setdefault("TVM_NUM_THREADS", str(about.threads))  # before its threads are started
        self.about = about
        found = tvm()
        relax = importlib.import_module("tvm.relax")
        try:
            loaded = found.runtime.load_module(str(folder / about.file))
            self._machine = relax.VirtualMachine(loaded, found.cpu())
        except Exception as error:  # TVM raises many kinds
            raise ModelError(f"{folder / about.file} cannot be loaded: {str(error).strip()}") from error
        self._tensor = found.runtime.tensor

    def __call__(self, *inputs: Any) -> Any:
        """The outputs for any number of samples, so many at a time as the model was compiled for."""
        names, size = list(self.about.inputs), self.about.batch_size
        if len(inputs) != len(names):
            raise ModelError(f"the model takes {len(names)} inputs ({', '.join(names)}), got {len(inputs)}")
        kinds = self.about.inputs.values()
        try:
            arrays = [np.asarray(each).astype(kind, "C", "same_kind") for each, kind in zip(inputs, kinds)]
            count = len(arrays[0])
            if any(len(one) != count for one in arrays):
                raise ValueError(f"the inputs have different numbers of samples: {[len(one) for one in arrays]}")
            parts = [self._answered(arrays, at, size) for at in range(0, max(1, count), size)]
        except Exception as error:  # numpy and TVM raise many kinds
            raise ModelError(f"the model takes {self.about.inputs}, the batch first: {error}") from error
        outputs = [np.concatenate(each)[:count] for each in zip(*parts)]
        return outputs[0] if len(outputs) == 1 else outputs

    def _answered(self, arrays: list[np.ndarray[Any, Any]], at: int, size: int) -> list[np.ndarray[Any, Any]]:
        """The answers of one batch; the last one is filled up."""
        batch = [np.ascontiguousarray(np.resize(one[at : at + size], (size, *one.shape[1:]))) for one in arrays]
        found = self._machine["main"](*(self._tensor(one) for one in batch))
        return [one.numpy() for one in ([found] if hasattr(found, "numpy") else list(found))]
