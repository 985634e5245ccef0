"""Finds how much of a model TVM can compile: all of it at some graph level, the part with the most work, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onefold.kernels.candidate_runner import CandidateRunner, TooSlow
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.partition import Partition, split_model
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.source_models import SourceModel
from onefold.vocabulary.errors import ModelError


@dataclass(frozen=True)
class CompilablePart:
    """What TVM can compile of a model."""

    compiler: ModelCompiler | None  # None if onnxruntime has to serve the model
    note: str  # what TVM cannot compile, or at which graph level; empty if there is nothing to say


def find_compilable_part(
    source: SourceModel, runner: CandidateRunner, level: int, folder: Path, costs: PhaseCosts | None = None
) -> CompilablePart:
    """Import a model and compile it untuned, in a worker process, until an attempt has the right outputs.

    The whole model is tried at the graph level and at those below it. If that fails, operators that TVM does not
    support are left to onnxruntime, unless little of the model remains or another machine has to run it.
    """
    try:
        runner.check_import(source.file, source.batch_size, costs)
        return _at_highest_level(source, runner, level, folder, None, costs)
    except ModelError as error:
        reason = str(error)
    if runner.target.is_host and runner.remote is None:
        try:
            unsupported = runner.list_unsupported(source.file, costs)
            parts = split_model(source.file, dict(zip(source.input_names, source.inputs)), unsupported, folder)
            compilable = _at_highest_level(source, runner, level, folder, parts, costs)
        except ModelError as error:
            also = "" if str(error) in reason else f"; {error}"
            return CompilablePart(None, f"TVM cannot compile {source.origin}: {reason}{also}")
        return CompilablePart(compilable.compiler, f"a part of the model, the rest in onnxruntime: {reason}")
    return CompilablePart(None, f"TVM cannot compile {source.origin}: {reason}")


def _at_highest_level(
    source: SourceModel,
    runner: CandidateRunner,
    level: int,
    folder: Path,
    parts: Partition | None,
    costs: PhaseCosts | None,
) -> CompilablePart:
    """Return the compiler at the highest level that works. Raises ModelError with the reason of the first failure."""
    reasons: list[str] = []
    for lower in range(level, -1, -1):
        try:
            compiler = ModelCompiler(
                source.name, source.file, source.inputs, source.outputs, runner, lower, parts, costs
            )
            library = compiler.compile({}, folder / compiler.file_name({}), costs)
            if runner.can_run:
                compiler.time_library(library, costs)
        except TooSlow:
            raise
        except ModelError as error:
            reasons.append(str(error))
            continue
        note = f"graph level {lower}, since level {level} failed: {reasons[0]}" if reasons else ""
        return CompilablePart(compiler, note)
    raise ModelError(reasons[0])
