"""The composition: a workload in, a tuned and trained model out.

result = Study(Digits(), budget=Budget(trials=20)).run()
result = tune(Digits(), trials=20)                       # the same in one call
result = Study.open("digits-1").extend(trials=10).run()  # later
"""

from __future__ import annotations

import inspect
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from onefold.device import Device
from onefold.engine import Call, Engine, InlineEngine, ProcessEngine, answer
from onefold.search import Algorithm, Search
from onefold.serving.options import ServingOptions
from onefold.serving.space import ServingSpace
from onefold.serving.trial_measurement import TrialMeasurement
from onefold.serving.tuner import PointSearchOptions
from onefold.store import Store, StudyRecord
from onefold.store.home import Home, check_name, free_name
from onefold.study import parallelism
from onefold.study.coordinator import Coordinator
from onefold.study.events import Listener, News, Snapshot
from onefold.study.handover import Ending
from onefold.study.interrupts import Interrupts
from onefold.study.result import Result
from onefold.study.serving_options import with_devices
from onefold.study.spec import EngineName, Spec, Strategy, Way
from onefold.study.strategies import with_strategy
from onefold.study.tunable import Given, Subject
from onefold.study.warm_start import observations
from onefold.training import calls
from onefold.training.knob_memory import open_clusterer
from onefold.vocabulary.errors import BudgetError, InputError, OnefoldError, WorkloadError, suggestion
from onefold.vocabulary.knobs import KnobOptions, KnobRecord
from onefold.vocabulary.objective import Budget, Objective
from onefold.vocabulary.records import Config, Measurement, StudyState, Trial, Value, to_json
from onefold.vocabulary.serving import OptimizeFor
from onefold.vocabulary.space import Space
from onefold.vocabulary.workload import reason_against
from onefold.vocabulary.workload_reference import is_loading

log = logging.getLogger("onefold")

INTERRUPTIONS = (KeyboardInterrupt, SystemExit, BrokenPipeError)  # somebody wants it to end: it is not its own fault


class Study:
    """One search over one workload (or plain function), durable from its first decision.

    Making a Study writes it down; `run` runs it, from wherever it stands, until it is over or reaches a limit.
    """

    def __init__(
        self,
        subject: Given | Subject,
        space: Space | None = None,
        *,
        objective: Objective | None = None,
        budget: Budget | None = None,
        search: Algorithm = "tpe",
        rungs: str | None = None,
        top_k: int = 3,
        seed: int = 0,
        name: str | None = None,
        home: str | Path | Home | None = None,
        accelerator: str = "cpu",
        engine: EngineName = "processes",
        parallel: int | None = None,
        threads: int | None = None,
        memory_bytes: int | None = None,
        patience_s: float = 600.0,
        warm_start: str | None = None,
        first: Sequence[Mapping[str, Value]] = (),
        arms: Sequence[Sequence[int]] = (),
        device: str | Device | Sequence[str | Device] = (),
        serve_for: str = OptimizeFor.THROUGHPUT.value,
        serving_search: str = "few",
        serving_space: ServingSpace | None = None,
        scenarios: Sequence[str] = (),
        scenario_goal: str = "mean",
        strategy: Strategy = "onefold",
        knobs: str | KnobOptions = "on",
        compress: Way = "off",
        listener: Listener | None = None,
    ) -> None:
        if is_loading():
            raise WorkloadError(
                'a file of workloads starts a study when imported; put that under: if __name__ == "__main__":'
            )
        if threads and not parallel:
            raise InputError("threads are those of each trial: say how many trials run side by side too (parallel)")
        _check_options(engine, parallel, threads, memory_bytes, patience_s)
        self._home = home if isinstance(home, Home) else Home(home)
        self.listener = listener or _log
        self._subject = (subject if isinstance(subject, Subject) else Subject(subject)).compressed(compress)
        budget = budget or Budget()
        spec = Spec(
            workload=self._subject.reference,
            space=space if space is not None else self._subject.space,
            objective=objective or self._subject.objective,
            budget=budget,
            search=search,
            rungs=rungs or self._subject.rungs,
            top_k=top_k,
            seed=seed,
            accelerator=accelerator,
            patience_s=patience_s,
            memory_bytes=memory_bytes,
            warm_start=warm_start or "",
            sittings=(budget.trials,),
            first=tuple(Config(config) for config in first),
            arms=tuple(tuple(arm) for arm in arms),
            engine=engine,
            parallel=1 if engine == "inline" else parallel or 0,
            threads=threads or 1,
            quality=self._subject.objective if self._subject.workload is not None else None,
            knobs=KnobOptions(knobs) if isinstance(knobs, str) else knobs,  # type: ignore[arg-type]
            compress=compress,
        )
        _check_first(spec, self._subject)
        spec.knobs.check()
        open_clusterer(spec.knobs.similarity)
        given = [device] if isinstance(device, (str, Device)) else list(device)
        serving = ServingOptions(serve_for, serving_search, serving_space, tuple(scenarios), scenario_goal)
        spec = with_strategy(with_devices(spec, given, serving, strategy, self._home))
        with closing(self._home.store()) as store:
            spec = replace(spec, learned=observations(spec, store))
            self._search_of(replace(spec, parallel=1))  # a mistake is told before anything is written down
            taken = {record.name for record in store.studies()}
            self.name = name or free_name(self._subject.name, taken)
            check_name(self.name)
            if self.name in taken:
                raise InputError(f"there is a study {self.name!r} already; resume it or choose another name")
            created = datetime.now(UTC).isoformat(timespec="seconds")
            store.create_study(StudyRecord(self.name, spec.to_json(), created))

    @classmethod
    def open(
        cls,
        name: str,
        *,
        home: str | Path | Home | None = None,
        workload: Given | None = None,
        listener: Listener | None = None,
    ) -> Study:
        """A study that was made earlier. `workload` is needed when it lives in a program and not in a file."""
        study = cls.__new__(cls)
        study._home = home if isinstance(home, Home) else Home(home)
        study.listener = listener or _log
        study.name = name
        reference = study.spec.workload
        if workload is None and not reference:
            raise WorkloadError(
                f"the study {name!r} was started from Python; open it there: Study.open({name!r}, workload=…)"
            )
        study._subject = Subject(workload if workload is not None else reference).compressed(study.spec.compress)
        return study

    @property
    def record(self) -> StudyRecord:
        """What the store knows of the study itself."""
        with closing(self._home.store()) as store:
            return store.study(self.name)

    @property
    def spec(self) -> Spec:
        """Everything that decides what it does."""
        return Spec.from_json(self.record.spec)

    @property
    def trials(self) -> list[Trial]:
        """All its trials so far."""
        with closing(self._home.store()) as store:
            return store.trials(self.name)

    @property
    def steered(self) -> list[KnobRecord]:
        """What turning knobs came to so far, by trial and epoch."""
        with closing(self._home.store()) as store:
            return store.knob_records(self.name)

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self._home.folder(self.name)

    def extend(
        self,
        *,
        trials: int | None = None,
        minutes: float | None = None,
        joules: float | None = None,
        target: float | None = None,
    ) -> Study:
        """Allows so many more trials, minutes and joules, or sets another target; `run` then goes on."""
        for extra in (trials, minutes, joules):
            if extra is not None and not extra > 0:
                raise BudgetError(f"an extension adds more than 0, but got {extra}")
        with closing(self._home.store()) as store, self._home.study_lock(self.name):
            record = store.study(self.name)
            spec = Spec.from_json(record.spec)
            spent = sum((trial.cost for trial in store.trials(self.name)), Measurement.nothing())
            budget = replace(
                spec.budget,
                trials=spec.budget.trials + (trials or 0),
                minutes=_more(spec.budget.minutes, minutes, record.elapsed_s / 60),
                joules=_more(spec.budget.joules, joules, spent.energy.joules or 0.0),
                target=target if target is not None else spec.budget.target,
            )
            sittings = (*spec.sittings, trials) if trials else spec.sittings
            spec = replace(spec, budget=budget, sittings=sittings)
            store.save_study(replace(record, spec=spec.to_json()))
        return self

    def run(self) -> Result:
        """Runs the study to its end or to a limit and hands over the best model so far.

        Raises StudyFailed when no trial gave a result, StudyBusy when another process runs it. Interrupted by Ctrl-C
        or killed, it can be run again and goes on; interrupted, it leaves the best model so far in `folder / "best"`.
        """
        with self._home.study_lock(self.name) as folder, closing(self._home.store()) as store:
            record = replace(store.study(self.name), state=StudyState.RUNNING, reason="")
            store.save_study(record)
            try:
                return self._run(record, store, folder)
            except BaseException as error:
                record = store.study(self.name)
                if record.state is StudyState.RUNNING:
                    interrupted = isinstance(error, INTERRUPTIONS)
                    state = StudyState.INTERRUPTED if interrupted else StudyState.FAILED
                    reason = "interrupted" if interrupted else f"{type(error).__name__}: {error}"
                    store.save_study(replace(record, state=state, reason=reason))
                raise

    def _run(self, record: StudyRecord, store: Store, folder: Path) -> Result:
        spec = Spec.from_json(record.spec)
        self._tell("started", {"study": self.name, "folder": str(folder)}, lambda: Snapshot(self.name))
        shutil.rmtree(folder / "data", ignore_errors=True)  # of a run that was killed; the data may be new
        with self._engine(spec, folder) as engine, ExitStack() as stack:
            self._check_batch_size(spec, engine)
            spec = self._arrange(spec, engine)
            record = replace(record, spec=spec.to_json())
            store.save_study(record)
            inference = self._inference(spec, store, engine, stack)
            coordinator = Coordinator(
                self.name,
                spec,
                store=store,
                engine=engine,
                search=self._search_of(spec),
                folder=folder,
                elapsed_s=record.elapsed_s,
                save_elapsed=lambda elapsed_s: store.save_study(replace(record, elapsed_s=elapsed_s)),
                listener=self.listener,
                inference=inference if spec.strategy != "hierarchical" else None,
            )
            if inference is not None:
                inference.tell = coordinator.tell
            coordinator.recall()
            ending = Ending(
                spec, self._subject, store, engine, folder, coordinator, inference, self.listener, self._home
            )
            interrupts = Interrupts()
            try:
                try:
                    with interrupts:
                        reason = coordinator.run(interrupts)
                finally:
                    record = replace(record, elapsed_s=coordinator.elapsed_s)
                    store.save_study(record)
                return ending.hand_over(replace(record, reason=reason))
            except INTERRUPTIONS:
                if not interrupts.hurried:
                    self._keep_so_far(ending, store)
                raise

    def _keep_so_far(self, ending: Ending, store: Store) -> None:
        """Keeps the best model so far of a study that is interrupted; that this fails must not hide why it ends."""
        record = store.study(self.name)
        if record.state is not StudyState.RUNNING:
            return  # it was handed over
        try:
            ending.keep_so_far(record)
        except (OSError, OnefoldError) as error:
            log.warning("the best model so far of %s could not be kept: %s", self.name, error)

    # The parts it is composed of.

    def _engine(self, spec: Spec, folder: Path) -> AbstractContextManager[Engine]:
        setup = self._subject.setup(folder, spec.accelerator)
        if spec.engine == "inline":
            return InlineEngine(setup)
        slots = spec.parallel or parallelism.most_workers(spec.accelerator)
        return ProcessEngine(slots, setup, patience_s=spec.patience_s, memory_bytes=spec.memory_bytes)

    def _inference(self, spec: Spec, store: Store, engine: Engine, stack: ExitStack) -> TrialMeasurement | None:
        if not spec.devices or spec.host is None:
            return None
        serving = PointSearchOptions(OptimizeFor(spec.serve_for), spec.serving_search, thorough=False)
        found = TrialMeasurement(
            self.name,
            spec.devices,
            spec.host,
            serving,
            store=store,
            engine=engine,
            measurement_lock=self._home.locks.measurement,
            space=spec.serving_space,
        )
        found.recall()
        return stack.enter_context(found)

    def _arrange(self, spec: Spec, engine: Engine) -> Spec:
        """How many trials side by side: as asked for, or as measured; decided once and kept for the study's life."""
        if spec.parallel > 0:
            return spec
        if self._subject.workload is None:
            return replace(spec, parallel=engine.slots, threads=1)
        found = parallelism.measure(engine, spec.space.default(), engine.slots)
        self._tell("measured", to_json(found), lambda: Snapshot(self.name))
        return replace(spec, parallel=found.parallel, threads=found.threads, threads_of_few=found.threads_of_few)

    def _check_batch_size(self, spec: Spec, engine: Engine) -> None:
        parameter = spec.space.parameters.get("batch_size")
        if parameter is None or self._subject.workload is None:
            return
        largest = max((size for size in parameter.grid(2) if isinstance(size, (int, float))), default=0)
        samples = answer(engine, Call(calls.training_samples))
        if isinstance(samples, int) and largest > samples:
            raise WorkloadError(
                f"batch_size may be as large as {largest}, but there are only {samples} samples to train on; "
                f"let the space end at {samples} or below"
            )

    def _search_of(self, spec: Spec) -> Search:
        return Search(
            spec.space,
            objective=spec.objective,
            budget=spec.budget,
            algorithm=spec.search,
            rungs=spec.rungs,
            top_k=spec.top_k,
            seed=spec.seed,
            window=spec.window,
            slots=spec.parallel,
            check=self._subject.check,
            sittings=spec.sittings,
            warm_start=spec.learned,
            first=spec.first,
            arms=spec.arms,
        )

    def _tell(self, kind: str, facts: dict[str, Any], now: Callable[[], Snapshot]) -> None:
        self.listener(News(kind, facts, now))


def tune(subject: Given, space: Space | None = None, **options: Any) -> Result:
    """Makes a study and runs it: `Study(subject, space, **options).run()`.

    Limits may be given plainly: `tune(Digits(), trials=20, minutes=5)` is `tune(Digits(), budget=Budget(…))`.
    """
    limits = {name: options.pop(name) for name in inspect.signature(Budget).parameters if name in options}
    if limits:
        options["budget"] = replace(options.get("budget") or Budget(), **limits)
    return Study(subject, space, **options).run()


def _check_options(
    engine: str, parallel: int | None, threads: int | None, memory_bytes: int | None, patience_s: float
) -> None:
    """Raises InputError when what says where and how trials run makes no sense."""
    if engine not in get_args(EngineName):
        raise InputError(f"the engine {engine!r} is not known{suggestion(engine, get_args(EngineName))}")
    if parallel is not None and not parallel >= 1:
        raise InputError(f"parallel must be 1 or more, but got {parallel}; leave it out to have it measured")
    if threads is not None and not threads >= 1:
        raise InputError(f"threads must be 1 or more, but got {threads}; leave them out for one")
    if memory_bytes is not None and not memory_bytes >= 1:
        raise InputError(f"memory_bytes must be 1 or more, but got {memory_bytes}; leave it out for no limit")
    if not patience_s > 0:
        raise InputError(f"patience_s must be more than 0 seconds, but got {patience_s}")


def _check_first(spec: Spec, subject: Subject) -> None:
    """Raises InputError when the configurations to try first are none of the space, refused, repeated or too many."""
    for config in spec.first:
        spec.space.check(config)
        reason = reason_against(subject.check, config)
        if reason is not None:
            raise InputError(f"the workload refuses {config!r}, which is to be tried first: {reason}")
    if len(set(spec.first)) < len(spec.first):
        raise InputError("of the configurations to try first one is there twice; give each once")
    if len(spec.first) > spec.budget.trials:
        raise InputError(f"{len(spec.first)} configurations are to be tried first, in only {spec.budget.trials} trials")


def _more(limit: float | None, extra: float | None, used: float) -> float | None:
    """A limit moved by `extra`; one that was never set begins at what is used."""
    if extra is None:
        return limit
    return (limit if limit is not None else used) + extra


def _log(news: News) -> None:
    if news.kind != "tick":
        log.info("%s %s", news.kind, dict(news.facts))
