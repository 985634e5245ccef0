"""The process of a conversion: `python -m onefold.runtimes.conversion_worker FD` converts one model and answers.

    in    {"runtime": name, "model": path}
    out   {"form": {…}, "error": number} or {"reason": "…"}

Converters are native code that uses gigabytes, prints and may crash: the process ends with them.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from onefold.agent.forms import form_to_json
from onefold.agent.loaded_model import Array, run_batch
from onefold.processes import JSON, Channel, connect_to_parent
from onefold.runtimes.registry import find_runtime
from onefold.runtimes.runtime import Source, files_of
from onefold.runtimes.source_models import open_source
from onefold.vocabulary.error_text import cut, message_of, type_name
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint

TOLERANCE = 1e-3  # of the outputs, relative to the largest; a quantized model is judged by its accuracy instead
MAX_REASON = 500


def convert(runtime: str, model: Path) -> dict[str, Any]:
    """Convert a model and compare the outputs. Raises ModelError if that fails or if they differ."""
    source, chosen = open_source(model), find_runtime(runtime)
    form = chosen.convert(source)
    try:
        loaded = chosen.open(files_of(form, model.parent), ServingPoint(runtime=runtime), form)
        outputs = run_batch(loaded, source.samples)
    except Exception as error:  # runtimes raise many types
        raise ModelError(f"the converted model cannot be run: {error}") from error
    error_found = largest_difference(outputs, source)
    if not source.is_quantized and not error_found <= TOLERANCE:
        raise ModelError(f"the outputs of the converted model differ by {error_found:.2g} of the largest output")
    return {"form": form_to_json(form), "error": error_found}


def largest_difference(outputs: list[Array], source: Source) -> float:
    """Return the largest difference from the expected outputs, relative to the largest; infinity for other shapes."""
    if [output.shape for output in outputs] != [expected.shape for expected in source.expected]:
        return float("inf")
    return max(_difference(output, expected) for output, expected in zip(outputs, source.expected))


def _difference(output: Array, expected: Array) -> float:
    if not np.array_equal(np.isnan(output), np.isnan(expected)):
        return float("inf")
    exact, wanted = output.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):  # equal infinities have no difference
        largest = np.nanmax(np.abs(wanted), initial=0.0) + 1e-12
        return float(np.nanmax(np.abs(exact - wanted), initial=0.0) / largest)


def serve(channel: Channel) -> None:
    """Answer one request."""
    message = channel.receive()
    try:
        channel.send(convert(message["runtime"], Path(message["model"])))
    except Exception as error:  # noqa: BLE001 - reported to the parent
        reason = " ".join(message_of(error).split()) or type_name(error)
        channel.send({"reason": cut(reason, MAX_REASON)})


def main() -> None:
    """Serve the parent process."""
    warnings.simplefilter("ignore")
    for name in ("HF_HUB_OFFLINE", "ORT_DISABLE_TELEMETRY"):
        os.environ.setdefault(name, "1")
    serve(connect_to_parent(JSON))


if __name__ == "__main__":
    main()
