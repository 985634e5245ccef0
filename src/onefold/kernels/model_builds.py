"""Import, optimize and compile whole models in a worker process.

TVM's C++ code may crash on a graph that nobody has tried before. Imported and optimized graphs are kept, so that each
library of a model costs only its own compilation.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from onefold.kernels.graph import import_onnx, last_line, optimize_graph
from onefold.kernels.schedule_space import extract_operators
from onefold.kernels.targets import Target
from onefold.kernels.toolchain import export_library, meta_schedule, tvm
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.kernels import Operator

MAX_GRAPHS = 16


@lru_cache(MAX_GRAPHS)
def _imported(file: Path, batch_size: int) -> Any:
    return import_onnx(file, batch_size)


@lru_cache(MAX_GRAPHS)
def _lowered(file: Path, batch_size: int, level: int, target: Target) -> tuple[Any, list[tuple[Operator, Any]]]:
    graph = optimize_graph(_imported(file, batch_size), target, level)
    try:
        return graph, extract_operators(graph, target)
    except Exception as error:  # TVM raises many types
        raise ModelError(f"its operators cannot be extracted at level {level}: {last_line(error)}") from error


def check_import(file: Path, batch_size: int) -> None:
    """Import a model. Raises ModelError with the reason if TVM cannot."""
    _imported(file, batch_size)


def list_unsupported(file: Path) -> list[str]:
    """Return the kinds of a model's operators that TVM's importer does not know."""
    import onnx

    tvm()
    frontend = importlib.import_module("tvm.relax.frontend.onnx.onnx_frontend")
    kinds = {node.op_type for node in onnx.load(str(file), load_external_data=False).graph.node}
    return sorted(kinds - set(frontend._get_convert_map()) - {"Constant"})


def list_operators(file: Path, batch_size: int, level: int, target: Target) -> list[tuple[Operator, Any]]:
    """Return the operators of a model with their TIR modules. Raises ModelError if TVM fails at this graph level."""
    return _lowered(file, batch_size, level, target)[1]


def compile_model(
    file: Path, batch_size: int, level: int, target: Target, traces: Mapping[str, str], library: Path
) -> None:
    """Compile a model into a library, with schedule traces as JSON by operator key; other operators stay untuned.

    Raises ModelError with the reason if TVM cannot compile it.
    """
    graph, operators = _lowered(file, batch_size, level, target)
    transform = importlib.import_module("tvm.relax").transform
    tvm_target = target.tvm_target()
    database = meta_schedule().database.MemoryDatabase()
    for operator, module in operators:
        if operator.key in traces:
            database.commit_tuning_record(_record(database, module, traces[operator.key], tvm_target))
    try:
        with tvm_target, database, tvm().transform.PassContext(opt_level=3):
            applied = transform.MetaScheduleApplyDatabase(enable_warning=False)(graph)
            built = tvm().compile(applied, target=tvm_target)
        export_library(built, str(library))
    except Exception as error:  # TVM raises many types
        raise ModelError(last_line(error)) from error


def _record(database: Any, module: Any, trace: str, target: Any) -> Any:
    """Return the tuning record of a schedule; its latency does not matter, since it is the operator's only one."""
    schedule = importlib.import_module("tvm.s_tir").Schedule(module, error_render_level="none", enable_check=False)
    importlib.import_module("tvm.s_tir.schedule").Trace.apply_json_to_schedule(json.loads(trace), schedule)
    tuner = meta_schedule()
    arguments = tuner.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    return tuner.database.TuningRecord(schedule.trace, database.commit_workload(module), [1.0], target, arguments)
