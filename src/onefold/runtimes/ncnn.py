"""ncnn: a runtime for phones and boards with ARM processors; pnnx converts models for it."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onefold.agent.forms import Form
from onefold.agent.loaded_model import LoadedModel
from onefold.agent.loading import open_model
from onefold.processes import scratch_folder
from onefold.runtimes.runtime import Source
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint

_TYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "int64": "i64", "int32": "i32", "int16": "i16"}
_TYPES |= {"int8": "i8", "uint8": "u8", "bool": "bool"}


class NcnnRuntime:
    """Converts ONNX files to the networks of ncnn, which compute one sample at a time."""

    name, extra, packages, suffixes = "ncnn", "ncnn", ("ncnn", "pnnx"), (".ncnn.param", ".ncnn.bin")

    def convert(self, source: Source) -> Form:
        """Write the structure and the weights of a network."""
        if not source.is_onnx:
            raise ModelError("pnnx converts ONNX files, and the network cannot be exported to ONNX")
        program = str(importlib.import_module("pnnx").EXEC_PATH)
        shapes = ",".join(
            f"[{','.join(map(str, (1, *array.shape[1:])))}]{_type(array.dtype.name)}" for array in source.samples
        )
        files = [source.model.with_suffix(suffix) for suffix in self.suffixes]
        with scratch_folder() as folder:
            shutil.copyfile(source.model, folder / "model.onnx")
            command = [program, "model.onnx", f"inputshape={shapes}", "fp16=0"]
            ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, errors="replace")
            made = [folder / f"model{suffix}" for suffix in self.suffixes]
            if ended.returncode or not all(file.is_file() for file in made):
                raise ModelError(f"pnnx cannot convert the model: {_last_line(ended.stdout + ended.stderr)}")
            unknown = _unknown_layers(made[0], importlib.import_module("ncnn"))
            if unknown:
                raise ModelError(f"ncnn has no layer for {', '.join(unknown)}")
            for written, file in zip(made, files, strict=True):
                shutil.copyfile(written, file)
        return Form(self.name, tuple(file.name for file in files), source.inputs, source.outputs, 1)

    def open(self, files: Sequence[Path], point: ServingPoint, form: Form) -> LoadedModel:
        """Return the network."""
        return open_model(files, point, form)


def _type(name: str) -> str:
    if name not in _TYPES:
        raise ModelError(f"pnnx has no inputs of type {name}")
    return _TYPES[name]


def _unknown_layers(structure: Path, ncnn: Any) -> list[str]:
    """Return the operators that pnnx has left as they were, since ncnn has no such layer."""
    kinds = {line.split()[0] for line in structure.read_text(encoding="utf-8").splitlines()[2:] if line.strip()}
    return sorted(kind for kind in kinds if ncnn.layer_to_index(kind) < 0)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it gave no reason"
