"""ONNX Runtime session options of a serving point."""

from __future__ import annotations

from typing import Any

LEVELS = {"none": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED", "all": "ENABLE_ALL"}
MAX_THREADS = 1024
LOG_FATAL = 4  # errors are raised as exceptions, so the library need not print them too


def session_options(point: Any) -> Any:
    """Return the `onnxruntime.SessionOptions` of a serving point, whose threads and graph level are valid."""
    import onnxruntime as ort

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
