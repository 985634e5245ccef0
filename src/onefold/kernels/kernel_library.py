"""The compiled library in a deployment folder and its manifest.

deploy/kernels.so      the compiled model; kernels.tar if another machine links it
deploy/kernels.*.onnx  what onnxruntime computes before and after the library, if TVM compiles only a part of the model
deploy/kernels.json    the manifest: device, latencies of all runtimes, the recommended runtime
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onefold.model_folder import ModelFolder
from onefold.runtimes.forms import digest_of
from onefold.vocabulary.documents import read_json
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.kernels import RuntimeLatency
from onefold.vocabulary.records import to_json
from onefold.vocabulary.typed_json import checked_from_json

LIBRARY, ARCHIVE, MANIFEST, INT8 = "kernels.so", "kernels.tar", "kernels.json", "model.int8.onnx"
BEFORE, AFTER = "kernels.before.onnx", "kernels.after.onnx"
MODEL = "model.onnx"
VERSION = 1
MAX_MANIFEST_BYTES = 16_000_000
TVM, ORT = "tvm", "onnxruntime"
ORT_FORMS = {  # the model file, and whether idle threads spin or sleep
    ORT: (MODEL, "sleeping"),
    f"{ORT} spinning": (MODEL, "spinning"),
    f"{ORT} int8": (INT8, "sleeping"),
    f"{ORT} int8 spinning": (INT8, "spinning"),
}


@dataclass(frozen=True, slots=True)
class PartTensors:
    """The names of the tensors of a model of which a library is only a part."""

    inputs: tuple[str, ...]  # of the model
    taken: tuple[str, ...]  # by the library, in the order of its arguments
    made: tuple[str, ...]  # by the library
    results: tuple[str, ...]  # the outputs of the model


@dataclass(frozen=True, slots=True)
class LibraryManifest:
    """The contents of kernels.json."""

    device: str
    target: str
    threads: int
    batch_size: int
    inputs: Mapping[str, str]  # dtypes by input name
    runtimes: tuple[RuntimeLatency, ...]  # fastest first
    recommended: str
    file: str = LIBRARY  # empty if TVM cannot compile the model
    notes: tuple[str, ...] = field(default=())
    model: str = ""  # digest of the compiled model
    part: PartTensors | None = None  # if the library is only a part of the model
    version: int = VERSION


@dataclass(frozen=True)
class LibraryFiles:
    """The files of a compiled model; None for those that it does not have."""

    library: Path | None
    before: Path | None = None
    after: Path | None = None
    int8: Path | None = None


def write_library(folder: Path, files: LibraryFiles, manifest: LibraryManifest) -> None:
    """Write a library into a new generation of a deployment folder; files of an earlier library are removed."""
    for name in (LIBRARY, ARCHIVE, BEFORE, AFTER, INT8):
        (folder / name).unlink(missing_ok=True)
    names = (manifest.file, BEFORE, AFTER, INT8)
    for source, name in zip((files.library, files.before, files.after, files.int8), names):
        if source is not None:
            shutil.copyfile(source, folder / name)
    (folder / MANIFEST).write_text(json.dumps(to_json(manifest), indent=1) + "\n", encoding="utf-8")


def read_library(folder: ModelFolder) -> LibraryManifest | None:
    """Return the manifest of the library in a folder; None if it has none, or one of a model replaced since.

    Raises ModelError if the manifest cannot be read or names another file than a library.
    """
    path = folder.file(MANIFEST)
    if not path.is_file():
        return None
    try:
        manifest = checked_from_json(LibraryManifest, read_json(path, MAX_MANIFEST_BYTES))
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}; compile the model again") from error
    if manifest.file not in (LIBRARY, ARCHIVE, ""):
        raise ModelError(f"{path} names {manifest.file!r}, but a library is {LIBRARY} or {ARCHIVE}")
    model = folder.file(MODEL)
    is_outdated = manifest.model and model.is_file() and manifest.model != digest_of(model)
    return None if is_outdated else manifest
