"""Models and a device -> kernels compiled for it, within a budget; interrupted or killed, it goes on where it was.

found = compile("deploy/", device="host", goal="2ms", minutes=20)
found.runtimes, found.recommended, found.rounds, found.spent
"""

from __future__ import annotations

import hashlib
import json
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from onefold.device import Device, open_session
from onefold.device.catalogue import HOST
from onefold.device.host import find_device, host
from onefold.kernels.bench import CLOCK, Bench
from onefold.kernels.cold_filter import ColdFilter
from onefold.kernels.cost_model import CostModel
from onefold.kernels.cost_model_transfer import packed, teach
from onefold.kernels.graph import LEVELS, USUAL_LEVEL
from onefold.kernels.graph_levels import compare_levels
from onefold.kernels.kernel_library import ARCHIVE, LIBRARY, ORT, LibraryManifest, write_library
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.operator_tuner import OperatorTuner
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.runtime_comparison import race
from onefold.kernels.schedule_space import Proposal
from onefold.kernels.source_models import Given, SourceModel, opened
from onefold.kernels.strategies import check as check_strategy
from onefold.kernels.strategies import needs_model
from onefold.kernels.survey_tuner import BATCH, CompileEvent, SurveyedModel, SurveyTuner
from onefold.kernels.targets import Target, target_of
from onefold.kernels.toolchain import check_linker, tvm
from onefold.store import CompilationRecord, Store
from onefold.store.home import Home
from onefold.vocabulary.errors import BudgetError, InputError
from onefold.vocabulary.kernels import (
    CompileBudget,
    CompileResult,
    Operator,
    RuntimeLatency,
    ScheduleCandidate,
    TuningRound,
)
from onefold.vocabulary.quantities import parse_joules, parse_price, parse_seconds
from onefold.vocabulary.records import StudyState, to_json
from onefold.vocabulary.serving import ServingPoint

PEAK = 2.0  # by how much kernels may exceed what a device's figures say that software reaches
REPORT = "kernels.html"
SERVER_S = 10.0  # that a server may take to answer


@dataclass(frozen=True)
class CompileOptions:
    """How to compile; what decides whether a compilation is the same as an interrupted one."""

    level: int = USUAL_LEVEL
    strategy: str = "breeding"
    is_filtering: bool = True
    is_surveying: bool = True
    batch: int = BATCH
    batch_size: int = 1
    threads: int | None = None
    processor: str | None = None
    remote: str | None = None
    seed: int = 0

    def check(self) -> None:
        """Tells the first mistake, before anything is opened."""
        check_strategy(self.strategy)
        if self.level not in LEVELS:
            raise InputError(f"levels of graph optimisation are {LEVELS[0]} to {LEVELS[-1]}, but got {self.level}")
        for name in ("batch", "batch_size", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} of a compilation must be 1 or more, but got {value}")


def compile(
    model: Given | Sequence[Given],
    *more: Given,
    device: str | Device = HOST,
    goal: str | float | Sequence[str | float | None] | None = None,
    minutes: float | None = None,
    energy: str | float | None = None,
    price: str | float | None = None,
    money: float | None = None,
    candidates: int | None = None,
    falls: float | None = -0.25,
    level: int = USUAL_LEVEL,
    levels: bool = False,
    strategy: str = "breeding",
    filter: bool = True,
    survey: bool = True,
    batch: int = BATCH,
    batch_size: int = 1,
    threads: int | None = None,
    processor: str | None = None,
    remote: str | None = None,
    samples: Sequence[Any] | str | Path | None = None,
    save: str | Path | None = None,
    home: str | Path | None = None,
    seed: int = 0,
    tell: Callable[[CompileEvent], None] = lambda _: None,
) -> Any:
    """Compiles the kernels of one model, or of several within one budget, and measures them as they will be served.

    A model is a deployment folder, an ONNX file, a workload's file or name, or a torch module with `samples` of its
    inputs; with 32 of them or more (also as the path of an .npz), a form with integers is one of the runtimes. `goal`
    is a latency such as "2ms", or a list with one for each model. Tuning ends at the goal, when `minutes`, `energy`
    ("50kJ"), `money` (at a `price` such as "0.30/kWh") or `candidates` are used up, or when the gain per second has
    fallen by `falls` twice in a row. The library is written into the deployment folder; of other models into `save`.
    Returns Compiled, or a list of them.
    """
    several = [*(model if isinstance(model, (list, tuple)) else [model]), *more]
    goals = _goals(goal, len(several))
    effort = CompileBudget(
        minutes=minutes,
        joules=None if energy is None else parse_joules(energy),
        candidates=candidates,
        money=money,
        price_per_kwh=None if price is None else parse_price(price),
        falls=falls,
    )
    effort.check()
    options = CompileOptions(level, strategy, filter, survey, batch, batch_size, threads, processor, remote, seed)
    options.check()
    place = Home(home)
    target = device if isinstance(device, Device) else find_device(device, place.devices)
    with tempfile.TemporaryDirectory(prefix="onefold-") as folder:
        place_of = None if save is None else Path(save)
        models = opened(several, samples, Path(folder), place_of, batch_size)
        work = Compilation(models, target, effort, options, place, Path(folder), tell, goals)
        found = work.run(levels=levels)
    return found[0] if len(found) == 1 else found


@dataclass(frozen=True)
class CompiledArtifacts:
    """What is to be written into the folder of a model."""

    opened: SourceModel
    compiled: CompileResult
    library: Path
    about: LibraryManifest
    int8: Path | None = None


@dataclass
class Compilation:
    """Some models being compiled for a device."""

    models: Sequence[SourceModel]
    device: Device
    effort: CompileBudget
    options: CompileOptions
    home: Home
    folder: Path
    tell: Callable[[CompileEvent], None] = lambda _: None
    goals: Sequence[float | None] = ()  # of the models, in their order
    target: Target = field(init=False)

    def run(self, *, levels: bool = False) -> list[CompileResult]:
        """Tunes, compares the runtimes, writes the libraries."""
        tvm()
        check_linker()
        is_host = self.device.name == HOST
        options = self.options
        self.target = target_of(self.device, options.threads, is_host=is_host, processor=options.processor)
        with Bench(self.target, remote=options.remote) as bench, closing(self.home.store()) as store:
            if options.remote is not None:
                _check_server(options.remote)
            self.tell("reading the models")
            wholes = [
                ModelCompiler(one.name, one.file, one.inputs, one.answers, bench, options.level) for one in self.models
            ]
            self._check_goal(wholes)
            if not bench.can_run:
                made = [self._crossed(one, whole, bench, store) for one, whole in zip(self.models, wholes)]
                return [self._written(one) for one in made]
            with self.home.locks.measurement():
                made, done = self._tuned(wholes, bench, store, levels=levels)
            found = [self._written(one) for one in made]
            store.save_compilation(done)
            return found

    def _tuned(
        self, wholes: list[ModelCompiler], bench: Bench, store: Store, *, levels: bool
    ) -> tuple[list[CompiledArtifacts], CompilationRecord]:
        began = time.monotonic()
        record = self._record(store)
        ledger = PhaseCosts(record.spent if record.rounds else None)
        history = self._history(store, {one.key for whole in wholes for one, _ in whole.operators})
        tunings = self._tunings(wholes, bench, store, ledger, history)
        _go_on(tunings, record.rounds)
        surveyed = [
            SurveyedModel(one, [r for r in record.rounds if r.model == one.name], goal)
            for one, goal in zip(wholes, self.goals or [None] * len(wholes), strict=True)
        ]
        survey = SurveyTuner(
            surveyed, tunings, self.effort, ledger, self.folder,
            cold=ColdFilter(self.options.seed) if self.options.is_filtering else None,
            history=history, batch=self.options.batch, in_turn=not self.options.is_surveying,
            elapsed_s=record.elapsed_s, began=began,
        )  # fmt: skip

        def tell(what: CompileEvent) -> None:
            nonlocal record
            if isinstance(what, ScheduleCandidate):
                store.save_candidates([what])
            elif isinstance(what, TuningRound):
                record = replace(record, rounds=(*record.rounds, what), elapsed_s=survey.now_s, spent=ledger.spent)
                store.save_compilation(record)
            self.tell(what)

        survey.tell = tell
        why = survey.run()
        made = [self._raced(one, model, survey, why, levels=levels) for one, model in zip(self.models, surveyed)]
        return made, replace(record, state=StudyState.DONE, elapsed_s=survey.now_s, spent=ledger.spent, reason=why)

    def _raced(
        self, opened: SourceModel, model: SurveyedModel, survey: SurveyTuner, why: str, *, levels: bool
    ) -> CompiledArtifacts:
        """The runtimes, timed beside each other."""
        options, cores = self.options, self.target.cores
        self.tell(f"choosing the fastest library of {opened.name}")
        # One that was interrupted when its budget was used up has been compiled before, but not by this process.
        best = model.whole.settled(survey.ledger) or model.whole.measured(
            _best(survey.tunings), self.folder, survey.ledger
        )
        self.tell(f"comparing runtimes for {opened.name}")
        here = host(self.home.devices)
        with open_session(self.device, here) as session:
            point = ServingPoint(options.batch_size, cores)
            found = race(model.whole, best.file, opened, session, self.folder, point)
        if levels:
            self.tell("comparing levels of graph optimisation")
        compiled = CompileResult(
            model=opened.name,
            device=self.device.name,
            target=self.target.name,
            threads=cores,
            level=options.level,
            strategy=options.strategy,
            rounds=tuple(model.rounds),
            histories=tuple(survey.tunings[one.key].history for one, _ in model.whole.operators),
            runtimes=found.runtimes,
            recommended=found.recommended,
            why_stopped=model.ended or why,
            error=best.error,
            spent=survey.ledger.spent,
            levels=compare_levels(model.whole, self.folder, survey.ledger) if levels else (),
        )
        about = self._about(opened, found.runtimes, found.recommended, best.file)
        return CompiledArtifacts(opened, compiled, best.file, about, found.int8)

    def _crossed(self, opened: SourceModel, whole: ModelCompiler, bench: Bench, store: Store) -> CompiledArtifacts:
        """For a device that is not here: the library, with the best candidates that are known for it."""
        tunings = self._tunings([whole], bench, store)
        best = _best(tunings)
        self.tell(f"compiling {opened.name} for {self.target.name}")
        file = whole.compiled(best, self.folder / f"{opened.name}.tar")
        note = f"{len(best)} of {len(tunings)} operators tuned; not run here: tune it with --remote HOST:PORT"
        about = replace(self._about(opened, (), ORT, file), notes=(note,))
        compiled = CompileResult(
            opened.name, self.device.name, self.target.name, self.target.cores, self.options.level,
            self.options.strategy, (), tuple(one.history for one in tunings.values()), (), "", note, float("nan"),
        )  # fmt: skip
        return CompiledArtifacts(opened, compiled, file, about)

    def _about(
        self, opened: SourceModel, runtimes: tuple[RuntimeLatency, ...], recommended: str, library: Path
    ) -> LibraryManifest:
        file = ARCHIVE if library.suffix == ".tar" else LIBRARY
        kinds = {name: str(array.dtype) for name, array in zip(opened.names, opened.inputs)}
        return LibraryManifest(
            self.device.name, self.target.name, self.target.cores, self.options.batch_size, kinds, runtimes,
            recommended, file, model=opened.digest,
        )  # fmt: skip

    def _written(self, made: CompiledArtifacts) -> CompileResult:
        from onefold.report.kernels import KernelReport

        folder = made.opened.folder
        if folder is None:
            return made.compiled
        made.opened.make_folder(self.home.path)
        write_library(folder, made.library, made.about, made.int8)
        found = replace(made.compiled, folder=str(folder))
        (folder / REPORT).write_text(KernelReport([found]).as_html(), encoding="utf-8")
        return found

    def _tunings(
        self,
        wholes: Sequence[ModelCompiler],
        bench: Bench,
        store: Store,
        ledger: PhaseCosts | None = None,
        history: Mapping[Operator, Sequence[ScheduleCandidate]] | None = None,
    ) -> dict[str, OperatorTuner]:
        """One for each operator, also where models share it, with what earlier compilations measured."""
        options, machine = self.options, self._machine
        model = CostModel(self.target.cores) if needs_model(options.strategy) and bench.can_run else None
        search = options.strategy if model is not None or not needs_model(options.strategy) else "random"
        if model is not None and ledger is not None and history:
            self.tell("learning from earlier compilations")
            mine = {one.key: one for whole in wholes for one, _ in whole.operators}
            others = [(operator, known) for operator, known in history.items() if operator.key not in mine]
            with ledger.phase("update"):
                teach(model, mine.values(), others, store.loops, self.target)
        found: dict[str, OperatorTuner] = {}
        with nullcontext() if ledger is None else ledger.phase("search"):
            for at, (operator, module) in enumerate(pair for whole in wholes for pair in whole.operators):
                if operator.key not in found:
                    tuning = OperatorTuner(operator, module, bench, search, model, machine, options.seed + at)
                    known = store.candidates(operator.key, self.target.name)
                    tuning.recall([one for one in known if self._is_ours(one)])
                    store.save_operator(operator, packed(module))
                    found[operator.key] = tuning
        return found

    def _history(self, store: Store, mine: set[str]) -> dict[Operator, list[ScheduleCandidate]]:
        """Candidates of other operators, or measured elsewhere: by operator and by where, which is in its name."""
        operators = store.operators()
        found: dict[Operator, list[ScheduleCandidate]] = {}
        for one in store.candidates():
            if one.operator in operators and not (one.operator in mine and self._is_ours(one)):
                where = "" if self._is_ours(one) else f" on {one.machine}, {one.target} x{one.threads}"
                operator = operators[one.operator]
                found.setdefault(replace(operator, name=operator.name + where), []).append(one)
        return found

    def _is_ours(self, candidate: ScheduleCandidate) -> bool:
        """Whether it was measured under the same conditions."""
        same = (candidate.target, candidate.threads) == (self.target.name, self.target.cores)
        return same and self._machine in ("", candidate.machine)

    @cached_property
    def _machine(self) -> str:
        """Whose latencies they are: of this machine, or of the one that a TVM server runs on; empty for any."""
        if self.options.remote is not None or not self.target.is_here:
            return self.options.remote or ""
        return f"{self.target.processor} {host(self.home.devices).cores} cores, clock {CLOCK}"

    def _record(self, store: Store) -> CompilationRecord:
        """The interrupted one of the same models and options, or a new one."""
        spec = {
            "models": {one.name: one.digest for one in self.models},
            "target": self.target.name, "threads": self.target.cores, "device": self.device.name,
            "options": to_json(self.options),
        }  # fmt: skip
        same = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
        for one in store.compilations():
            if one.key.startswith(same) and one.state == StudyState.RUNNING:
                self.tell(f"going on with a compilation that was interrupted after {one.elapsed_s:.0f} s")
                return one
        now = datetime.now(UTC)
        return CompilationRecord(f"{same}-{now:%Y%m%d%H%M%S%f}", now.isoformat(), StudyState.RUNNING, spec)

    def _check_goal(self, wholes: Sequence[ModelCompiler]) -> None:
        speed = PEAK * self.device.gflops * 1e9 * self.target.cores
        for whole, goal in zip(wholes, self.goals):
            flops = sum(one.flops * one.weight for one, _ in whole.operators)
            if goal is not None and speed > 0 and flops / speed > goal:
                raise BudgetError(
                    f"a goal of {goal * 1e3:.3g} ms cannot be met: {whole.name} computes "
                    f"{flops / 1e6:.3g} MFLOP, which take {flops / speed * 1e3:.3g} ms at least on {self.device.name}"
                )


def _goals(goal: str | float | Sequence[str | float | None] | None, count: int) -> list[float | None]:
    """One for each of so many models."""
    given = [goal] * count if goal is None or isinstance(goal, (str, float, int)) else list(goal)
    if len(given) != count:
        models = f"{count} model{'s' * (count != 1)}"
        raise InputError(f"{len(given)} goals were given for {models}: give one for all, or one for each")
    goals = [None if one is None else parse_seconds(one) for one in given]
    for one in goals:
        if one is not None and not one > 0:
            raise BudgetError(f"a goal must be above 0, but got {one:g} s")
    return goals


def _check_server(remote: str) -> None:
    name, _, port = remote.rpartition(":")
    try:
        socket.create_connection((name, int(port)), timeout=SERVER_S).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no TVM server answers at {remote} ({error}); start one on the device: "
            f"python -m tvm.exec.rpc_server --host 0.0.0.0 --port {port}"
        ) from error


def _best(tunings: Mapping[str, OperatorTuner]) -> dict[str, Proposal]:
    return {key: one.best[1] for key, one in tunings.items() if one.best is not None}


def _go_on(tunings: Mapping[str, OperatorTuner], rounds: Sequence[TuningRound]) -> None:
    """Counts what earlier sittings measured as measured by this compilation, and not as recalled from another."""
    for one in rounds:
        for state in one.operators:
            tuning = tunings[state.operator.key]
            tuning.filtered = max(tuning.filtered, state.filtered)
            if one.number == 0:
                tuning.recalled = min(state.tried, len(tuning.candidates))
