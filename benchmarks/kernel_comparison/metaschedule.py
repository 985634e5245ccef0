"""MetaSchedule's runs: with our warm builder and runner, and with its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kernel_comparison.networks import Workspace
from kernel_comparison.tuning import Checkpoint
from onefold.kernels.candidate_runner import CandidateRunner
from onefold.kernels.graph import import_onnx, optimize_graph
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.toolchain import meta_schedule, tvm
from onefold.vocabulary.kernels import CompileCost

DEFAULT_BATCH = 64  # of MetaSchedule
SEED = 1
STOCK = """
import sys, time, logging, tempfile
logging.disable(logging.INFO)
import tvm, onnx
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir import meta_schedule as ms

trials, batch = int(sys.argv[2]), int(sys.argv[3])
module = from_onnx(onnx.load(sys.argv[1]), shape_dict={"input0": [1, 3, 32, 32]})
cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 1})
passes = [
    relax.transform.DecomposeOpsForInference(), relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(),
    relax.transform.FoldConstant(), relax.transform.FuseOps(), relax.transform.FuseTIR(),
]
with target:
    module = tvm.transform.Sequential(passes)(module)
tasks = [task for task in ms.relax_integration.extract_tasks(module, target, {}) if "conv" in task.task_name][:1]
contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(tasks, tempfile.mkdtemp())
started = time.monotonic()
ms.tune_tasks(
    tasks=contexts, task_weights=weights, work_dir=tempfile.mkdtemp(), max_trials_global=trials,
    num_trials_per_iter=batch, database="memory",
)
print((time.monotonic() - started) / trials)
"""


@dataclass(frozen=True)
class Batch:
    """What was spent up to the end of a batch, and the latencies measured so far."""

    latencies: frozenset[float]
    spent: CompileCost


class BatchCosts:
    """The costs at the end of each batch.

    MetaSchedule commits the records of a batch late, when it comes back to the operator, so that the batches cannot be
    read from its database.
    """

    def __init__(self) -> None:
        self.costs, self.batches = PhaseCosts(), list[Batch]()
        self._latencies: set[float] = set()
        self._phase = ExitStack()
        self._phase.enter_context(self.costs.phase("search"))

    def end_batch(self, latencies: Sequence[float]) -> None:
        """Note the costs at the end of a batch that measured these latencies."""
        self._phase.close()
        self._latencies |= set(latencies)
        self.batches.append(Batch(frozenset(self._latencies), self.costs.total))
        self._phase.enter_context(self.costs.phase("search"))

    def close(self) -> None:
        """End the last phase."""
        self._phase.close()


def tune_with_metaschedule(workspace: Workspace, network: str, candidates: int, batch: int) -> tuple[Checkpoint, ...]:
    """Tune with MetaSchedule's scheduler, search and cost model, and our warm builder and runner.

    With its default batches it measures at least one batch for each operator. The model is compiled from the records
    of each batch after tuning.
    """
    tuner = meta_schedule()
    run = f"metaschedule {batch}/{network}"
    workspace.start(run)
    folder = Path(tempfile.mkdtemp(dir=workspace.temporary))
    target = workspace.target()
    with CandidateRunner(target) as runner:
        operator, module = workspace.compiler(network, runner).operators[-1]
        runner.measure_reference(operator.key, module, runner.build([module, module])[0])  # starts the processes
        database = tuner.database.MemoryDatabase()
        costs = BatchCosts()
        graph = optimize_graph(import_onnx(workspace.model(network)), target)
        builder, timer = _adapters(runner, costs, folder)
        tasks = tuner.relax_integration.extract_tasks(graph, target.tvm_target(), {})
        contexts, weights = tuner.relax_integration.extracted_tasks_to_tune_contexts(tasks, str(folder), seed=SEED)
        tuner.tune_tasks(
            tasks=contexts, task_weights=weights, work_dir=str(folder), max_trials_global=max(
                candidates, batch * len(tasks) if batch == DEFAULT_BATCH else 0
            ), num_trials_per_iter=batch, builder=builder, runner=timer, database=database,
        )  # fmt: skip
        costs.close()
    checkpoints = []
    for number, ended in enumerate(costs.batches):
        library = workspace.libraries(run) / f"{number:03}.so"
        _compile_with_records(graph, target.tvm_target(), database, ended.latencies, library)
        energy_j = ended.spent.energy.joules
        checkpoints.append(Checkpoint(len(ended.latencies), ended.spent.time_s, energy_j, str(library)))
    return tuple(checkpoints)


def seconds_per_candidate(workspace: Workspace, network: str, trials: int, batch: int) -> dict[str, Any]:
    """Return the time per candidate with MetaSchedule's own builder and runner, which restart for each batch."""
    command = [sys.executable, "-W", "ignore", "-c", STOCK, str(workspace.model(network)), str(trials), str(batch)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        return {"batch": batch, "candidates": trials, "s per candidate": None, "error": ended.stderr[-500:]}
    return {"batch": batch, "candidates": trials, "s per candidate": float(ended.stdout.split()[-1])}


def _compile_with_records(graph: Any, target: Any, database: Any, latencies: frozenset[float], library: Path) -> None:
    """Compile a model with the tuning records of these latencies."""
    from tvm import relax

    records = meta_schedule().database.MemoryDatabase()
    for record in database.get_all_tuning_records():
        if float(record.run_secs[0]) in latencies:
            records.commit_workload(record.workload.mod)
            records.commit_tuning_record(record)
    with target, records, tvm().transform.PassContext(opt_level=3):
        applied = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(graph)
        tvm().compile(applied, target=target).export_library(str(library))


def _adapters(runner: CandidateRunner, costs: BatchCosts, folder: Path) -> tuple[Any, Any]:
    """Return our builder and runner as those of MetaSchedule."""
    from tvm.ir.utils import derived_object

    tuner = meta_schedule()

    @derived_object
    class WarmBuilder(tuner.builder.PyBuilder):  # type: ignore[name-defined,misc]
        def build(self, inputs: Any) -> list[Any]:
            results = []
            for built in runner.build([candidate.mod for candidate in inputs]):
                costs.costs.add("build", built.reply.joules)
                file = Path(tempfile.mkdtemp(dir=folder)) / built.file.name  # the folder is removed later
                if not built.reply.error:
                    built.file.rename(file)
                error = built.reply.error or None
                results.append(tuner.builder.BuilderResult(None if error else str(file), error))
            return results

    @derived_object
    class MeasuredLatencies(tuner.runner.PyRunnerFuture):  # type: ignore[name-defined,misc]
        def __init__(self, latencies: Any, error: Any) -> None:
            super().__init__()
            self.latencies, self.error = latencies, error

        def done(self) -> bool:
            return True

        def result(self) -> Any:
            return tuner.runner.RunnerResult(self.latencies, self.error)

    @derived_object
    class WarmRunner(tuner.runner.PyRunner):  # type: ignore[name-defined,misc]
        def run(self, inputs: Any) -> list[Any]:
            futures, measured = [], []
            for candidate in inputs:
                arguments = tuple(
                    (str(info.dtype), tuple(int(size) for size in info.shape)) for info in candidate.args_info
                )
                reply = runner.time_library(Path(str(candidate.artifact_path)), arguments)
                costs.costs.add("run", reply.joules)
                measured += [] if reply.error else [median(reply.value["latencies"])]  # not the mean
                futures.append(MeasuredLatencies(None if reply.error else measured[-1:], reply.error or None))
            costs.end_batch(measured)
            return futures

    return WarmBuilder(), WarmRunner()
