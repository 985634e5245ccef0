"""ONNX Runtime session options of a serving point."""

from __future__ import annotations

from typing import Any

from onefold.vocabulary.errors import ModelError, unknown
from onefold.vocabulary.serving import ServingPoint

LEVELS = {"none": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED", "all": "ENABLE_ALL"}
MAX_THREADS = 1024
LOG_FATAL = 4  # errors are raised as exceptions, so the library need not print them too


def session_options(point: ServingPoint) -> Any:
    """Return the `onnxruntime.SessionOptions` of a serving point.

    Raises ModelError for one that no session can have: points are also read from folders of others.
    """
    import onnxruntime as ort

    if not 1 <= point.threads <= MAX_THREADS:
        raise ModelError(f"a session has 1 to {MAX_THREADS} threads, not {point.threads}")
    if point.graph_level not in LEVELS:
        raise ModelError(unknown("graph level", point.graph_level, LEVELS))
    parallel = point.execution == "parallel"
    options = ort.SessionOptions()
    options.intra_op_num_threads = point.threads
    options.inter_op_num_threads = point.threads if parallel else 1
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if parallel else ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{LEVELS[point.graph_level]}")
    for pool in ("intra_op", "inter_op"):
        options.add_session_config_entry(f"session.{pool}.allow_spinning", str(int(point.waiting == "spinning")))
    options.log_severity_level = LOG_FATAL
    return options
