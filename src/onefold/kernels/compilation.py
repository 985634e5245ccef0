"""One compilation: tunes models for a device, compares runtimes, writes the libraries; resumes when interrupted."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from onefold.device import Device, open_session
from onefold.device.catalog import HOST
from onefold.device.host import host
from onefold.kernels.candidate_runner import TIMING_PROTOCOL, CandidateRunner
from onefold.kernels.cold_filter import ColdFilter
from onefold.kernels.cost_model import CostModel
from onefold.kernels.cost_model_transfer import pack_module, pretrain
from onefold.kernels.graph_levels import compare_graph_levels
from onefold.kernels.kernel_library import ARCHIVE, LIBRARY, ORT, LibraryManifest, write_library
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.operator_tuner import OperatorTuner
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.runtime_comparison import compare_runtimes
from onefold.kernels.source_models import SourceModel
from onefold.kernels.strategies import RANDOM, needs_cost_model
from onefold.kernels.survey_tuner import CompileEvent, SurveyedModel, SurveyTuner
from onefold.kernels.targets import Target, target_of
from onefold.kernels.toolchain import check_linker, tvm
from onefold.model_folder import new_generation
from onefold.store import CompilationRecord, Store
from onefold.store.home import Home
from onefold.vocabulary.errors import BudgetError, InputError
from onefold.vocabulary.kernels import (
    CompileBudget,
    CompileOptions,
    CompileResult,
    GraphLevelResult,
    Operator,
    RuntimeLatency,
    ScheduleCandidate,
    TuningRound,
)
from onefold.vocabulary.quantities import duration, number
from onefold.vocabulary.records import StudyState
from onefold.vocabulary.serving import ServingPoint

PEAK_FACTOR = 2.0  # by which kernels may exceed the throughput in a device's description
REPORT = "kernels.html"
SERVER_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class CompiledArtifacts:
    """The files of a compiled model that go into its deployment folder."""

    source: SourceModel
    result: CompileResult
    library: Path
    manifest: LibraryManifest
    int8: Path | None = None


@dataclass
class Compilation:
    """Compiles models for a device within one budget.

    Args:
        sources: The models.
        device: The device that will run them.
        budget: When to stop.
        options: How to search and compile.
        home: The store and its locks.
        folder: For temporary files.
        goals_s: Latencies at which the models are fast enough, in their order; None for a model without a goal.
        on_event: Called with each measured candidate, each finished round, and what is being done.
    """

    sources: Sequence[SourceModel]
    device: Device
    budget: CompileBudget
    options: CompileOptions
    home: Home
    folder: Path
    goals_s: Sequence[float | None]
    on_event: Callable[[CompileEvent], None]
    target: Target = field(init=False)

    def run(self) -> list[CompileResult]:
        """Tune, compare the runtimes and write the libraries; return a result for each model."""
        tvm()
        check_linker()
        options, is_host = self.options, self.device.name == HOST
        self.target = target_of(self.device, options.threads, is_host=is_host, processor=options.processor)
        with CandidateRunner(self.target, remote=options.remote) as runner, closing(self.home.store()) as store:
            if options.remote is not None:
                _check_server(options.remote)
            self.on_event("importing the models")
            compilers = [
                ModelCompiler(source.name, source.file, source.inputs, source.outputs, runner, options.graph_level)
                for source in self.sources
            ]
            self._check_goals(compilers)
            if not runner.can_run:
                pairs = zip(self.sources, compilers)
                return [self._write(self._cross_compile(source, compiler, runner, store)) for source, compiler in pairs]
            with self.home.locks.measurement():
                artifacts, finished = self._tune(compilers, runner, store)
            results = [self._write(artifact) for artifact in artifacts]
            store.save_compilation(finished)
            return results

    def _tune(
        self, compilers: list[ModelCompiler], runner: CandidateRunner, store: Store
    ) -> tuple[list[CompiledArtifacts], CompilationRecord]:
        started = time.monotonic()
        record = self._find_or_create_record(store)
        costs = PhaseCosts(record.spent if record.rounds else None)
        history = self._history(store, {operator.key for compiler in compilers for operator, _ in compiler.operators})
        tuners = self._tuners(compilers, runner, store, costs, history)
        _restore_counts(tuners, record.rounds)
        models = [
            SurveyedModel(compiler, [ended for ended in record.rounds if ended.model == compiler.name], goal_s)
            for compiler, goal_s in zip(compilers, self.goals_s, strict=True)
        ]

        def on_event(event: CompileEvent) -> None:
            nonlocal record
            if isinstance(event, ScheduleCandidate):
                store.save_candidates([event])
            elif isinstance(event, TuningRound):
                rounds = (*record.rounds, event)
                record = replace(record, rounds=rounds, elapsed_s=survey.elapsed_s, spent=costs.total)
                store.save_compilation(record)
            self.on_event(event)

        survey = SurveyTuner(
            models, tuners, self.budget, costs, self.folder,
            cold_filter=ColdFilter(self.options.seed) if self.options.cold_filter else None, history=history,
            candidates_per_round=self.options.candidates_per_round, is_round_robin=not self.options.survey,
            earlier_s=record.elapsed_s, on_event=on_event, started=started,
        )  # fmt: skip
        reason = survey.run()
        artifacts = [self._finish(source, model, survey, reason) for source, model in zip(self.sources, models)]
        finished = replace(record, state=StudyState.DONE, elapsed_s=survey.elapsed_s, spent=costs.total, reason=reason)
        return artifacts, finished

    def _finish(self, source: SourceModel, model: SurveyedModel, survey: SurveyTuner, reason: str) -> CompiledArtifacts:
        """Choose the fastest library of a tuned model and compare the runtimes."""
        compiler, costs = model.compiler, survey.costs
        self.on_event(f"choosing the fastest library of {source.name}")
        # A resumed compilation whose budget was exhausted before has not compiled anything in this process.
        best = compiler.settle(costs) or compiler.measure(survey.best_proposals, self.folder, costs)
        self.on_event(f"comparing runtimes for {source.name}")
        with open_session(self.device, host(self.home.devices)) as session:
            point = ServingPoint(self.options.batch_size, self.target.cores)
            comparison = compare_runtimes(compiler, best.file, source, session, self.folder, point)
        levels: tuple[GraphLevelResult, ...] = ()
        if self.options.compare_levels:
            self.on_event("comparing graph optimization levels")
            levels = compare_graph_levels(compiler, self.folder, costs)
        result = CompileResult(
            model=source.name,
            device=self.device.name,
            target=self.target.name,
            threads=self.target.cores,
            level=self.options.graph_level,
            strategy=self.options.strategy,
            rounds=tuple(model.rounds),
            histories=tuple(survey.tuners[operator.key].history for operator, _ in compiler.operators),
            runtimes=comparison.runtimes,
            recommended=comparison.recommended,
            why_stopped=model.why_ended or reason,
            error=best.error,
            spent=costs.total,
            levels=levels,
        )
        manifest = self._manifest(source, comparison.runtimes, comparison.recommended, best.file)
        return CompiledArtifacts(source, result, best.file, manifest, comparison.int8)

    def _cross_compile(
        self, source: SourceModel, compiler: ModelCompiler, runner: CandidateRunner, store: Store
    ) -> CompiledArtifacts:
        """Compile for a device that cannot be measured from here, with the best candidates in the store."""
        tuners = self._tuners([compiler], runner, store)
        best = {key: tuner.best[1] for key, tuner in tuners.items() if tuner.best is not None}
        self.on_event(f"compiling {source.name} for {self.target.name}")
        file = compiler.compile(best, self.folder / f"{source.name}{self.target.library_suffix}")
        note = (
            f"{len(best)} of {len(tuners)} operators tuned; not run here: to tune it, give the address of a TVM server "
            "on the device (remote)"
        )
        manifest = replace(self._manifest(source, (), ORT, file), notes=(note,))
        result = CompileResult(
            model=source.name,
            device=self.device.name,
            target=self.target.name,
            threads=self.target.cores,
            level=self.options.graph_level,
            strategy=self.options.strategy,
            rounds=(),
            histories=tuple(tuner.history for tuner in tuners.values()),
            runtimes=(),
            recommended="",
            why_stopped=note,
            error=float("nan"),
        )
        return CompiledArtifacts(source, result, file, manifest)

    def _manifest(
        self, source: SourceModel, runtimes: tuple[RuntimeLatency, ...], recommended: str, library: Path
    ) -> LibraryManifest:
        return LibraryManifest(
            device=self.device.name,
            target=self.target.name,
            threads=self.target.cores,
            batch_size=self.options.batch_size,
            inputs={name: str(array.dtype) for name, array in zip(source.input_names, source.inputs)},
            runtimes=runtimes,
            recommended=recommended,
            file=ARCHIVE if library.suffix == ".tar" else LIBRARY,
            model=source.digest,
        )

    def _write(self, artifacts: CompiledArtifacts) -> CompileResult:
        """Write the library and the report into the deployment folder, if the model has one."""
        from onefold.report.kernels import KernelReport

        folder = artifacts.source.folder
        if folder is None:
            return artifacts.result
        source, result = artifacts.source, replace(artifacts.result, folder=str(folder))
        source.create_folder(self.home.path)
        with new_generation(folder, home=self.home.path, update=True, record=source.is_trusted) as new:
            write_library(new, artifacts.library, artifacts.manifest, artifacts.int8)
            (new / REPORT).write_text(KernelReport([result]).as_html(), encoding="utf-8")
        return result

    def _tuners(
        self,
        compilers: Sequence[ModelCompiler],
        runner: CandidateRunner,
        store: Store,
        costs: PhaseCosts | None = None,
        history: Mapping[Operator, Sequence[ScheduleCandidate]] | None = None,
    ) -> dict[str, OperatorTuner]:
        """Return a tuner for each distinct operator, with the candidates of earlier compilations."""
        options = self.options
        model = CostModel(self.target.cores) if needs_cost_model(options.strategy) and runner.can_run else None
        strategy = RANDOM if model is None and needs_cost_model(options.strategy) else options.strategy
        pairs = [pair for compiler in compilers for pair in compiler.operators]
        if model is not None and costs is not None and history:
            self.on_event("pretraining the cost model on earlier compilations")
            tuned = {operator.key: operator for operator, _ in pairs}
            others = [(operator, known) for operator, known in history.items() if operator.key not in tuned]
            with costs.phase("update"):
                pretrain(model, tuned.values(), others, store.loops, self.target)
        tuners: dict[str, OperatorTuner] = {}
        with nullcontext() if costs is None else costs.phase("search"):
            for at, (operator, module) in enumerate(pairs):
                if operator.key not in tuners:
                    tuner = OperatorTuner(operator, module, runner, strategy, model, self._machine, options.seed + at)
                    known = store.candidates(operator.key, self.target.name)
                    tuner.recall([candidate for candidate in known if self._is_comparable(candidate)])
                    store.save_operator(operator, pack_module(module))
                    tuners[operator.key] = tuner
        return tuners

    def _history(self, store: Store, tuned: set[str]) -> dict[Operator, list[ScheduleCandidate]]:
        """Return the candidates of other operators and those measured elsewhere; their operators' names say where."""
        operators = store.operators()
        history: dict[Operator, list[ScheduleCandidate]] = {}
        for candidate in store.candidates():
            is_comparable = self._is_comparable(candidate)
            if candidate.operator in operators and not (candidate.operator in tuned and is_comparable):
                where = "" if is_comparable else f" on {candidate.machine}, {candidate.target} x{candidate.threads}"
                operator = operators[candidate.operator]
                history.setdefault(replace(operator, name=operator.name + where), []).append(candidate)
        return history

    def _is_comparable(self, candidate: ScheduleCandidate) -> bool:
        """Return whether a candidate was measured under the same conditions."""
        has_same_target = (candidate.target, candidate.threads) == (self.target.name, self.target.cores)
        return has_same_target and self._machine in ("", candidate.machine)

    @cached_property
    def _machine(self) -> str:
        """Return the name of the machine that measures: this one or that of the TVM server; empty for any."""
        if self.options.remote is not None or not self.target.is_host:
            return self.options.remote or ""
        return f"{self.target.processor} {host(self.home.devices).cores} cores, clock {TIMING_PROTOCOL}"

    def _find_or_create_record(self, store: Store) -> CompilationRecord:
        """Return the interrupted compilation of the same models and options, or a new one."""
        options = self.options
        spec = {
            "models": {source.name: source.digest for source in self.sources},
            "target": self.target.name, "threads": self.target.cores, "device": self.device.name,
            "options": {  # the names in stores of version 0.1
                "level": options.graph_level, "strategy": options.strategy, "is_filtering": options.cold_filter,
                "is_surveying": options.survey, "batch": options.candidates_per_round,
                "batch_size": options.batch_size, "threads": options.threads, "processor": options.processor,
                "remote": options.remote, "seed": options.seed,
            },
        }  # fmt: skip
        digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
        for compilation in store.compilations():
            if compilation.key.startswith(digest) and compilation.state == StudyState.RUNNING:
                self.on_event(f"resuming a compilation that was interrupted after {duration(compilation.elapsed_s)}")
                return compilation
        now = datetime.now(UTC)
        return CompilationRecord(f"{digest}-{now:%Y%m%d%H%M%S%f}", now.isoformat(), StudyState.RUNNING, spec)

    def _check_goals(self, compilers: Sequence[ModelCompiler]) -> None:
        """Raise BudgetError for a goal below the time that the device needs for the arithmetic alone."""
        flops_per_s = PEAK_FACTOR * self.device.gflops * 1e9 * self.target.cores
        for compiler, goal_s in zip(compilers, self.goals_s):
            flops = sum(operator.flops * operator.weight for operator, _ in compiler.operators)
            if goal_s is not None and flops_per_s > 0 and flops / flops_per_s > goal_s:
                raise BudgetError(
                    f"a goal of {duration(goal_s)} cannot be met: {compiler.name} computes "
                    f"{number(flops / 1e6)} MFLOP, which take at least {duration(flops / flops_per_s)} "
                    f"on {self.device.name}"
                )


def _check_server(remote: str) -> None:
    name, _, port = remote.rpartition(":")
    try:
        socket.create_connection((name, int(port)), timeout=SERVER_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no TVM server answers at {remote} ({error}); start one on the device: "
            f"python -m tvm.exec.rpc_server --host 0.0.0.0 --port {port}"
        ) from error


def _restore_counts(tuners: Mapping[str, OperatorTuner], rounds: Sequence[TuningRound]) -> None:
    """Count candidates of an interrupted compilation's earlier runs as its own, not as recalled from another."""
    for ended in rounds:
        for state in ended.operators:
            tuner = tuners[state.operator.key]
            tuner.filtered = max(tuner.filtered, state.filtered)
            if ended.number == 0:
                tuner.recalled = min(state.tried, len(tuner.candidates))
