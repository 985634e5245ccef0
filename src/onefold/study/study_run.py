"""One run of a stored study: from where it stands to its end, a limit or an interruption."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from onefold.engine import Call, Engine, open_engine, run_call
from onefold.processes import available_cores, lease_cores
from onefold.search import Search
from onefold.serving.load_metrics import LoadMetrics
from onefold.serving.trial_measurement import TrialMeasurement
from onefold.serving.tuner import PointSearchOptions
from onefold.store import Store, StudyRecord
from onefold.store.home import Home
from onefold.store.locks import StudyLock
from onefold.study import parallelism
from onefold.study.attempts import INTERRUPTIONS
from onefold.study.coordinator import Coordinator
from onefold.study.events import OnEvent, ParallelismMeasured, StudyProgress, StudyStarted
from onefold.study.export_choice import ExportChoice
from onefold.study.handover import Handover
from onefold.study.interrupts import Interrupts
from onefold.study.model_writer import ModelWriter
from onefold.study.options import fork_plan
from onefold.study.result import Result
from onefold.study.serving_options import reserved_cores
from onefold.study.spec import Spec
from onefold.study.tunable import Tunable
from onefold.study.worker_calls import check_class_scores
from onefold.training import calls
from onefold.vocabulary.errors import ModelError, OnefoldError, WorkloadError
from onefold.vocabulary.guarded_callback import GuardedCallback
from onefold.vocabulary.log import log_of
from onefold.vocabulary.ratios import SERVED_SAMPLES
from onefold.vocabulary.records import Failure, StudyState
from onefold.vocabulary.serving import OptimizeFor

log = log_of()


class StudyRun:
    """Opens what a run needs (engine, devices, search), coordinates it and hands over its winner.

    Args:
        name: Name of the study.
        tunable: Its workload or function.
        home: The folder of studies.
        store: The open store of the home.
        lock: The lock of the study, which this process holds.
        on_event: Called with every event.
    """

    def __init__(
        self, name: str, tunable: Tunable, *, home: Home, store: Store, lock: StudyLock, on_event: OnEvent
    ) -> None:
        self._name, self._tunable = name, tunable
        self._home, self._store, self._lock = home, store, lock
        self._folder = home.folder(name)
        self._on_event = GuardedCallback(on_event)

    def run(self, record: StudyRecord) -> Result:
        """Run from where `record` says that the study stands, and hand over its winner."""
        store, folder = self._store, self._folder
        spec = Spec.from_json(record.spec)
        self._on_event(StudyStarted(self._no_progress, self._name, str(folder)))
        shutil.rmtree(folder / "data", ignore_errors=True)  # left by a killed run; the data may have changed
        with ExitStack() as stack:
            measuring = _reserve_cores(spec, stack)
            engine = stack.enter_context(self._engine(spec, measuring))
            self._check_batch_size(spec, engine)
            _check_distillation(spec, engine)
            spec = _with_served_samples(self._with_parallelism(spec, engine, len(measuring)), engine)
            record = replace(record, spec=spec.to_json())
            store.save_study(record)
            measurement = self._trial_measurement(spec, engine, stack, record.created, measuring)
            coordinator = Coordinator(
                self._name,
                spec,
                store=store,
                engine=engine,
                search=create_search(spec, self._tunable),
                folder=folder,
                elapsed_s=record.elapsed_s,
                save_elapsed=lambda elapsed_s: store.save_study(replace(record, elapsed_s=elapsed_s)),
                on_event=self._on_event,
                check_lock=self._lock.check,
                measurement=measurement if spec.serving.measure == "trials" else None,
            )
            if measurement is not None:
                measurement.on_measured = coordinator.serving_measured
            coordinator.restore()
            handover = Handover(
                spec, self._tunable, store, engine, folder, coordinator, measurement, self._on_event, self._home
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
                    self._keep_best_so_far(handover)
                raise

    def export(self, record: StudyRecord, chosen: ExportChoice, target: Path, runtimes: tuple[str, ...] = ()) -> None:
        """Write the model of a trial into a folder, tested, and with devices measured and ready to serve."""
        spec = Spec.from_json(record.spec)
        spec = replace(spec, serving=replace(spec.serving, runtimes=runtimes or spec.serving.runtimes))
        spec = replace(spec, parallelism=replace(spec.parallelism, parallel=1))
        try:
            with self._engine(spec) as engine, ExitStack() as stack:
                measurement = self._trial_measurement(spec, engine, stack, record.created)
                writer = ModelWriter(
                    self._name, spec, self._tunable, engine, self._folder, measurement, self._home.path
                )
                writer.write(chosen.trial, target, for_card=chosen.for_card)
        finally:
            shutil.rmtree(self._folder / "data", ignore_errors=True)

    def _keep_best_so_far(self, handover: Handover) -> None:
        """Keep the best model of an interrupted study; a failure here must not hide the interruption."""
        record = self._store.study(self._name)
        if record.state is not StudyState.RUNNING:
            return  # the study handed over its winner already
        try:
            handover.keep_best_so_far(record)
        except (OSError, OnefoldError) as error:
            log.warning("the best model so far of study %s could not be saved: %s", self._name, error)

    def _no_progress(self) -> StudyProgress:
        return StudyProgress(self._name)

    def _engine(self, spec: Spec, measuring: Sequence[int] = ()) -> Engine:
        options = spec.parallelism
        setup = self._tunable.setup(self._folder, options.accelerator)
        return open_engine(
            options.engine,
            setup,
            slots=options.parallel or parallelism.most_workers(options.accelerator, len(measuring)),
            hang_timeout_s=options.hang_timeout_s,
            memory_bytes=options.memory_bytes,
            cores=[core for core in available_cores() if core not in measuring] if measuring else None,
        )

    def _trial_measurement(
        self, spec: Spec, engine: Engine, stack: ExitStack, created: str, measuring: Sequence[int] = ()
    ) -> TrialMeasurement | None:
        """Return what measures trials on the devices of the study; None if it has none."""
        if not spec.devices or spec.host is None:
            return None
        measurement = TrialMeasurement(
            self._name,
            spec.devices,
            spec.host,
            PointSearchOptions(OptimizeFor(spec.serving.optimize_for), spec.serving.search, thorough=False),
            store=self._store,
            engine=engine,
            measurement_lock=self._home.locks.measurement,
            space=spec.serving.space,
            hang_timeout_s=spec.parallelism.hang_timeout_s,
            pairings=self._home.pairings,
            cores=measuring,
            load=LoadMetrics(
                spec.serving.scenarios,
                spec.serving.scenario_goal,
                spec.serving.served_samples,
                (*spec.objective.inputs, *spec.objective.guard_inputs),
            ),
            run=f"{self._name} {created}",
        )
        measurement.recall()
        return stack.enter_context(measurement)

    def _with_parallelism(self, spec: Spec, engine: Engine, reserved: int) -> Spec:
        """Return the spec with the number of parallel trials: as requested, or measured once for the study's life."""
        if spec.parallelism.parallel > 0:
            return spec
        has_steps = self._tunable.workload is not None or self._tunable.yields_steps
        are_tuned = has_steps and spec.knobs.mode in ("on", "probe")  # which try other numbers of threads
        if self._tunable.workload is None or engine.slots == 1:  # there is nothing to measure
            few = parallelism.threads_of_functions(engine.slots) if are_tuned else ()
            chosen = replace(spec.parallelism, parallel=engine.slots, threads=1, threads_of_few=few)
            return replace(spec, parallelism=chosen)
        measured = parallelism.measure(
            engine, spec.space.default(), engine.slots, are_tuned=are_tuned, reserved=reserved
        )
        self._on_event(
            ParallelismMeasured(self._no_progress, measured.parallel, measured.threads, measured.batches_per_s)
        )
        chosen = replace(
            spec.parallelism,
            parallel=measured.parallel,
            threads=measured.threads,
            threads_of_few=measured.threads_of_few,
        )
        return replace(spec, parallelism=chosen)

    def _check_batch_size(self, spec: Spec, engine: Engine) -> None:
        """Raise WorkloadError if a batch would be larger than the training data."""
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


def _reserve_cores(spec: Spec, stack: ExitStack) -> list[int]:
    """Return the cores on which trials are measured, leased for the run; none if trials are paused instead."""
    count = reserved_cores(spec)
    return stack.enter_context(lease_cores(count, available_cores())).cores if count else []


def _with_served_samples(spec: Spec, engine: Engine) -> Spec:
    """Return the spec with the number of samples that ratios count: by default the size of the test set."""
    if not spec.devices or spec.serving.served_samples:
        return spec
    samples = run_call(engine, Call(calls.test_samples))
    if isinstance(samples, int):
        return replace(spec, serving=replace(spec.serving, served_samples=float(samples)))
    if SERVED_SAMPLES in (*spec.objective.inputs, *spec.objective.guard_inputs):
        raise WorkloadError("the number of test samples is unknown; give served_samples")
    return spec


def _check_distillation(spec: Spec, engine: Engine) -> None:
    """Raise ModelError if forks would be distilled from a network without class scores."""
    if spec.compress == "in-loop" and spec.forks.distill:
        checked = run_call(engine, Call(check_class_scores, (spec.space.default(),)))
        if isinstance(checked, Failure):
            raise ModelError(checked.reason)


def create_search(spec: Spec, tunable: Tunable) -> Search:
    """Return the search of a study, without results. Raises InputError if the spec contradicts itself."""
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
        results_by=spec.results_by,
        from_scratch=spec.workload_objective is None,  # a function has no checkpoint to continue from
        check=tunable.check,
        trial_batches=spec.trial_batches,
        warm_start=spec.learned,
        first=spec.first,
        arms=spec.arms,
        pairs=spec.pairs,
        forks=fork_plan(spec.forks, spec.budget) if spec.compress == "in-loop" else None,
        lends_cores=spec.lends_cores,
    )
