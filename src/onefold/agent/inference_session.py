"""Open ONNX Runtime sessions: on the CPU, and without telemetry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnxruntime


def open_inference_session(model: Path | bytes, options: Any) -> onnxruntime.InferenceSession:
    """Return a session for an ONNX file or its content. Raises what ONNX Runtime raises."""
    import onnxruntime

    # The environment variable that Onefold sets has no effect if the caller imported onnxruntime first.
    onnxruntime.disable_telemetry_events()
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
