"""Builds and times candidates in warm worker processes: a crash or a timeout is a failed candidate and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from onefold.kernels.measurement_worker import ArgumentTypes
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.targets import Target
from onefold.kernels.toolchain import meta_schedule
from onefold.processes import Worker, describe_exit, scratch_folder
from onefold.runtimes.call_timing import Opener
from onefold.runtimes.race import SINGLE_THREADED_BLAS
from onefold.vocabulary.errors import EngineError, InputError, ModelError
from onefold.vocabulary.kernels import CandidateFailure, Operator

START_TIMEOUT_S = 120.0
BUILD_TIMEOUT_S, RUN_TIMEOUT_S, MODEL_BUILD_TIMEOUT_S, MODEL_TIMEOUT_S = 20.0, 10.0, 600.0, 60.0
REPEATS, MIN_REPEAT_MS = 3, 8
TIMING_PROTOCOL = 2  # latencies measured by different protocols are not comparable
OUTPUT_TOLERANCE = 1e-3  # relative to the norm of the output


Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class MeasureOutcome:
    """The latency of a candidate or its failure, and what measuring it cost."""

    latency_s: float | None
    failure: CandidateFailure | None = None
    error: str = ""
    build_s: float = 0.0
    run_s: float = 0.0
    build_j: float | None = None  # modelled by the worker; None if the machine has energy counters
    run_j: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """A worker's reply to one call."""

    value: Any = None
    error: str = ""
    seconds: float = 0.0
    joules: float | None = None
    failure: CandidateFailure | None = None  # if the worker timed out or died


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The library of a candidate, or the error in the reply."""

    file: Path
    reply: WorkerReply


@dataclass(frozen=True, slots=True)
class ServedTiming:
    """The latencies of a whole model and its outputs."""

    latencies: list[float]
    outputs: list[Array]
    joules: float | None  # modelled by the worker


class TooSlow(ModelError):
    """A compiled model that did not answer in time."""


class MeasurementProcess:
    """A worker process that builds or times, started on first use and again after it has died."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.worker: Worker | None = None

    def ask(self, name: str, *arguments: Any, timeout_s: float, on_timeout: CandidateFailure) -> WorkerReply:
        """Call a function of `measurement_worker.py`; after `timeout_s` the call fails with `on_timeout`."""
        worker = self._started()
        try:
            return WorkerReply(*worker.ask((name, arguments), timeout_s))
        except TimeoutError:
            self.close()
            return WorkerReply(error=f"{name} took more than {timeout_s:g} s", seconds=timeout_s, failure=on_timeout)
        except (EOFError, OSError):
            end = describe_exit(worker.exit_code())
            self.close()
            return WorkerReply(error=f"the process {end}", failure=CandidateFailure.CRASH)

    def close(self) -> None:
        """Kill the process, if there is one."""
        if self.worker is not None:
            self.worker.kill()
        self.worker = None

    def _started(self) -> Worker:
        if self.worker is not None:
            return self.worker
        environment = {**SINGLE_THREADED_BLAS, **self.environment}
        try:
            self.worker = Worker("onefold.kernels.measurement_worker", environment=environment, silent=True)
            self.worker.receive(START_TIMEOUT_S)
        except (EOFError, OSError) as error:
            self.close()
            raise EngineError(
                "a process that compiles kernels did not start; check that `python -c 'import tvm'` works"
            ) from error
        return self.worker


class CandidateRunner:
    """Builds candidates in parallel and times them one at a time. A context manager, which ends its processes.

    Args:
        target: What candidates are compiled for.
        builders: Number of processes that build.
        remote: Address HOST:PORT of a TVM RPC server that runs the candidates; None runs them on this machine.

    Raises:
        InputError: `remote` is no HOST:PORT.
    """

    def __init__(self, target: Target, *, builders: int = 2, remote: str | None = None) -> None:
        self.target, self.remote = target, remote
        if remote is not None and not (remote.rpartition(":")[0] and remote.rpartition(":")[2].isdigit()):
            raise InputError(f"remote must be HOST:PORT of a TVM server, got {remote!r}")
        self._idle_builders = [MeasurementProcess({"TVM_NUM_THREADS": "1"}) for _ in range(builders)]
        self._timing_process = MeasurementProcess({"TVM_NUM_THREADS": str(target.cores)})
        self._processes = (*self._idle_builders, self._timing_process)
        self._pool = ThreadPoolExecutor(builders)
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(scratch_folder())
        self._reference_outputs: dict[str, list[float]] = {}
        self._file_count = 0

    @property
    def can_run(self) -> bool:
        """Return whether candidates can be timed: on this machine or on a remote one."""
        return self.target.is_host or self.remote is not None

    def build(self, modules: Sequence[Any]) -> list[BuildResult]:
        """Compile scheduled TIR modules in parallel; return their results in the same order."""

        def build_one(file: Path, module: Any) -> BuildResult:
            builder = self._idle_builders.pop()
            try:
                arguments = (module, self.target.tvm_config, str(file))
                reply = builder.ask(
                    "build", *arguments, timeout_s=BUILD_TIMEOUT_S, on_timeout=CandidateFailure.SLOW_BUILD
                )
                return BuildResult(file, reply)
            finally:
                self._idle_builders.append(builder)

        return list(self._pool.map(build_one, [self._new_file() for _ in modules], modules))

    def check_import(self, model: Path, batch_size: int, costs: PhaseCosts | None = None) -> None:
        """Import a model. Raises ModelError with the reason if TVM cannot."""
        self._ask_builder(costs, "check_import", model, batch_size)

    def list_unsupported(self, model: Path, costs: PhaseCosts | None = None) -> list[str]:
        """Return the kinds of a model's operators that TVM does not support."""
        kinds: list[str] = self._ask_builder(costs, "list_unsupported", model)
        return kinds

    def list_operators(
        self, model: Path, batch_size: int, level: int, costs: PhaseCosts | None = None
    ) -> list[tuple[Operator, Any]]:
        """Return the operators of a model with their TIR modules.

        Raises ModelError with the reason if TVM cannot import the model or fails at this graph level.
        """
        operators: list[tuple[Operator, Any]] = self._ask_builder(
            costs, "list_operators", model, batch_size, level, self.target
        )
        return operators

    def compile_model(
        self, model: Path, batch_size: int, level: int, traces: Mapping[str, str], library: Path,
        costs: PhaseCosts | None = None,
    ) -> None:  # fmt: skip
        """Compile a whole model with schedule traces by operator key. Raises ModelError with the reason if it fails."""
        self._ask_builder(costs, "compile_model", model, batch_size, level, self.target, traces, library)

    def _ask_builder(self, costs: PhaseCosts | None, name: str, *arguments: Any) -> Any:
        """Call a function of `model_builds.py`, always in the same process, which keeps the graphs.

        What it costs is added to the costs, also if it fails.
        """
        with nullcontext() if costs is None else costs.phase("whole"):
            reply = self._idle_builders[0].ask(
                name, *arguments, timeout_s=MODEL_BUILD_TIMEOUT_S, on_timeout=CandidateFailure.SLOW_BUILD
            )
        if costs is not None:
            costs.add("whole", reply.joules)
        if reply.error:
            raise ModelError(reply.error)
        return reply.value

    def has_reference(self, operator: str) -> bool:
        """Return whether the reference output of this operator is known."""
        return operator in self._reference_outputs

    def measure_reference(self, operator: str, module: Any, built: BuildResult) -> MeasureOutcome:
        """Time the unscheduled operator and keep its output as the reference for its candidates."""
        outcome, self._reference_outputs[operator] = self._measure(built, argument_types(module), None)
        return outcome

    def measure(self, operator: str, module: Any, built: BuildResult) -> MeasureOutcome:
        """Time a candidate and compare its output with the reference."""
        return self._measure(built, argument_types(module), self._reference_outputs.get(operator))[0]

    def time_library(self, file: Path, arguments: ArgumentTypes) -> WorkerReply:
        """Time the kernel in a library, and delete the file."""
        reply = self._timing_process.ask(
            "time_kernel", str(file), arguments, REPEATS, MIN_REPEAT_MS, self.remote,
            timeout_s=RUN_TIMEOUT_S, on_timeout=CandidateFailure.SLOW_RUN,
        )  # fmt: skip
        file.unlink(missing_ok=True)
        return reply

    def time_served(self, opener: Opener, inputs: Sequence[Array], repeats: int = 10) -> ServedTiming:
        """Time the call that serves a compiled model on this machine, loaded by the opener.

        Raises ModelError if it fails.
        """
        reply = self._timing_process.ask(
            "time_served", opener, list(inputs), repeats,
            timeout_s=MODEL_TIMEOUT_S, on_timeout=CandidateFailure.SLOW_RUN,
        )  # fmt: skip
        return _served_timing(reply)

    def time_remote_model(self, file: Path, inputs: Sequence[Array], repeats: int = 10) -> ServedTiming:
        """Time a compiled model on the remote machine. Raises ModelError if it fails."""
        reply = self._timing_process.ask(
            "time_remote_model", str(file), list(inputs), repeats, self.remote,
            timeout_s=MODEL_TIMEOUT_S, on_timeout=CandidateFailure.SLOW_RUN,
        )  # fmt: skip
        return _served_timing(reply)

    def close(self) -> None:
        """Kill all processes and delete the libraries."""
        self._pool.shutdown(wait=False, cancel_futures=True)  # first: pending builds would start new processes
        for process in self._processes:
            process.close()
        self._stack.close()

    def __enter__(self) -> CandidateRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new_file(self) -> Path:
        self._file_count += 1
        return self._folder / f"{self._file_count:06}{self.target.library_suffix}"

    def _measure(
        self, built: BuildResult, arguments: ArgumentTypes, reference: list[float] | None
    ) -> tuple[MeasureOutcome, list[float]]:
        """Return the outcome and the projected output, which is empty if the candidate failed."""
        build = built.reply
        if build.error:
            failure = build.failure or CandidateFailure.INVALID
            return MeasureOutcome(None, failure, build.error, build.seconds, 0.0, build.joules), []
        run = self.time_library(built.file, arguments)

        def outcome(
            latency_s: float | None, failure: CandidateFailure | None = None, error: str = ""
        ) -> MeasureOutcome:
            return MeasureOutcome(latency_s, failure, error, build.seconds, run.seconds, build.joules, run.joules)

        if run.error:
            return outcome(None, run.failure or CandidateFailure.CRASH, run.error), []
        output = run.value["output"]
        if reference and not _outputs_match(output, reference):
            return outcome(None, CandidateFailure.WRONG, "its output differs from the operator's"), output
        return outcome(median(run.value["latencies"])), output


def _served_timing(reply: WorkerReply) -> ServedTiming:
    if reply.failure is CandidateFailure.SLOW_RUN:
        raise TooSlow(f"one run of the compiled model takes more than {MODEL_TIMEOUT_S:g} s")
    if reply.error:
        raise ModelError(f"the compiled model cannot be run: {reply.error.splitlines()[-1]}")
    return ServedTiming(reply.value["latencies"], reply.value["outputs"], reply.joules)


def argument_types(module: Any) -> ArgumentTypes:
    """Return the dtype and shape of each argument of a TIR module."""
    arguments = meta_schedule().arg_info.ArgInfo.from_entry_func(module, remove_preproc=True)
    return tuple((str(argument.dtype), tuple(int(size) for size in argument.shape)) for argument in arguments)


def _outputs_match(output: Sequence[float], reference: Sequence[float]) -> bool:
    norm = max(reference[0], 1e-6)
    return all(
        np.isfinite(value) and abs(value - expected) <= OUTPUT_TOLERANCE * norm
        for value, expected in zip(output, reference)
    )
