"""Models and a device -> kernels compiled for it, within a budget; interrupted or killed, it goes on where it was.

found = compile("deploy/", device="host", goal="2ms", minutes=20)
found.runtimes, found.recommended, found.rounds, found.spent
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onefold import deploy
from onefold.candidates import Candidate, Compiled, Effort, Operator, Round
from onefold.device import Device, open_session
from onefold.device.catalogue import HOST
from onefold.device.host import find, host
from onefold.device.lease import alone
from onefold.errors import BudgetError, InputError
from onefold.kernels.bench import Bench
from onefold.kernels.cold_filter import ColdFilter
from onefold.kernels.cost_model import CostModel
from onefold.kernels.graph import USUAL_LEVEL
from onefold.kernels.ledger import Ledger
from onefold.kernels.levels import compare_levels
from onefold.kernels.library import ARCHIVE, LIBRARY, Library, write_library
from onefold.kernels.strategies import check as check_strategy
from onefold.kernels.strategies import needs_model
from onefold.kernels.survey import BATCH, Survey, Surveyed, Told
from onefold.kernels.targets import Target, target_of
from onefold.kernels.toolchain import check_linker, tvm
from onefold.kernels.tuning import OperatorTuning
from onefold.kernels.whole import WholeModel
from onefold.quantities import joules_of, price_of, seconds_of
from onefold.records import StudyState, to_json
from onefold.serving import ServingPoint
from onefold.store.store import CompilationRecord, Store
from onefold.study.home import Home
from onefold.study.models import Given, Opened, opened
from onefold.study.runtimes import ORT_INT8, race

PEAK = 2.0  # by how much kernels may exceed what a device's figures say that software reaches
REPORT = "kernels.html"


@dataclass(frozen=True)
class Options:
    """How to compile; what decides whether a compilation is the same as an interrupted one."""

    level: int = USUAL_LEVEL
    strategy: str = "evolutionary"
    is_filtering: bool = True
    is_surveying: bool = True
    batch: int = BATCH
    batch_size: int = 1
    threads: int | None = None
    processor: str | None = None
    remote: str | None = None
    seed: int = 0


def compile(
    model: Given | Sequence[Given],
    *more: Given,
    device: str | Device = HOST,
    goal: str | float | None = None,
    minutes: float | None = None,
    energy: str | float | None = None,
    price: str | float | None = None,
    money: float | None = None,
    candidates: int | None = None,
    falls: float | None = -0.25,
    level: int = USUAL_LEVEL,
    levels: bool = False,
    strategy: str = "evolutionary",
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
    tell: Callable[[Told], None] = lambda _: None,
) -> Any:
    """Compiles the kernels of one model, or of several within one budget, and measures them as they will be served.

    A model is a deployment folder, an ONNX file, a workload's file or name, or a torch module with `samples` of its
    inputs; with 32 of them or more (also as the path of an .npz), a form with integers is one of the runtimes. `goal`
    is a latency such as "2ms". Tuning ends at the goal, when `minutes`, `energy` ("50kJ"), `money` (at a `price` such
    as "0.30/kWh") or `candidates` are used up, or when the gain per second has fallen by `falls` twice in a row.
    The library is written into the deployment folder; of other models into `save`. Returns Compiled, or a list of them.
    """
    several = list(model) if isinstance(model, (list, tuple)) else [model]
    effort = Effort(
        goal_s=None if goal is None else seconds_of(goal),
        seconds=None if minutes is None else 60.0 * minutes,
        joules=None if energy is None else joules_of(energy),
        candidates=candidates,
        money=money,
        price_per_kwh=None if price is None else price_of(price),
        falls=falls,
    )
    effort.check()
    options = Options(level, strategy, filter, survey, batch, batch_size, threads, processor, remote, seed)
    place = Home(home)
    target = device if isinstance(device, Device) else find(device, place.devices)
    with tempfile.TemporaryDirectory(prefix="onefold-") as folder:
        models = opened([*several, *more], samples, Path(folder), None if save is None else Path(save))
        work = Compilation(models, target, effort, options, place, Path(folder), tell)
        found = work.run(levels=levels)
    return found[0] if len(found) == 1 else found


@dataclass
class Compilation:
    """Some models being compiled for a device."""

    models: Sequence[Opened]
    device: Device
    effort: Effort
    options: Options
    home: Home
    folder: Path
    tell: Callable[[Told], None] = lambda _: None
    target: Target = field(init=False)

    def run(self, *, levels: bool = False) -> list[Compiled]:
        """Tunes, compares the runtimes, writes the libraries."""
        check_strategy(self.options.strategy)
        tvm()
        check_linker()
        is_host = self.device.name == HOST
        options = self.options
        self.target = target_of(self.device, options.threads, is_host=is_host, processor=options.processor)
        with Bench(self.target, remote=options.remote) as bench, closing(self.home.store()) as store:
            self.tell("reading the models")
            wholes = [
                WholeModel(one.name, one.file, one.inputs, one.answers, bench, options.level) for one in self.models
            ]
            self._check_goal(wholes)
            if not bench.can_run:
                return [self._crossed(one, whole, bench, store) for one, whole in zip(self.models, wholes)]
            with alone(self.home.lease):
                return self._tuned(wholes, bench, store, levels=levels)

    def _tuned(self, wholes: list[WholeModel], bench: Bench, store: Store, *, levels: bool) -> list[Compiled]:
        record = self._record(store)
        ledger = Ledger(record.spent if record.rounds else None)
        tunings = self._tunings(wholes, bench, store)
        surveyed = [Surveyed(one, [r for r in record.rounds if r.model == one.name]) for one in wholes]
        survey = Survey(
            surveyed, tunings, self.effort, ledger, self.folder,
            cold=ColdFilter(self.options.seed) if self.options.is_filtering else None,
            history=self._history(store, tunings), batch=self.options.batch, in_turn=not self.options.is_surveying,
            elapsed_s=record.elapsed_s,
        )  # fmt: skip

        def tell(what: Told) -> None:
            nonlocal record
            if isinstance(what, Candidate):
                store.save_candidates([what])
            elif isinstance(what, Round):
                record = replace(record, rounds=(*record.rounds, what), elapsed_s=survey.now_s, spent=ledger.spent)
                store.save_compilation(record)
            self.tell(what)

        survey.tell = tell
        why = survey.run()
        found = [self._handed_over(one, model, survey, why, levels=levels) for one, model in zip(self.models, surveyed)]
        done = replace(record, state=StudyState.DONE, elapsed_s=survey.now_s, spent=ledger.spent, reason=why)
        store.save_compilation(done)
        return found

    def _handed_over(self, opened: Opened, model: Surveyed, survey: Survey, why: str, *, levels: bool) -> Compiled:
        """Times the runtimes beside each other and writes what there is to write."""
        best = model.whole.best
        if best is None:
            raise InputError(f"{opened.name} was never compiled: the budget was used up before")
        self.tell(f"comparing runtimes for {opened.name}")
        options, cores = self.options, self.target.cores
        here = host(self.home.devices)
        with open_session(self.device, here) as session:
            point = ServingPoint(options.batch_size, cores)
            found = race(model.whole, best.file, opened.file, session, self.folder, point, opened.many)
        if levels:
            self.tell("comparing levels of graph optimisation")
        compiled = Compiled(
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
        about = self._about(opened, found.runtimes, found.recommended, LIBRARY)
        int8 = found.int8 if found.recommended == ORT_INT8 else None
        return self._written(opened, compiled, best.file, about, int8)

    def _crossed(self, opened: Opened, whole: WholeModel, bench: Bench, store: Store) -> Compiled:
        """For a device that is not here: the library, with the best candidates that are known for it."""
        tunings = self._tunings([whole], bench, store)
        best = {key: one.best[1] for key, one in tunings.items() if one.best is not None}
        self.tell(f"compiling {opened.name} for {self.target.name}")
        file = whole.compiled(best, self.folder / f"{opened.name}.tar")
        note = f"{len(best)} of {len(tunings)} operators tuned; not run here: tune it with --remote HOST:PORT"
        about = replace(self._about(opened, (), "", ARCHIVE), notes=(note,))
        compiled = Compiled(
            opened.name, self.device.name, self.target.name, self.target.cores, self.options.level,
            self.options.strategy, (), tuple(one.history for one in tunings.values()), (), "", note, float("nan"),
        )  # fmt: skip
        return self._written(opened, compiled, file, about, None)

    def _about(self, opened: Opened, runtimes: Any, recommended: str, file: str) -> Library:
        kinds = {name: str(array.dtype) for name, array in zip(opened.names, opened.inputs)}
        return Library(
            self.device.name, self.target.name, self.target.cores, self.options.batch_size, kinds, tuple(runtimes),
            recommended, file,
        )  # fmt: skip

    def _written(
        self, opened: Opened, compiled: Compiled, library: Path, about: Library, int8: Path | None
    ) -> Compiled:
        from onefold.report import kernels as report

        if opened.folder is None:
            return compiled
        if not (opened.folder / deploy.MODEL).is_file():
            opened.make_folder()
        write_library(opened.folder, library, about, int8)
        found = replace(compiled, folder=str(opened.folder))
        (opened.folder / REPORT).write_text(report.page(found), encoding="utf-8")
        return found

    def _tunings(self, wholes: Sequence[WholeModel], bench: Bench, store: Store) -> dict[str, OperatorTuning]:
        """One for each operator, also where models share it, with what earlier compilations measured."""
        options, machine = self.options, self._machine
        model = CostModel(self.target.cores) if needs_model(options.strategy) and bench.can_run else None
        search = options.strategy if model is not None or not needs_model(options.strategy) else "random"
        found: dict[str, OperatorTuning] = {}
        for whole in wholes:
            for at, (operator, module) in enumerate(whole.operators):
                if operator.key not in found:
                    tuning = OperatorTuning(operator, module, bench, search, model, machine, options.seed + at)
                    known = store.candidates(operator.key, self.target.name)
                    tuning.recall([
                        one for one in known if one.machine == machine and one.threads == self.target.cores
                    ])  # fmt: skip
                    store.save_operator(operator)
                    found[operator.key] = tuning
        return found

    def _history(self, store: Store, tunings: Mapping[str, Any]) -> dict[Operator, list[Candidate]]:
        """Candidates of other operators and devices: the filter learns from them."""
        operators = store.operators()
        found: dict[Operator, list[Candidate]] = {}
        for one in store.candidates():
            if one.operator in operators and one.operator not in tunings:
                found.setdefault(operators[one.operator], []).append(one)
        return found

    @property
    def _machine(self) -> str:
        """Whose latencies they are: of this machine, or of the one that a TVM server runs on."""
        return self.options.remote or f"{self.target.processor} {host(self.home.devices).cores} cores"

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

    def _check_goal(self, wholes: Sequence[WholeModel]) -> None:
        if self.effort.goal_s is None:
            return
        speed = PEAK * self.device.gflops * 1e9 * self.target.cores
        for whole in wholes:
            flops = sum(one.flops * one.weight for one, _ in whole.operators)
            if speed > 0 and flops / speed > self.effort.goal_s:
                raise BudgetError(
                    f"a goal of {self.effort.goal_s * 1e3:.3g} ms cannot be met: {whole.name} computes "
                    f"{flops / 1e6:.3g} MFLOP, which take {flops / speed * 1e3:.3g} ms at least on {self.device.name}"
                )
