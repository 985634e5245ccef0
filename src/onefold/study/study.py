"""A study: a workload in, a tuned and trained model out.

result = Study(Digits(), budget=Budget(trials=20)).run()
result = Study.open("digits-1").extend(trials=10).run()  # later
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from onefold.compression.selection import SelectionOptions
from onefold.device import Device
from onefold.model_folder import check_target, saving
from onefold.runtimes.registry import selected_runtimes
from onefold.search import Algorithm
from onefold.serving.options import ServingOptions
from onefold.store import StudyRecord
from onefold.store.home import Home, check_name, free_name
from onefold.study.attempts import INTERRUPTIONS, attempt_at_job
from onefold.study.events import OnEvent, StudyEvent
from onefold.study.export_choice import choose_export, trial_handed_over
from onefold.study.extension import Extension, retried_rungs
from onefold.study.options import (
    CompressMode,
    ParallelismOptions,
    SearchOptions,
    algorithm_and_rungs,
    check_selection,
    compress_options,
)
from onefold.study.result import Result, copy_best
from onefold.study.serving_options import with_devices
from onefold.study.space_groups import check_groups, split_algorithm, with_serving_group, with_system_group
from onefold.study.spec import Parallelism, Spec
from onefold.study.study_run import StudyRun, create_search
from onefold.study.summary import open_epochs
from onefold.study.tunable import Tunable, WorkloadLike
from onefold.study.warm_start import observations
from onefold.training.job_clusters import open_clusterer
from onefold.vocabulary.argument_checks import suggest_keywords
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.costs import total_cost
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import DatasetError, InputError, WorkloadError
from onefold.vocabulary.forks import ForkOptions
from onefold.vocabulary.knobs import KnobOptions, KnobRecord
from onefold.vocabulary.log import log_of
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.preference import Preference, guard_bounds, preference
from onefold.vocabulary.records import Config, StudyState, Trial, TrialState
from onefold.vocabulary.space import Space
from onefold.vocabulary.variants import COMPRESSED_FOLDER
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
        search: The search algorithm by name, one for each group of the space, or all search options.
        serving: How serving points are searched and judged; needs a device.
        knobs: "on", "off", "probe" or "recall", or all knob options.
        compress: "off"; "in-loop" to fork trials into compressed variants while they are tuned; "after" to compress the
            best trials when the study has ended; a `ForkOptions` means "in-loop" with these options, and a
            `SelectionOptions` "after" with these options of the selection.
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
        compress: CompressMode | ForkOptions | SelectionOptions = "off",
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
        self._tunable = workload if isinstance(workload, Tunable) else Tunable(workload)
        options = search if isinstance(search, SearchOptions) else SearchOptions(search)
        spec = self._new_spec(
            space,
            objective,
            budget or Budget(),
            options,
            KnobOptions(knobs) if isinstance(knobs, str) else knobs,  # type: ignore[arg-type]
            compress,
            parallelism or ParallelismOptions(),
            seed,
        )
        devices = [device] if isinstance(device, (str, Device)) else list(device)
        serving = with_serving_group(
            spec.space, serving or ServingOptions(), split_algorithm(options.algorithm)[1], has_device=bool(devices)
        )
        spec = with_devices(spec, devices, serving, self._home)
        if (reported := self._tunable.reported_metrics) is not None:
            spec.check_metrics((*reported, *spec.measured_metrics))
        with closing(self._home.store()) as store:
            spec = replace(spec, learned=observations(spec, store))
            # Raises before anything is stored.
            create_search(replace(spec, parallelism=Parallelism(parallel=1)), self._tunable)
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
        compress: CompressMode | ForkOptions | SelectionOptions,
        options: ParallelismOptions,
        seed: int,
    ) -> Spec:
        options.check()
        mode, forks, selection = compress_options(compress)
        self._tunable.check_compress(mode)
        check_selection(selection)
        knobs.check()
        space = space if space is not None else self._tunable.space
        check_groups(space)
        algorithm, rungs = algorithm_and_rungs(search, self._tunable.rungs)
        algorithm, inner = split_algorithm(algorithm)
        knobs = with_system_group(
            space,
            knobs,
            inner,
            is_function=self._tunable.workload is None,
            yields_steps=self._tunable.yields_steps,
        )
        open_clusterer(knobs.similarity)
        spec = Spec(
            workload=self._tunable.reference,
            space=space,
            objective=self._guarded(objective or self._tunable.objective),
            budget=budget,
            search=algorithm,
            rungs=rungs,
            top_k=search.top_k,
            results_by="work",
            seed=seed,
            warm_start=search.warm_start or "",
            first=tuple(Config(config) for config in search.first),
            arms=tuple(tuple(arm) for arm in search.arms),
            pairs=tuple(tuple(group) for group in search.pairs),
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
            lends_cores=self._tunable.workload is not None
            and knobs.mode in ("on", "probe")
            and options.accelerator == "cpu",
            compress=mode,
            forks=forks,
            selection=selection,
        )
        _check_first(spec, self._tunable)
        guard = guard_bounds(spec.objective.prefer.guard)
        self._tunable.check_bounds([*spec.objective.require.items(), *guard])
        return spec

    def _guarded(self, objective: Objective) -> Objective:
        """Return the objective with the default guard and the ratios on the workload's own metric."""
        if self._tunable.workload is None:
            return objective
        own = self._tunable.objective.goals[0]
        guarded = objective.guarded(own.metric, maximize=own.maximize)
        return guarded.with_ratios_over(own.metric, maximize=own.maximize)

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
        study._tunable = Tunable(workload if workload is not None else reference)
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
        extension = Extension(trials, minutes, joules, target)
        with closing(self._home.store()) as store, self._home.study_lock(self.name):
            record = store.study(self.name)
            known = store.trials(self.name)
            failed = [trial for trial in known if trial.failure is not None] if retry_failed else []
            spent = total_cost(known, open_epochs(self.name, store, known))
            spec = extension.extended(Spec.from_json(record.spec), record, known, spent, failed)
            with store.transaction():
                store.save_study(replace(record, spec=spec.to_json()))
                for rung in retried_rungs(known, failed):
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

    @suggest_keywords
    def export(
        self,
        folder: str | Path,
        trial: int | None = None,
        *,
        prefer: Preference | Mapping[str, float] | str | None = None,
        runtimes: Sequence[str] = (),
    ) -> Path:
        """Write the model of a trial into a folder, and return the folder: the same files as `Result.save` writes.

        Without `trial` it is the model that the study has handed over. Any other trial that still has its weights is
        tested and, if the study has devices, exported, measured and deployed first; those of the Pareto front always
        have their weights. `prefer` chooses from the front again: weights of the goals, or a Preference, of which the
        weights or guard are the study's if it has none. `why` in the card, `model.json`, then says how the trial was
        chosen, and whether it meets the guard. With `runtimes`, the model is converted for these too, measured in them,
        and served by the fastest: openvino, ncnn, litert, executorch, pytorch, or all.

        Raises:
            InputError: There is no such trial, it has no weights, or the folder cannot be written; `prefer` is given
                besides `trial`, or does not fit the goals; `runtimes` are given, and the study has no device.
            MissingExtra: A runtime is not installed.
            StudyBusy: Another process runs the study.
        """
        target = Path(folder)
        if target.resolve().is_relative_to(self.folder.resolve().parent):
            raise InputError(f"{target} belongs to a study; name a folder outside of {self.folder.parent}")
        check_target(target)
        selected_runtimes(runtimes)
        if runtimes and not self.spec.devices:
            raise InputError("runtimes are compared on a device, and this study has none; measure the model instead")
        with self._home.study_lock(self.name) as lock, closing(self._home.store()) as store:
            record, trials = store.study(self.name), store.trials(self.name)
            wanted = None if prefer is None else preference(prefer)
            self._tunable.check_bounds(guard_bounds(wanted.guard if wanted else None))
            chosen = choose_export(record, trials, trial, wanted, store.trial_surfaces(self.name) if wanted else None)
            is_handed_over = chosen.trial.number == trial_handed_over(record) and not runtimes
            if is_handed_over and (self.folder / "best").is_dir():
                compressed = self.folder / COMPRESSED_FOLDER
                return copy_best(
                    self.folder, target, compressed if compressed.is_dir() else None, for_card=chosen.for_card
                )
            run = StudyRun(self.name, self._tunable, home=self._home, store=store, lock=lock, on_event=self.on_event)
            with saving(target):
                run.export(record, chosen, target, tuple(runtimes))
        return target

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
                    run = StudyRun(
                        self.name, self._tunable, home=self._home, store=store, lock=lock, on_event=self.on_event
                    )
                    return run.run(record)
                except BaseException as error:
                    record = store.study(self.name)
                    if record.state is StudyState.RUNNING:
                        is_interrupted = isinstance(error, INTERRUPTIONS)
                        state = StudyState.INTERRUPTED if is_interrupted else StudyState.FAILED
                        reason = "" if is_interrupted else f"{type(error).__name__}: {headline(error)}"
                        store.save_study(replace(record, state=state, reason=reason))
                    raise


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


def _log_event(event: StudyEvent) -> None:
    if event.kind != "tick":
        log.info("%s %s", event.kind, event.facts())
