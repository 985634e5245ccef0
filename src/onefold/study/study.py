"""A study: a workload in, a tuned and trained model out.

result = Study(Digits(), budget=Budget(trials=20)).run()
result = Study.open("digits-1").extend(trials=10).run()  # later
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from onefold.device import Device
from onefold.engine import Call, Engine, open_engine, run_call
from onefold.search import Algorithm, Search
from onefold.serving.options import ServingOptions
from onefold.serving.trial_measurement import TrialMeasurement
from onefold.serving.tuner import PointSearchOptions
from onefold.store import Store, StudyRecord
from onefold.store.home import Home, check_name, free_name
from onefold.store.locks import StudyLock
from onefold.study import parallelism
from onefold.study.attempts import INTERRUPTIONS, attempt_at_job
from onefold.study.coordinator import DONE, EXHAUSTED, Coordinator
from onefold.study.events import OnEvent, ParallelismMeasured, StudyEvent, StudyProgress, StudyStarted
from onefold.study.handover import Handover
from onefold.study.interrupts import Interrupts
from onefold.study.listener import Listener
from onefold.study.options import CompressMode, ParallelismOptions, SearchOptions
from onefold.study.result import Result
from onefold.study.serving_options import with_devices
from onefold.study.spec import Parallelism, Spec
from onefold.study.summary import open_epochs
from onefold.study.tunable import Tunable, WorkloadLike
from onefold.study.warm_start import observations
from onefold.training import calls
from onefold.training.job_clusters import open_clusterer
from onefold.vocabulary.costs import total_cost
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import BudgetError, DatasetError, InputError, OnefoldError, WorkloadError
from onefold.vocabulary.knobs import KnobOptions, KnobRecord
from onefold.vocabulary.log import log_of
from onefold.vocabulary.objective import Budget, BudgetUse, Objective
from onefold.vocabulary.records import Config, Rung, StudyState, Trial, TrialState
from onefold.vocabulary.serving import OptimizeFor
from onefold.vocabulary.signature import suggest_keywords
from onefold.vocabulary.space import Space
from onefold.vocabulary.workload import reason_against
from onefold.vocabulary.workload_reference import is_loading

log = log_of()

DeviceLike = str | Device


class Study:
    """One search over one workload or plain function, durable from its first decision.

    Creating a Study stores it; `run` runs it from wherever it stands until it is over or reaches a limit.

    Args:
        workload: A `Workload` instance, a reference such as "file.py:Class" or "digits", or a plain function.
        space: The search space; by default the workload's own. Functions need one.
        device: The devices that the model will be served on: names from `onefold devices`, or `Device` records.
        objective: What to maximize, minimize and require; by default the workload's own objective.
        budget: When the study stops and what each rung may spend.
        search: The search algorithm by name, or all search options.
        serving: How serving points are searched and judged; needs a device.
        knobs: "on", "off", "probe" or "recall", or all knob options.
        compress: "off"; "in-loop" to search the compression recipe with everything else; "after" to compress the best
            trials when the study has ended.
        parallelism: Where trials run and how many in parallel; by default measured.
        seed: The seed of all decisions. The same seed and results give the same decisions.
        name: The name of the study; by default the workload's name and a number.
        home: The folder of studies; by default $ONEFOLD_HOME or the user's data folder.
        on_event: Called with every `StudyEvent`; by default events are logged.

    Raises:
        InputError: An argument is invalid; the study is not stored then.
    """

    @suggest_keywords
    def __init__(
        self,
        workload: WorkloadLike | Tunable,
        space: Space | None = None,
        *,
        device: DeviceLike | Sequence[DeviceLike] = (),
        objective: Objective | None = None,
        budget: Budget | None = None,
        search: Algorithm | SearchOptions = "tpe",
        serving: ServingOptions | None = None,
        knobs: str | KnobOptions = "on",
        compress: CompressMode = "off",
        parallelism: ParallelismOptions | None = None,
        seed: int = 0,
        name: str | None = None,
        home: str | Path | Home | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        if is_loading():
            raise WorkloadError(
                'a workload file starts a study when it is imported; move that under: if __name__ == "__main__":'
            )
        self._home = home if isinstance(home, Home) else Home(home)
        self.on_event = on_event or _log_event
        self._tunable = (workload if isinstance(workload, Tunable) else Tunable(workload)).compressed(compress)
        spec = self._new_spec(
            space,
            objective,
            budget or Budget(),
            search if isinstance(search, SearchOptions) else SearchOptions(search),
            KnobOptions(knobs) if isinstance(knobs, str) else knobs,  # type: ignore[arg-type]
            compress,
            parallelism or ParallelismOptions(),
            seed,
        )
        devices = [device] if isinstance(device, (str, Device)) else list(device)
        spec = with_devices(spec, devices, serving or ServingOptions(), self._home)
        with closing(self._home.store()) as store:
            spec = replace(spec, learned=observations(spec, store))
            self._search_of(replace(spec, parallelism=Parallelism(parallel=1)))  # raises before anything is stored
            taken = {record.name for record in store.studies()}
            self.name = name or free_name(self._tunable.name, taken)
            check_name(self.name)
            if self.name in taken:
                raise InputError(f"study {self.name!r} already exists; resume it, or choose another name")
            created = datetime.now(UTC).isoformat(timespec="seconds")
            store.create_study(StudyRecord(self.name, spec.to_json(), created))
        self._is_new = True

    def _new_spec(
        self,
        space: Space | None,
        objective: Objective | None,
        budget: Budget,
        search: SearchOptions,
        knobs: KnobOptions,
        compress: CompressMode,
        options: ParallelismOptions,
        seed: int,
    ) -> Spec:
        options.check()
        knobs.check()
        open_clusterer(knobs.similarity)
        spec = Spec(
            workload=self._tunable.reference,
            space=space if space is not None else self._tunable.space,
            objective=objective or self._tunable.objective,
            budget=budget,
            search=search.algorithm,
            rungs=search.rungs or self._tunable.rungs,
            top_k=search.top_k,
            seed=seed,
            warm_start=search.warm_start or "",
            first=tuple(Config(config) for config in search.first),
            arms=tuple(tuple(arm) for arm in search.arms),
            trial_batches=(budget.trials,),
            workload_objective=self._tunable.objective if self._tunable.workload is not None else None,
            parallelism=Parallelism(
                options.engine,
                options.accelerator,
                1 if options.engine == "inline" else options.parallel or 0,
                options.threads or 1,
                (),
                options.memory_bytes,
                options.hang_timeout_s,
            ),
            knobs=knobs,
            compress=compress,
        )
        _check_first(spec, self._tunable)
        return spec

    @classmethod
    @suggest_keywords
    def open(
        cls,
        name: str,
        *,
        home: str | Path | Home | None = None,
        workload: WorkloadLike | None = None,
        on_event: OnEvent | None = None,
    ) -> Study:
        """Return a stored study. `workload` is needed if the study's workload is not in a file."""
        study = cls.__new__(cls)
        study._is_new = False
        study._home = home if isinstance(home, Home) else Home(home)
        study.on_event = on_event or _log_event
        study.name = name
        reference = study.spec.workload
        if workload is None and not reference:
            raise WorkloadError(
                f"the study {name!r} was started from Python; open it there: Study.open({name!r}, workload=...)"
            )
        study._tunable = Tunable(workload if workload is not None else reference).compressed(study.spec.compress)
        return study

    @property
    def record(self) -> StudyRecord:
        """Return what the store knows of the study itself."""
        with closing(self._home.store()) as store:
            return store.study(self.name)

    @property
    def spec(self) -> Spec:
        """Return everything that decides what the study does."""
        return Spec.from_json(self.record.spec)

    @property
    def trials(self) -> list[Trial]:
        """Return all trials so far."""
        with closing(self._home.store()) as store:
            return store.trials(self.name)

    @property
    def knob_records(self) -> list[KnobRecord]:
        """Return how knobs were tuned so far, by trial and epoch."""
        with closing(self._home.store()) as store:
            return store.knob_records(self.name)

    @property
    def folder(self) -> Path:
        """Return the folder of the study's files."""
        return self._home.folder(self.name)

    def extend(
        self,
        *,
        trials: int | None = None,
        minutes: float | None = None,
        joules: float | None = None,
        target: float | None = None,
        retry_failed: bool = False,
    ) -> Study:
        """Add trials, minutes and joules to the budget, or replace the target; `run` then continues.

        With `retry_failed` the failed trials run again, each from its last checkpoint. These decisions are stored, so
        that every later run repeats them; what followed from the failures stays as it was decided.

        Raises BudgetError, and stores nothing, if a study that has ended would not continue.
        """
        for argument, extra in (("trials", trials), ("minutes", minutes), ("joules", joules)):
            if extra is not None and not extra > 0:
                raise BudgetError(f"{argument} must be above 0 to extend a study, got {extra}")
        with closing(self._home.store()) as store, self._home.study_lock(self.name):
            record = store.study(self.name)
            spec = Spec.from_json(record.spec)
            known = store.trials(self.name)
            failed = [trial for trial in known if trial.failure is not None] if retry_failed else []
            spent = total_cost(known, open_epochs(self.name, store, known))
            budget = replace(
                spec.budget,
                trials=spec.budget.trials + (trials or 0),
                minutes=_extended(spec.budget.minutes, minutes, record.elapsed_s / 60),
                joules=_extended(spec.budget.joules, joules, spent.energy.joules or 0.0),
                target=target if target is not None else spec.budget.target,
            )
            if record.state is StudyState.DONE:
                winner = record.result.get("trial") if record.result else None
                best = next((trial.metrics for trial in known if trial.number == winner), {})
                use = BudgetUse(time_s=record.elapsed_s, joules=spent.energy.joules, best=best)
                _check_continues(record, use.reason_to_stop(budget, spec.objective), trials, failed)
            batches = (*spec.trial_batches, trials) if trials else spec.trial_batches
            spec = replace(spec, budget=budget, trial_batches=batches)
            with store.transaction():
                store.save_study(replace(record, spec=spec.to_json()))
                for rung in retries(known, failed):
                    store.save_rung(self.name, rung)
                store.set_trial_states(self.name, {trial.number: TrialState.WAITING for trial in failed})
        return self

    def run(self) -> Result:
        """Run the study to its end or to a limit, and return its winner.

        A study that was interrupted or killed continues where it stopped. An interrupted one leaves the best model so
        far in `folder / "best"`.

        Raises:
            StudyFailed: No trial gave a result.
            StudyBusy: Another process runs the study.
            InputError: The workload cannot be trained at all, or not on this accelerator. A study that this object
                created and that has decided nothing is removed then.
        """
        try:
            return self._run_locked()
        except (InputError, DatasetError):
            if self._is_new:
                self._remove_unless_begun()
            raise
        finally:
            self._is_new = False

    def _remove_unless_begun(self) -> None:
        with closing(self._home.store()) as store:
            if store.trials(self.name) or store.job(self.name) is not None:
                return
            store.delete_study(self.name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run_locked(self) -> Result:
        with self._home.study_lock(self.name) as lock, closing(self._home.store()) as store:
            record = replace(store.study(self.name), state=StudyState.RUNNING, reason="")
            store.save_study(record)
            with attempt_at_job(self._home, self.name, store):
                try:
                    return self._run(record, store, lock)
                except BaseException as error:
                    record = store.study(self.name)
                    if record.state is StudyState.RUNNING:
                        is_interrupted = isinstance(error, INTERRUPTIONS)
                        state = StudyState.INTERRUPTED if is_interrupted else StudyState.FAILED
                        reason = "" if is_interrupted else f"{type(error).__name__}: {headline(error)}"
                        store.save_study(replace(record, state=state, reason=reason))
                    raise

    def _run(self, record: StudyRecord, store: Store, lock: StudyLock) -> Result:
        folder = self.folder
        spec = Spec.from_json(record.spec)
        listener = Listener(self.on_event)
        listener(StudyStarted(self._no_progress, self.name, str(folder)))
        shutil.rmtree(folder / "data", ignore_errors=True)  # left by a killed run; the data may have changed
        with self._engine(spec, folder) as engine, ExitStack() as stack:
            self._check_batch_size(spec, engine)
            spec = self._with_parallelism(spec, engine, listener)
            record = replace(record, spec=spec.to_json())
            store.save_study(record)
            measurement = self._trial_measurement(spec, store, engine, stack)
            coordinator = Coordinator(
                self.name,
                spec,
                store=store,
                engine=engine,
                search=self._search_of(spec),
                folder=folder,
                elapsed_s=record.elapsed_s,
                save_elapsed=lambda elapsed_s: store.save_study(replace(record, elapsed_s=elapsed_s)),
                on_event=listener,
                check_lock=lock.check,
                measurement=measurement if spec.serving.measure == "trials" else None,
            )
            if measurement is not None:
                measurement.on_measured = coordinator.serving_measured
            coordinator.restore()
            handover = Handover(
                spec, self._tunable, store, engine, folder, coordinator, measurement, listener, self._home
            )
            interrupts = Interrupts()
            try:
                try:
                    with interrupts:
                        reason = coordinator.run(interrupts)
                finally:
                    record = replace(record, elapsed_s=coordinator.elapsed_s)
                    store.save_study(record)
                return handover.hand_over(replace(record, reason=reason))
            except INTERRUPTIONS:
                if not interrupts.is_urgent:
                    self._keep_best_so_far(handover, store)
                raise

    def _keep_best_so_far(self, handover: Handover, store: Store) -> None:
        """Keep the best model of an interrupted study; a failure here must not hide the interruption."""
        record = store.study(self.name)
        if record.state is not StudyState.RUNNING:
            return  # the study handed over its winner already
        try:
            handover.keep_best_so_far(record)
        except (OSError, OnefoldError) as error:
            log.warning("the best model so far of study %s could not be saved: %s", self.name, error)

    def _no_progress(self) -> StudyProgress:
        return StudyProgress(self.name)

    def _engine(self, spec: Spec, folder: Path) -> Engine:
        options = spec.parallelism
        setup = self._tunable.setup(folder, options.accelerator)
        return open_engine(
            options.engine,
            setup,
            slots=options.parallel or parallelism.most_workers(options.accelerator),
            hang_timeout_s=options.hang_timeout_s,
            memory_bytes=options.memory_bytes,
        )

    def _trial_measurement(self, spec: Spec, store: Store, engine: Engine, stack: ExitStack) -> TrialMeasurement | None:
        if not spec.devices or spec.host is None:
            return None
        measurement = TrialMeasurement(
            self.name,
            spec.devices,
            spec.host,
            PointSearchOptions(OptimizeFor(spec.serving.optimize_for), spec.serving.search, thorough=False),
            store=store,
            engine=engine,
            measurement_lock=self._home.locks.measurement,
            space=spec.serving.space,
            hang_timeout_s=spec.parallelism.hang_timeout_s,
        )
        measurement.recall()
        return stack.enter_context(measurement)

    def _with_parallelism(self, spec: Spec, engine: Engine, on_event: OnEvent) -> Spec:
        """Return the spec with the number of parallel trials: as requested, or measured once for the study's life."""
        if spec.parallelism.parallel > 0:
            return spec
        if self._tunable.workload is None:
            return replace(spec, parallelism=replace(spec.parallelism, parallel=engine.slots, threads=1))
        measured = parallelism.measure(engine, spec.space.default(), engine.slots)
        on_event(ParallelismMeasured(self._no_progress, measured.parallel, measured.threads, measured.batches_per_s))
        chosen = replace(
            spec.parallelism,
            parallel=measured.parallel,
            threads=measured.threads,
            threads_of_few=measured.threads_of_few,
        )
        return replace(spec, parallelism=chosen)

    def _check_batch_size(self, spec: Spec, engine: Engine) -> None:
        parameter = spec.space.parameters.get("batch_size")
        if parameter is None or self._tunable.workload is None:
            return
        largest = max((size for size in parameter.grid(2) if isinstance(size, (int, float))), default=0)
        samples = run_call(engine, Call(calls.training_samples))
        if isinstance(samples, int) and largest > samples:
            raise WorkloadError(
                f"batch_size goes up to {largest}, but there are only {samples} training samples; "
                f"limit the space to {samples}"
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
            slots=spec.parallelism.parallel,
            check=self._tunable.check,
            trial_batches=spec.trial_batches,
            warm_start=spec.learned,
            first=spec.first,
            arms=spec.arms,
        )


def _check_first(spec: Spec, tunable: Tunable) -> None:
    """Raise InputError unless the first configurations are in the space, accepted, different and few enough."""
    for config in spec.first:
        spec.space.check(config)
        reason = reason_against(tunable.check, config)
        if reason is not None:
            raise InputError(f"the workload rejects the first configuration {config!r}: {reason}")
    if len(set(spec.first)) < len(spec.first):
        raise InputError("a first configuration is given twice; give each once")
    if len(spec.first) > spec.budget.trials:
        raise InputError(
            f"{len(spec.first)} first configurations do not fit into {spec.budget.trials} trials; give fewer"
        )


def retries(trials: Sequence[Trial], failed: Sequence[Trial]) -> list[Rung]:
    """Return the decisions that run the last rung of each failed trial again, after all decisions so far."""
    first = 1 + max((rung.decision for trial in trials for rung in trial.rungs), default=-1)
    return [replace(trial.rungs[-1].undecided, decision=first + n) for n, trial in enumerate(failed)]


def _check_continues(record: StudyRecord, limit: str | None, trials: int | None, failed: Sequence[Trial]) -> None:
    """Raise BudgetError if a study that has ended would not continue; `limit` says which limit is still reached."""
    if record.reason == EXHAUSTED and not failed:
        raise BudgetError(f"study {record.name!r} has ended: {EXHAUSTED}; start a new study over a larger space")
    if record.reason == DONE and not trials and not failed:
        raise BudgetError(f"study {record.name!r} has ended: {DONE}; continue it with more of them, such as trials=9")
    if limit is not None:
        raise BudgetError(f"study {record.name!r} has ended and would not continue: {limit}; extend that limit")


def _extended(limit: float | None, extra: float | None, used: float) -> float | None:
    """Return the limit plus `extra`; a limit that was never set, or was overrun, starts at what is used."""
    if extra is None:
        return limit
    return max(limit or 0.0, used) + extra


def _log_event(event: StudyEvent) -> None:
    if event.kind != "tick":
        log.info("%s %s", event.kind, event.facts())
