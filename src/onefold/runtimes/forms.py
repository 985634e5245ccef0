"""The file beside a model that lists its forms for other runtimes: `model.runtimes.json` for `model.onnx`."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onefold.agent.forms import Form, form_from_json, form_to_json
from onefold.vocabulary.documents import read_json
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ONNXRUNTIME

SUFFIX = ".runtimes.json"
VERSION = 1
MAX_FORMS_BYTES = 1_000_000


def forms_beside(model: Path) -> Path:
    """Return the path of the list of a model's forms."""
    return model.with_suffix(SUFFIX)


def digest_of(model: Path) -> str:
    """Return a digest of a file's content."""
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def write_forms(model: Path, forms: Iterable[Form], about: Mapping[str, Any] | None = None) -> None:
    """Write the list of a model's forms, with what is known about it if it is no ONNX file."""
    content = {
        "version": VERSION,
        "model": digest_of(model),
        "forms": [form_to_json(form) for form in forms],
        **(about or {}),
    }
    forms_beside(model).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_forms(model: Path) -> dict[str, Form]:
    """Return the forms of a model by runtime; none if the model was replaced since they were written.

    Raises ModelError if the list cannot be read.
    """
    content = _read(model)
    if not content or not model.is_file() or content.get("model") != digest_of(model):
        return {}
    try:
        forms = [form_from_json(form) for form in content["forms"]]
        for name in (name for form in forms for name in form.files):
            if not name.startswith(f"{model.stem}.") or Path(name).name != name:
                raise ValueError(f"{name!r} is not a file beside the model")
    except (ValueError, LookupError, TypeError) as error:
        raise ModelError(f"{forms_beside(model)} cannot be read: {error}; measure the model again") from error
    return {form.runtime: form for form in forms}


def read_about(model: Path) -> Mapping[str, Any]:
    """Return what the list of its forms says about a model that is no ONNX file."""
    return _read(model)


def form_of(model: Path, runtime: str) -> Form | None:
    """Return the form of a model for a runtime; None for ONNX Runtime, which reads the model itself.

    Raises ModelError if there is none.
    """
    if runtime == ONNXRUNTIME:
        return None
    forms = read_forms(model)
    if runtime not in forms:
        raise ModelError(f"{model} has no form for {runtime}; measure it with this runtime to convert it")
    return forms[runtime]


def copy_forms(model: Path, target: Path) -> None:
    """Copy the forms of a model to lie beside `target`, a copy of the model with another name or folder."""
    forms = []
    for form in read_forms(model).values():
        names = [target.stem + name.removeprefix(model.stem) for name in form.files]
        for name, new in zip(form.files, names, strict=True):
            if model.with_name(name).resolve() != target.with_name(new).resolve():
                shutil.copyfile(model.with_name(name), target.with_name(new))
        forms.append(replace(form, files=tuple(names)))
    if forms:
        about = {key: value for key, value in read_about(model).items() if key == "architecture"}
        write_forms(target, forms, about)


def _read(model: Path) -> Mapping[str, Any]:
    path = forms_beside(model)
    if not path.is_file():
        return {}
    try:
        content = read_json(path, MAX_FORMS_BYTES)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}; measure the model again") from error
    return content
