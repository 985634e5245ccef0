"""The main loop of a study: decide, store, start, collect; until nothing is left or a limit is reached.

The order of writes lets a killed study continue as if nothing had happened: a decision is durable before its rung
starts, an epoch's checkpoint is on disk before the epoch is reported, and a result is durable before the search learns
of it. Work that was cut off is repeated from the last checkpoint and ends the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from onefold.engine import CallFailed, CallFinished, CallReported, Engine, Event
from onefold.search import Decision, Search
from onefold.serving.export import Exported
from onefold.serving.trial_measurement import TrialMeasurement
from onefold.store import Store
from onefold.study.events import (
    EpochFinished,
    KnobsTuned,
    OnEvent,
    RungFinished,
    RungStarted,
    ServingMeasured,
    StudyProgress,
    Tick,
    TrialFailed,
    TrialForked,
    TrialPromoted,
    TrialRetried,
)
from onefold.study.failure_log import logged
from onefold.study.interrupts import Interrupts
from onefold.study.rung_calls import RungCalls
from onefold.study.spec import Spec
from onefold.study.trial_ledger import TrialLedger
from onefold.vocabulary.budget import BudgetUse
from onefold.vocabulary.errors import MeasuringFailed, ModelError, ObjectiveError, StoreError
from onefold.vocabulary.forks import ENCODED_BYTES, PackedSize, fork_of
from onefold.vocabulary.knobs import KnobRecord
from onefold.vocabulary.ranking import best_epoch
from onefold.vocabulary.records import (
    Epoch,
    Failure,
    FailureKind,
    Rung,
    RungState,
    Trial,
    TrialState,
)
from onefold.vocabulary.serving import OptimizeFor, Surface

DONE = "all trials have finished"
EXHAUSTED = "the space has no more configurations"
SAVE_INTERVAL_S = 5.0  # between two writes of the elapsed time
MAX_ATTEMPTS = 3  # at a rung whose worker dies before it finishes an epoch


class Coordinator:
    """Runs one study from where the store says it stands."""

    def __init__(
        self,
        name: str,
        spec: Spec,
        *,
        store: Store,
        engine: Engine,
        search: Search,
        folder: Path,
        elapsed_s: float,
        save_elapsed: Callable[[float], None],
        on_event: OnEvent,
        check_lock: Callable[[], None] = lambda: None,
        measurement: TrialMeasurement | None = None,
    ) -> None:
        self._name = name
        self._spec = spec
        self._store = store
        self._engine = engine
        self._search = search
        self._folder = folder
        self._on_event = on_event
        self._check_lock = check_lock
        self._save_elapsed = save_elapsed
        self._measurement = measurement
        self._earlier_s = elapsed_s  # of earlier runs
        self._began: float | None = None  # when the first rung of this run started
        self._ledger = TrialLedger(name, spec, store)
        self._calls = RungCalls(spec, store, self._ledger, folder, measurement)
        self._waiting: deque[int] = deque()  # decided, not started
        self._running: dict[int, int] = {}  # run -> decision
        self._packed: dict[int, float] = {}  # by trial: size of the packed model after the rung that runs

    @property
    def elapsed_s(self) -> float:
        """Return the seconds that the study has run, over all its runs; each counts from its first rung."""
        return self._earlier_s + (time.monotonic() - self._began if self._began is not None else 0.0)

    @property
    def trials(self) -> list[Trial]:
        """Return all trials by number."""
        return self._ledger.trials

    @property
    def is_over(self) -> bool:
        """Return whether the search has nothing left to decide."""
        return self._search.is_finished

    def restore(self) -> None:
        """Replay the stored decisions and results; rungs that were cut off are queued again."""
        known = {trial.number: trial for trial in self._store.trials(self._name)}
        rungs = sorted((rung for trial in known.values() for rung in trial.rungs), key=lambda rung: rung.decision)
        decided: dict[tuple[int, int], int] = {}  # decisions by trial and rung
        for rung in rungs:
            trial = known[rung.trial]
            decision: Decision | None
            if (rung.trial, rung.rung) in decided:
                decision = self._search.retry(decided[rung.trial, rung.rung])
            else:
                stored = Decision(
                    rung.decision, rung.trial, trial.config, rung.bracket, rung.rung, rung.grant,
                    is_new=rung.rung == 0, refusals=trial.refusals, redraws=trial.redraws,
                )  # fmt: skip
                decision = self._search.ask(stored)
            decided[rung.trial, rung.rung] = rung.decision
            if decision is None or (decision.trial, decision.rung) != (rung.trial, rung.rung):
                raise StoreError(
                    f"the store and the search of study {self._name!r} disagree about decision {rung.decision}, "
                    f"perhaps after an upgrade; start a new study that learns from it: warm_start={self._name!r}"
                )
            if rung.state is RungState.DECIDED:
                self._waiting.append(rung.decision)
            else:
                self._search.tell(rung.decision, rung.metrics if rung.state is RungState.DONE else None)
        self._ledger.restore(known.values())
        latest_s = max((rung.ended_s or 0.0 for rung in rungs), default=0.0)
        self._earlier_s = max(self._earlier_s, latest_s)  # a killed study could not save its last seconds

    def run(self, interrupts: Interrupts) -> str:
        """Run until the search is over or a limit is reached; return the reason of the end."""
        saved_s = self.elapsed_s
        while True:
            interrupts.check()
            self._check_lock()
            if self.elapsed_s - saved_s > SAVE_INTERVAL_S:
                saved_s = self.elapsed_s
                self._save_elapsed(saved_s)
            reason = self.spent().reason_to_stop(self._spec.budget, self._spec.objective)
            if reason is None:
                self._fill()
                if not self._running:
                    return EXHAUSTED if self._search.is_exhausted else DONE
            else:
                self._halt()
                return reason
            events = self._engine.wait(1.0)
            with self._store.transaction():
                for event in events:
                    self._handle(event)
                self._decide()
            if self._measurement is not None:
                self._measurement.measure_pending()
            if not events:
                self._on_event(Tick(self.progress))

    def spent(self) -> BudgetUse:
        """Return what is used up so far."""
        best = self._ledger.best
        return BudgetUse(
            trials=self._ledger.trial_count,
            time_s=self.elapsed_s,
            joules=self._ledger.cost.energy.joules,
            best=best.metrics if best is not None else {},
        )

    # Decide: a rung is durable before it starts.

    def _fill(self) -> None:
        """Start queued rungs in the free slots, and lend cores that are left to the rungs that run."""
        if not self._waiting:
            with self._store.transaction():
                self._decide()
        if self._waiting and self._room > 0:
            self._lend(0)
        while self._waiting and self._room > 0:
            self._start(self._waiting.popleft())
        if self._spec.lends_cores and not self._waiting and self._running:
            used = sum(self._ledger.rung(decision).threads for decision in self._running.values())
            self._lend(max(0, self._spec.parallelism.cores - used) // len(self._running))

    def _lend(self, cores: int) -> None:
        """Lend so many cores to each rung that runs."""
        if self._spec.lends_cores:
            for run in self._running:
                self._engine.lend(run, cores)

    @property
    def _room(self) -> int:
        return min(self._engine.free_slots, self._spec.parallelism.parallel - len(self._running))

    def _decide(self) -> None:
        """Ask for as many decisions as there are free slots, and store them."""
        while len(self._waiting) < self._room:
            decision = self._search.ask()
            if decision is None:
                break
            self._store_decision(decision)
        self._ledger.set_states(self._search.changed_states())

    def _store_decision(self, decision: Decision) -> None:
        rung = Rung(
            decision.number,
            decision.trial,
            decision.rung,
            decision.bracket,
            decision.grant,
            threads=self._spec.parallelism.threads_for(decision.side_by_side),
        )
        if decision.is_new:
            trial = Trial(decision.trial, decision.config, refusals=decision.refusals, redraws=decision.redraws)
            self._ledger.add(trial)
        self._ledger.save(rung)
        self._waiting.append(decision.number)

    def _start(self, decision: int) -> None:
        if self._began is None:
            self._began = time.monotonic()
        self._ledger.start(decision, self.elapsed_s)
        rung = self._ledger.rung(decision)
        trial = self._ledger.trial(rung.trial)
        self._running[self._engine.start(self._calls.of(rung))] = decision
        grant, is_fork = rung.grant, fork_of(trial.config) is not None
        event = TrialForked if is_fork else RungStarted if rung.rung == 0 else TrialPromoted
        self._on_event(
            event(
                self.progress, rung.trial, rung.rung, grant.level, trial.config, grant.epochs, grant.data, grant.time_s
            )
        )

    # Collect: a result is durable before the search learns of it.

    def _handle(self, event: Event) -> None:
        if event.run not in self._running:
            return  # reported by a run that was stopped meanwhile
        if isinstance(event, CallReported) and isinstance(event.value, Exported):
            if self._measurement is not None:
                self._measurement.take(replace(event.value, model=str(self._folder / event.value.model)))
        elif isinstance(event, CallReported) and isinstance(event.value, KnobRecord):
            self._handle_knobs(event.value)
        elif isinstance(event, CallReported) and isinstance(event.value, PackedSize):
            self._packed[event.value.trial] = float(event.value.encoded_bytes)
        elif isinstance(event, CallReported):
            self._handle_epoch(event.value, event.run)
        elif isinstance(event, CallFinished):
            self._handle_result(self._running.pop(event.run))
        elif isinstance(event, CallFailed):
            self._handle_failure(self._running.pop(event.run), event.failure, event.retry)

    def _handle_epoch(self, epoch: Epoch, run: int) -> None:
        decision = self._running[run]
        reported = (*epoch.metrics, *self._spec.measured_metrics)
        missing = self._missing_metric(reported, is_first=epoch.trial == 0 and not self._ledger.has_epochs)
        if missing is not None:
            self._engine.stop(run)
            self._handle_failure(self._running.pop(run), missing, retry=False)
            return
        if self._ledger.add_epoch(epoch, decision):
            self._on_event(EpochFinished(self.progress, epoch.trial, epoch.number, epoch.metrics))

    def _missing_metric(self, reported: Iterable[str], *, is_first: bool) -> Failure | None:
        """Return the failure of a trial that did not report a metric of the objective, or None if it did.

        Raises ObjectiveError if that is the first report of the first trial: then none will have it.
        """
        names = sorted(reported)
        if is_first:
            self._spec.check_metrics(names)
        try:
            self._spec.objective.check(names)
        except ObjectiveError:
            missing = ", ".join(name for name in self._spec.objective.inputs if name not in names)
            reason = f"the trial lacks a metric of the objective: {missing}; it reported {', '.join(names)}"
            return Failure(FailureKind.RAISED, reason)
        return None

    def _handle_knobs(self, record: KnobRecord) -> None:
        self._store.save_knob_record(self._name, record)
        if record.learned is not None:
            self._store.save_knob_memory(record.learned)
        for note in record.notes:
            self._on_event(KnobsTuned(self.progress, record.trial, record.epoch, note))

    def _handle_result(self, decision: int) -> None:
        rung = self._ledger.rung(decision)
        epochs = self._ledger.comparable_epochs(rung)
        # A trial with all its epochs may have nothing left to do at a higher level: it keeps its result.
        standing = self._ledger.trial(rung.trial).metrics
        metrics = best_epoch(epochs, self._spec.epoch_objective).metrics if epochs else standing
        if rung.trial in self._packed:
            metrics = {**metrics, ENCODED_BYTES: self._packed.pop(rung.trial)}
        if metrics and self._measurement is not None:
            try:
                metrics = {**metrics, **self._measurement.metrics(rung.trial)}
            except ModelError as error:
                kind = FailureKind(error.kind) if isinstance(error, MeasuringFailed) else FailureKind.RAISED
                self._handle_failure(decision, Failure(kind, str(error)), retry=False)
                return
        metrics = self._spec.objective.completed(metrics)
        if not metrics:
            self._handle_failure(decision, Failure(FailureKind.RAISED, "the trial reported no metrics"), retry=False)
            return
        absent = "" if self._measurement is None else self._measurement.absent(rung.trial)
        is_first = rung.trial == 0 and not self._ledger.has_results and not absent
        missing = self._missing_metric(metrics, is_first=is_first)
        if missing is not None:
            reason = absent or missing.reason
            self._handle_failure(decision, replace(missing, reason=reason), retry=False)
            return
        self._end(replace(rung, state=RungState.DONE, metrics=metrics))
        self._on_event(RungFinished(self.progress, rung.trial, rung.rung, rung.grant.level, metrics))

    def _handle_failure(self, decision: int, failure: Failure, retry: bool) -> None:
        if failure.kind is FailureKind.NO_SPACE:
            raise StoreError(
                f"the disk is full ({failure.reason}); nothing is lost: free some space in {self._folder} "
                f"and resume the study {self._name!r}"
            )
        rung = self._ledger.rung(decision)
        attempts = rung.attempts + 1
        if retry and attempts < MAX_ATTEMPTS:
            self._ledger.save(replace(rung, attempts=attempts))
            self._waiting.appendleft(decision)
            self._on_event(TrialRetried(self.progress, rung.trial, failure.reason, attempts + 1))
            return
        if retry:
            failure = replace(failure, reason=f"{failure.reason}, {attempts} times before it finished an epoch")
        failure = logged(failure, self._folder, rung)
        self._end(replace(rung, state=RungState.FAILED, failure=failure))
        self._on_event(TrialFailed(self.progress, rung.trial, failure.kind.value, failure.reason))

    def _end(self, rung: Rung) -> None:
        self._ledger.end(rung, self.elapsed_s)
        self._search.tell(rung.decision, rung.metrics if rung.state is RungState.DONE else None)

    def _halt(self) -> None:
        """Stop all running rungs. Their checkpoints stay, so that an extended study continues from there."""
        for run in self._running:
            self._engine.stop(run)
        paused = [self._ledger.rung(decision).trial for decision in (*self._running.values(), *self._waiting)]
        self._ledger.set_states(dict.fromkeys(paused, TrialState.WAITING))
        self._running.clear()

    # Report progress.

    def serving_measured(self, trial: int, device: str, surface: Surface, recalled: bool) -> None:
        """Report the serving cost of a trial's architecture."""
        points = sum(served.runs > 0 for served in surface.served)
        goals = OptimizeFor.LATENCY, OptimizeFor.THROUGHPUT
        source = ", ".join(dict.fromkeys(surface.best(goal).source.value for goal in goals))
        measured_s = 0.0 if recalled else surface.measured_s
        self._on_event(
            ServingMeasured(
                self.progress,
                trial,
                device,
                points,
                recalled,
                source,
                surface.metrics(),
                measured_s,
                surface.reasons_for_doubt,
            )
        )

    def progress(self) -> StudyProgress:
        """Return where the study stands."""
        return self._ledger.progress(self.elapsed_s, self._running.values())
