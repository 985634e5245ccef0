"""Convert a model into the formats of several runtimes, each in a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onefold.agent.forms import Form, form_from_json
from onefold.processes import JSON, Worker, describe_exit
from onefold.runtimes.forms import read_about, read_forms, write_forms
from onefold.runtimes.output_comparison import AGREEMENT
from onefold.runtimes.registry import find_runtime, require_installed, version_of
from onefold.vocabulary.errors import MissingExtra, ModelError
from onefold.vocabulary.serving import ONNXRUNTIME

CONVERSION_TIMEOUT_S = 900.0  # large models take ExecuTorch minutes
_CONVERTING = threading.Lock()  # a conversion uses all cores


@dataclass(frozen=True, slots=True)
class Conversion:
    """The form of a model for one runtime, or the reason why there is none; ONNX Runtime reads the model itself."""

    runtime: str
    version: str = ""
    form: Form | None = None
    error: float | None = None  # largest difference from the model's outputs, relative to the largest of them
    agreement: float | None = None  # with the model's outputs on its samples
    size_bytes: int | None = None
    reason: str = ""


def convert_model(
    model: Path, runtimes: Sequence[str], on_progress: Callable[[str], None] = lambda _: None
) -> list[Conversion]:
    """Convert a model for these runtimes; the files lie beside it, with a list of them.

    Args:
        model: An ONNX file with its samples beside it, or a traced program of PyTorch with its description.
        runtimes: Names of runtimes; the model itself serves ONNX Runtime.
        on_progress: Called with the name of each runtime before its conversion.

    Returns:
        A conversion for each runtime, in their order: one that fails has its reason.
    """
    conversions = []
    for name in runtimes:
        on_progress(name)
        try:
            require_installed(find_runtime(name))
            is_done = name == ONNXRUNTIME and model.suffix == ".onnx"
            conversions.append(_unconverted(model) if is_done else _convert(model, name))
        except (MissingExtra, ModelError) as error:
            conversions.append(Conversion(name, reason=str(error)))
    forms = {conversion.runtime: conversion.form for conversion in conversions if conversion.form is not None}
    known = read_forms(model) | forms
    if about := {key: value for key, value in read_about(model).items() if key == "architecture"}:
        write_forms(model, known.values(), about)
    elif known:
        write_forms(model, known.values())
    return conversions


def _unconverted(model: Path) -> Conversion:
    return Conversion(ONNXRUNTIME, version_of(ONNXRUNTIME), error=0.0, agreement=1.0, size_bytes=model.stat().st_size)


def _convert(model: Path, runtime: str) -> Conversion:
    """Convert a model in a process, which may crash. Raises ModelError with the reason if it fails."""
    with _CONVERTING:
        worker = Worker("onefold.runtimes.conversion_worker", encoding=JSON, silent=True)
        try:
            answer = worker.ask({"runtime": runtime, "model": str(model)}, CONVERSION_TIMEOUT_S)
        except TimeoutError:
            raise ModelError(f"the conversion took more than {CONVERSION_TIMEOUT_S:g} s") from None
        except (EOFError, OSError):
            raise ModelError(f"the process that converts {describe_exit(worker.exit_code())}") from None
        finally:
            worker.kill()
    if "reason" in answer:
        raise ModelError(str(answer["reason"]))
    form = form_from_json(answer["form"])
    size_bytes = sum((model.parent / name).stat().st_size for name in form.files)
    return Conversion(runtime, version_of(runtime), form, answer["error"], answer[AGREEMENT], size_bytes)
