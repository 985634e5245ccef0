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
from onefold.device.roofline import operator_costs
from onefold.kernels.candidate_runner import TIMING_PROTOCOL, CandidateRunner
from onefold.kernels.cold_filter import ColdFilter
from onefold.kernels.compilable_part import find_compilable_part
from onefold.kernels.compiled_artifacts import ArtifactBuilder, CompiledArtifacts, write_artifacts
from onefold.kernels.cost_model import CostModel
from onefold.kernels.cost_model_transfer import pack_module, pretrain
from onefold.kernels.graph_levels import compare_graph_levels
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.operator_tuner import OperatorTuner
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.runtime_comparison import compare_runtimes
from onefold.kernels.source_models import SourceModel
from onefold.kernels.stopping_rule import share_of_rest
from onefold.kernels.strategies import RANDOM, needs_cost_model
from onefold.kernels.survey_tuner import UPDATE_SHARE, CompileEvent, SurveyedModel, SurveyTuner
from onefold.kernels.targets import Target, target_of
from onefold.kernels.toolchain import check_linker, tvm
from onefold.store import CompilationRecord, Store
from onefold.store.home import Home
from onefold.vocabulary.errors import BudgetError, InputError, ModelError
from onefold.vocabulary.kernels import (
    CandidateHistory,
    CompileBudget,
    CompileCost,
    CompileOptions,
    CompileResult,
    GraphLevelResult,
    Operator,
    ScheduleCandidate,
    TuningRound,
)
from onefold.vocabulary.quantities import duration, number
from onefold.vocabulary.records import StudyState
from onefold.vocabulary.serving import ServingPoint

PEAK_FACTOR = 2.0  # highest throughput of kernels, relative to that in the device's description
MIN_SAVE_INTERVAL_S = 1.0  # between two updates of the cost in the store within a round
SERVER_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class ImportedModel:
    """A model with what TVM can compile of it."""

    source: SourceModel
    compiler: ModelCompiler | None  # None if TVM cannot compile it
    note: str
    goal_s: float | None
    cost: CompileCost  # of importing it and compiling it untuned

    def surveyed(self, rounds: Sequence[TuningRound]) -> SurveyedModel:
        """Return the model for the survey, with its rounds in earlier runs of the same compilation."""
        if self.compiler is None:
            raise ValueError(f"{self.source.name} has no compiler")
        own = [ended for ended in rounds if ended.model == self.source.name]
        spent = self.cost + own[-1].own if own else self.cost
        return SurveyedModel(self.compiler, own, self.goal_s, spent=spent)


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
            self._check_goals()
            if options.remote is not None:
                _check_server(options.remote)
            if not runner.can_run:
                imported = self._import(runner, PhaseCosts())
                return [write_artifacts(self._cross_compile(model, store), self.home) for model in imported]
            with self.home.locks.measurement():
                artifacts, finished = self._tune(runner, store)
            results = [write_artifacts(artifact, self.home) for artifact in artifacts]
            store.save_compilation(finished)
            return results

    def _import(self, runner: CandidateRunner, costs: PhaseCosts) -> list[ImportedModel]:
        """Return what TVM can compile of each model."""
        self.on_event("importing the models")
        imported = []
        for source, goal_s in zip(self.sources, self.goals_s, strict=True):
            before = costs.total
            part = find_compilable_part(source, runner, self.options.graph_level, self.folder, costs)
            imported.append(ImportedModel(source, part.compiler, part.note, goal_s, costs.total - before))
        return imported

    def _tune(self, runner: CandidateRunner, store: Store) -> tuple[list[CompiledArtifacts], CompilationRecord]:
        """Tune what TVM can compile and compare the runtimes of all models."""
        started = time.monotonic()
        record = self._find_or_create_record(store)
        costs = PhaseCosts(record.spent if record.spent.seconds else None)
        imported = self._import(runner, costs)
        compilers = [model.compiler for model in imported if model.compiler is not None]
        history = self._history(store, {operator.key for compiler in compilers for operator, _ in compiler.operators})
        elapsed_s = record.elapsed_s + time.monotonic() - started
        tuners = self._tuners(compilers, runner, store, costs, history, elapsed_s)
        _restore_counts(tuners, record.rounds)
        surveyed = {model.source.name: model.surveyed(record.rounds) for model in imported if model.compiler}
        survey = SurveyTuner(
            list(surveyed.values()), tuners, self.budget, costs, self.folder,
            cold_filter=ColdFilter(self.options.seed) if self.options.cold_filter else None, history=history,
            candidates_per_round=self.options.candidates_per_round, is_round_robin=not self.options.survey,
            earlier_s=record.elapsed_s, started=started,
            round_cost=sum((model.cost for model in imported), start=CompileCost()),
        )  # fmt: skip
        saved_at = started

        def save(*rounds: TuningRound) -> None:
            nonlocal record, saved_at
            saved_at = time.monotonic()
            rounds = (*record.rounds, *rounds)
            record = replace(record, rounds=rounds, elapsed_s=survey.elapsed_s, spent=costs.total)
            store.save_compilation(record)

        def on_event(event: CompileEvent) -> None:
            if isinstance(event, ScheduleCandidate):
                store.save_candidates([event])
                if time.monotonic() - saved_at > MIN_SAVE_INTERVAL_S:
                    save()  # a round that is killed has its cost, too
            elif isinstance(event, TuningRound):
                save(event)
            self.on_event(event)

        survey.on_event = on_event
        try:
            reason = survey.run() if surveyed else "TVM can compile no model"
        except BaseException:
            save()
            raise
        artifacts = [self._finish(model, surveyed.get(model.source.name), survey, reason) for model in imported]
        finished = replace(record, state=StudyState.DONE, elapsed_s=survey.elapsed_s, spent=costs.total, reason=reason)
        return _with_shared_cost(artifacts, costs.total), finished

    def _finish(
        self, imported: ImportedModel, model: SurveyedModel | None, survey: SurveyTuner, reason: str
    ) -> CompiledArtifacts:
        """Choose the fastest library of a model, if TVM can compile it, and compare the runtimes."""
        source, note, costs, best = imported.source, imported.note, survey.costs, None
        before = costs.total
        if model is not None:
            self.on_event(f"choosing the fastest library of {source.name}")
            try:
                # A resumed compilation whose budget was exhausted before has not compiled anything in this process.
                best = model.compiler.settle(costs, survey.is_exhausted) or model.compiler.measure(
                    survey.best_proposals, self.folder, costs
                )
            except ModelError as error:
                note = f"TVM cannot serve {source.origin}: {error}"
        own = (imported.cost if model is None else model.spent) + (costs.total - before)
        self.on_event(f"comparing runtimes for {source.name}")
        time_compiled = None
        if model is not None and best is not None:
            file, compiler = best.file, model.compiler
            time_compiled = lambda: compiler.time_library(file).latency_s  # noqa: E731
        point = ServingPoint(self.options.batch_size, self.target.cores)
        is_here = self.options.remote is None
        here, pairings = host(self.home.devices), self.home.pairings
        with nullcontext() if is_here else open_session(self.device, here, pairings=pairings) as session:
            comparison = compare_runtimes(time_compiled, source, session, self.folder, point, note)
        levels: tuple[GraphLevelResult, ...] = ()
        if self.options.compare_levels and model is not None:
            self.on_event("comparing graph optimization levels")
            levels = compare_graph_levels(model.compiler, self.folder, costs)
        result = replace(
            self._builder.empty_result(source, None if model is None else model.compiler),
            rounds=() if model is None else tuple(model.rounds),
            histories=() if model is None else _histories(model.compiler, survey.tuners),
            runtimes=comparison.runtimes,
            recommended=comparison.recommended,
            why_stopped=(model.why_ended or reason) if model is not None and best is not None else note,
            error=float("nan") if best is None else best.error,
            spent=own,
            levels=levels,
        )
        return self._builder.artifacts(
            result, source, None if best is None else best.file, None if model is None else model.compiler.parts,
            (note,) if note else (), comparison.int8,
        )  # fmt: skip

    def _cross_compile(self, imported: ImportedModel, store: Store) -> CompiledArtifacts:
        """Compile for a device that cannot be measured from here, with the best candidates in the store."""
        source, compiler = imported.source, imported.compiler
        if compiler is None:
            result = replace(self._builder.empty_result(source, None), why_stopped=imported.note)
            return self._builder.artifacts(result, source, None, None, (imported.note,))
        tuners = self._tuners([compiler], compiler.runner, store)
        best = {key: tuner.best[1] for key, tuner in tuners.items() if tuner.best is not None}
        self.on_event(f"compiling {source.name} for {self.target.name}")
        file = self.folder / compiler.file_name(best)
        if best:
            compiler.compile(best, file)
        note = (
            f"{len(best)} of {len(tuners)} operators tuned; not run here: to tune it, give the address of a TVM server "
            "on the device (remote)"
        )
        result = replace(
            self._builder.empty_result(source, compiler), histories=_histories(compiler, tuners), why_stopped=note
        )
        return self._builder.artifacts(result, source, file, None, (note, *filter(None, (imported.note,))))

    def _tuners(
        self,
        compilers: Sequence[ModelCompiler],
        runner: CandidateRunner,
        store: Store,
        costs: PhaseCosts | None = None,
        history: Mapping[Operator, Sequence[ScheduleCandidate]] | None = None,
        elapsed_s: float = 0.0,
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
            spent = costs.total
            with costs.phase("update") as cost_so_far:
                pretrain(
                    model, tuned.values(), others, store.loops, self.target,
                    lambda: share_of_rest(self.budget, spent, elapsed_s, cost_so_far()) < UPDATE_SHARE,
                )  # fmt: skip
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

    @property
    def _builder(self) -> ArtifactBuilder:
        return ArtifactBuilder(self.device, self.target, self.options)

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

    def _check_goals(self) -> None:
        """Raise BudgetError for a goal below the time that the device needs for the arithmetic alone."""
        flops_per_s = PEAK_FACTOR * self.device.gflops * 1e9 * self.target.cores
        for source, goal_s in zip(self.sources, self.goals_s, strict=True):
            if goal_s is None or not flops_per_s > 0:
                continue
            flops = sum(cost.flops for cost in operator_costs(source.file, self.options.batch_size))
            if flops / flops_per_s > goal_s:
                raise BudgetError(
                    f"a goal of {duration(goal_s)} cannot be met: {source.name} computes "
                    f"{number(flops / 1e6)} MFLOP, which take at least {duration(flops / flops_per_s)} "
                    f"on {self.device.name}"
                )


def _with_shared_cost(artifacts: Sequence[CompiledArtifacts], total: CompileCost) -> list[CompiledArtifacts]:
    """Add to the own cost of each model that was tuned its share of what was spent for all of them."""
    results = [artifact.result for artifact in artifacts]
    own = sum((result.spent for result in results), start=CompileCost())
    is_sharing = [bool(result.histories) or not any(one.histories for one in results) for result in results]
    share = (total - own).scaled(1 / sum(is_sharing))
    return [
        replace(artifact, result=replace(artifact.result, spent=artifact.result.spent + share)) if shares else artifact
        for artifact, shares in zip(artifacts, is_sharing)
    ]


def _histories(compiler: ModelCompiler, tuners: Mapping[str, OperatorTuner]) -> tuple[CandidateHistory, ...]:
    return tuple(tuners[operator.key].history for operator, _ in compiler.operators)


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
    """Count candidates of an interrupted compilation's earlier runs as its own, not as recalled from another.

    The operators differ if TVM failed at another graph level then.
    """
    for ended in rounds:
        for state in ended.operators:
            tuner = tuners.get(state.operator.key)
            if tuner is None:
                continue
            tuner.filtered = max(tuner.filtered, state.filtered)
            if ended.number == 0:
                tuner.recalled = min(state.tried, len(tuner.candidates))
