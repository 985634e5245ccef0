"""The process of a conversion: `python -m onefold.runtimes.conversion_worker FD` converts one model and answers.

    in    {"runtime": name, "model": path}
    out   {"form": {…}, "error": number, "agreement": number} or {"reason": "…"}

Converters are native code that uses gigabytes, prints and may crash: the process ends with them.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from onefold.agent.forms import form_to_json
from onefold.agent.loaded_model import run_batch
from onefold.processes import JSON, Channel, connect_to_parent
from onefold.runtimes.output_comparison import AGREEMENT, agreement, relative_difference
from onefold.runtimes.registry import find_runtime
from onefold.runtimes.runtime import files_of
from onefold.runtimes.source_models import open_source
from onefold.vocabulary.error_text import cut, message_of, type_name
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint

TOLERANCE = 1e-3  # of the outputs, relative to the largest
QUANTIZED_TOLERANCE = 0.5  # runtimes round integers differently: such a model is judged by its accuracy
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
    if len(outputs) != len(source.expected):
        raise ModelError(f"the converted model has {len(outputs)} outputs instead of {len(source.expected)}")
    pairs = list(zip(outputs, source.expected))
    difference = max(relative_difference(*pair) for pair in pairs)
    if not difference <= (QUANTIZED_TOLERANCE if source.is_quantized else TOLERANCE):
        raise ModelError(f"the outputs of the converted model differ by {difference:.2g} of the largest output")
    return {
        "form": form_to_json(form),
        "error": difference,
        AGREEMENT: min(agreement(*pair) for pair in pairs),
    }


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
