"""The loop at the heart of a study: decide, write down, start, listen; until nothing is left or a limit is reached.

The order of things is what makes a killed study continue as if nothing had happened: a decision is durable before its
visit starts, an epoch's checkpoint is on disk before the epoch is told, and a result is durable before the search
learns of it. Whatever is half done when the power goes is done again from the last checkpoint, and ends the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onefold.engine import Call, Engine, Event, Failed, Finished, Reported
from onefold.search import Decision, Search, planned_work
from onefold.search.ladder import work_of
from onefold.serving.export import Exported
from onefold.serving.trial_measurement import TrialMeasurement
from onefold.store import Store
from onefold.study.events import Listener, News, Snapshot, Underway
from onefold.study.interrupts import Interrupts
from onefold.study.spec import Spec
from onefold.study.worker_calls import export_and_train
from onefold.training import calls
from onefold.training.assignment import Assignment
from onefold.vocabulary.errors import ModelError, StoreError
from onefold.vocabulary.knobs import KnobRecord
from onefold.vocabulary.objective import Spent
from onefold.vocabulary.ranking import best_epoch, ranked
from onefold.vocabulary.records import Config, Epoch, Failure, FailureKind, Measurement, Rung, RungState, Trial, to_json

DONE = "every trial has had its turn"
SAVE_EVERY_S = 5.0  # how often the time spent is written down
MOST_DEATHS = 3  # of workers over one visit without an epoch between them


class Coordinator:
    """Runs one study from wherever the store says it stands."""

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
        listener: Listener,
        inference: TrialMeasurement | None = None,
    ) -> None:
        self._name = name
        self._spec = spec
        self._store = store
        self._engine = engine
        self._search = search
        self._folder = folder
        self._listener = listener
        self._save_elapsed = save_elapsed
        self._inference = inference
        self._began = time.monotonic() - elapsed_s
        self._trials: dict[int, Trial] = {}
        self._epochs: dict[tuple[int, int], list[Epoch]] = {}  # by trial and rung
        self._rungs: dict[int, Rung] = {}  # by decision
        self._waiting: deque[int] = deque()  # decided, not started
        self._running: dict[int, int] = {}  # run -> decision
        self._planned = planned_work(
            spec.rungs,
            spec.budget,
            spec.sittings,
            top_k=spec.top_k * max(1, len(spec.arms)),  # at the most: arms share trials
            slots=spec.parallel,
            afresh=spec.quality is None,  # a function starts again from nothing at every visit
        )
        self._cost = Measurement.nothing()
        self._work = 0.0  # of what is planned
        self._best: Trial | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds that the study has been run, over all its sittings."""
        return time.monotonic() - self._began

    @property
    def trials(self) -> list[Trial]:
        """All trials as they stand."""
        return [self._trials[number] for number in sorted(self._trials)]

    @property
    def is_over(self) -> bool:
        """Whether the search has nothing left to decide."""
        return self._search.finished

    def recall(self) -> None:
        """Lives through what the store knows; the visits that were cut off are made again."""
        known = {trial.number: trial for trial in self._store.trials(self._name)}
        rungs = sorted((rung for trial in known.values() for rung in trial.rungs), key=lambda rung: rung.decision)
        for rung in rungs:
            trial = known[rung.trial]
            past = Decision(
                rung.decision, rung.trial, trial.config, rung.bracket, rung.rung, rung.grant,
                new=rung.rung == 0, refusals=trial.refusals, redraws=trial.redraws,
            )  # fmt: skip
            decision = self._search.ask(past)
            if decision is None or (decision.trial, decision.rung) != (rung.trial, rung.rung):
                raise StoreError(
                    f"the store and the search of {self._name!r} disagree about decision {rung.decision}; "
                    "was the store written by another version of Onefold? Start a new study with --warm-start"
                )
            self._trials[trial.number] = trial
            self._rungs[rung.decision] = rung
            if rung.state is RungState.DECIDED:
                self._waiting.append(rung.decision)
            else:
                self._search.tell(rung.decision, rung.metrics if rung.state is RungState.DONE else None)
        for epoch in self._store.epochs(self._name):
            self._count(epoch)
        for rung in rungs:
            self._settle(rung)
        latest_s = max((rung.ended_s or 0.0 for rung in rungs), default=0.0)
        self._began = min(self._began, time.monotonic() - latest_s)  # a killed study could not save its last seconds
        self._best = next(iter(ranked(self.trials, self._spec.objective)), None)

    def run(self, interrupts: Interrupts) -> str:
        """Runs until the search is over or a limit is reached; returns why it ended, in words."""
        saved_s = self.elapsed_s
        while True:
            interrupts.check()
            if self.elapsed_s - saved_s > SAVE_EVERY_S:
                saved_s = self.elapsed_s
                self._save_elapsed(saved_s)
            reason = self.spent().reason_to_stop(self._spec.budget, self._spec.objective)
            if reason is None:
                self._fill()
                if not self._running:
                    return "the space has no more configurations" if self._search.exhausted else DONE
            else:
                self._halt()
                return reason
            events = self._engine.wait(1.0)
            with self._store.transaction():
                for event in events:
                    self._take(event)
                self._decide()
            if self._inference is not None:
                self._inference.measure_due()
            if not events:
                self.tell("tick", {})

    def spent(self) -> Spent:
        """What is used up so far."""
        return Spent(
            trials=len(self._trials),
            time_s=self.elapsed_s,
            joules=self._cost.energy.joules,
            best=self._best.metrics if self._best is not None else {},
        )

    # Deciding: a visit is durable before it starts.

    def _fill(self) -> None:
        """Starts what is waiting in the free slots."""
        if not self._waiting:
            with self._store.transaction():
                self._decide()
        while self._waiting and self._room > 0:
            self._start(self._waiting.popleft())

    @property
    def _room(self) -> int:
        return min(self._engine.free, self._spec.parallel - len(self._running))

    def _decide(self) -> None:
        """Asks for as many visits as there is room for, and writes them down."""
        while len(self._waiting) < self._room:
            decision = self._search.ask()
            if decision is None:
                break
            self._write_down(decision)
        self._update_states()

    def _write_down(self, decision: Decision) -> None:
        rung = Rung(
            decision.number,
            decision.trial,
            decision.rung,
            decision.bracket,
            decision.grant,
            threads=self._spec.threads_for(decision.side_by_side),
        )
        if decision.new:
            trial = Trial(decision.trial, decision.config, refusals=decision.refusals, redraws=decision.redraws)
            self._trials[trial.number] = trial
            self._store.save_trial(self._name, trial)
        self._save(rung)
        self._waiting.append(decision.number)

    def _start(self, decision: int) -> None:
        rung = self._rungs[decision]
        trial = self._trials[rung.trial]
        work = Assignment(
            trial=rung.trial,
            rung=rung.rung,
            config=trial.config,
            grant=rung.grant,
            seed=self._spec.seed,
            threads=rung.threads,
            max_epochs=self._spec.budget.max_epochs,
            objective=self._spec.judge,
            comparable_since=self._since(rung),
            knobs=self._spec.knobs,
            remembered=tuple(self._store.knob_memories()) if self._spec.knobs.mode in ("on", "recall") else (),
        )
        self._rungs[decision] = replace(rung, started_s=self.elapsed_s)
        if self._inference is not None and not self._inference.knows(rung.trial):
            call = Call(export_and_train, ((work,), f"models/{rung.trial:05d}.onnx"), cores=rung.threads)
        else:
            call = Call(calls.train, ((work,),), cores=rung.threads)
        self._running[self._engine.start(call)] = decision
        facts = {"trial": rung.trial, "rung": rung.rung, "level": rung.grant.level, "config": dict(trial.config)}
        kind = "trial" if rung.rung == 0 else "promoted"
        self.tell(kind, {**facts, "epochs": rung.grant.epochs, "data": rung.grant.data, "time_s": rung.grant.time_s})

    # Listening: a result is durable before the search learns of it.

    def _take(self, event: Event) -> None:
        if isinstance(event, Reported) and isinstance(event.value, Exported):
            if self._inference is not None:
                self._inference.take(replace(event.value, model=str(self._folder / event.value.model)))
        elif isinstance(event, Reported) and isinstance(event.value, KnobRecord):
            self._take_steered(event.value)
        elif isinstance(event, Reported):
            self._take_epoch(event.value, self._running[event.run])
        elif isinstance(event, Finished):
            self._take_result(self._running.pop(event.run))
        elif isinstance(event, Failed):
            self._take_failure(self._running.pop(event.run), event.failure, event.retry)

    def _take_epoch(self, epoch: Epoch, decision: int) -> None:
        self._spec.objective.check((*epoch.metrics, *self._spec.serving_metrics))
        if any(known.number == epoch.number for known in self._epochs.get((epoch.trial, epoch.rung), [])):
            return  # told again by a visit that was cut off
        self._count(epoch)
        self._store.save_epoch(self._name, epoch)
        if self._rungs[decision].attempts:
            self._save(replace(self._rungs[decision], attempts=0))
        self.tell("epoch", {"trial": epoch.trial, "epoch": epoch.number, "metrics": dict(epoch.metrics)})

    def _take_steered(self, steered: KnobRecord) -> None:
        self._store.save_knob_record(self._name, steered)
        if steered.learned is not None:
            self._store.save_knob_memory(steered.learned)
        for note in steered.notes:
            self.tell("knobs", {"trial": steered.trial, "epoch": steered.epoch, "note": note})

    def _count(self, epoch: Epoch) -> None:
        self._epochs.setdefault((epoch.trial, epoch.rung), []).append(epoch)
        self._cost += epoch.measurement
        self._work += _work_done(epoch, self._rung_of(epoch))

    def _settle(self, rung: Rung) -> None:
        """A visit that is over has done what was planned for it, however early it ended; a failed one never will."""
        if rung.state is RungState.DECIDED:
            return
        goes_on = rung.rung > 0 and not rung.grant.fresh and self._spec.quality is not None
        grants = {known.rung: known.grant for known in self._trials[rung.trial].rungs}
        done = sum(_work_done(epoch, rung) for epoch in self._epochs.get((rung.trial, rung.rung), []))
        left = work_of(rung.grant, grants.get(rung.rung - 1) if goes_on else None) - done
        if rung.state is RungState.DONE:
            self._work += left
        else:
            self._planned -= left

    def _rung_of(self, epoch: Epoch) -> Rung:
        return next(rung for rung in self._trials[epoch.trial].rungs if rung.rung == epoch.rung)

    def _take_result(self, decision: int) -> None:
        rung = self._rungs[decision]
        epochs = [
            epoch for at in range(self._since(rung), rung.rung + 1) for epoch in self._epochs.get((rung.trial, at), [])
        ]
        # A trial that has had all its epochs may find nothing left to do at a higher level: its result stands.
        standing = self._trials[rung.trial].metrics
        metrics = best_epoch(epochs, self._spec.judge).metrics if epochs else standing
        if metrics and self._inference is not None:
            try:
                metrics = {**metrics, **self._inference.metrics(rung.trial)}
            except ModelError as error:
                self._take_failure(decision, Failure(FailureKind.RAISED, str(error)), retry=False)
                return
        metrics = self._spec.objective.completed(metrics)
        if not metrics:
            self._take_failure(decision, Failure(FailureKind.RAISED, "it reported nothing"), retry=False)
            return
        self._end(replace(rung, state=RungState.DONE, metrics=metrics))
        facts = {"trial": rung.trial, "rung": rung.rung, "level": rung.grant.level, "metrics": dict(metrics)}
        self.tell("result", facts)

    def _since(self, rung: Rung) -> int:
        """The lowest rung of a trial whose epochs compare with this one's: same share of the data, not begun afresh.

        What a plain function reports at one budget says nothing about another.
        """
        if rung.grant.fresh or self._spec.quality is None:
            return rung.rung
        shares = {known.rung: known.grant.data for known in self._trials[rung.trial].rungs}
        lower = [at for at in range(rung.rung) if shares.get(at) != rung.grant.data]
        return max(lower) + 1 if lower else 0

    def _take_failure(self, decision: int, failure: Failure, retry: bool) -> None:
        if failure.kind is FailureKind.NO_SPACE:
            raise StoreError(
                f"the disk is full ({failure.reason}); nothing is lost: free some space in {self._folder} "
                f"and go on with: onefold resume {self._name}"
            )
        rung = self._rungs[decision]
        deaths = rung.attempts + 1
        if retry and deaths < MOST_DEATHS:
            self._save(replace(rung, attempts=deaths))
            self._waiting.appendleft(decision)
            self.tell("retried", {"trial": rung.trial, "reason": failure.reason, "attempt": deaths + 1})
            return
        if retry:
            failure = replace(failure, reason=f"{failure.reason}, {deaths} times without finishing an epoch")
        self._end(replace(rung, state=RungState.FAILED, failure=failure))
        self.tell("failed", {"trial": rung.trial, "failure": failure.kind.value, "reason": failure.reason})

    def _end(self, rung: Rung) -> None:
        epochs = self._epochs.get((rung.trial, rung.rung), [])
        cost = sum((epoch.measurement for epoch in epochs), Measurement.nothing())
        rung = replace(rung, measurement=cost, ended_s=self.elapsed_s)
        self._save(rung)
        self._settle(rung)
        self._best = next(iter(ranked(self.trials, self._spec.objective)), None)
        self._search.tell(rung.decision, rung.metrics if rung.state is RungState.DONE else None)

    def _update_states(self) -> None:
        changed = {
            number: state
            for number, state in self._search.states().items()
            if number in self._trials and self._trials[number].state is not state
        }
        for number, state in changed.items():
            self._trials[number] = replace(self._trials[number], state=state)
        if changed:
            self._store.set_trial_states(self._name, changed)

    def _save(self, rung: Rung) -> None:
        self._rungs[rung.decision] = rung
        trial = self._trials[rung.trial]
        others = tuple(known for known in trial.rungs if known.decision != rung.decision)
        self._trials[rung.trial] = replace(trial, rungs=(*others, rung))
        self._store.save_rung(self._name, rung)

    def _halt(self) -> None:
        """Stops what is running; its checkpoints stay, so that an extended study goes on from there."""
        for run in self._running:
            self._engine.stop(run)
        self._running.clear()

    # Telling where things stand.

    def snapshot(self) -> Snapshot:
        """Where the study stands."""
        best = self._best
        return Snapshot(
            name=self._name,
            elapsed_s=self.elapsed_s,
            left_s=self._left_s(),
            trials_started=len(self._trials),
            trials_planned=sum(self._spec.sittings),
            trials_failed=sum(trial.failure is not None for trial in self.trials),
            underway=tuple(self._underway(decision) for decision in self._running.values()),
            best_trial=best.number if best else None,
            best_config=best.config if best else Config(),
            best_metrics=best.metrics if best else {},
            energy_j=self._cost.energy.joules,
            energy_source=self._cost.energy.source,
        )

    def _underway(self, decision: int) -> Underway:
        rung = self._rungs[decision]
        first = rung.rung if rung.grant.fresh else 0
        done = [epoch for at in range(first, rung.rung + 1) for epoch in self._epochs.get((rung.trial, at), [])]
        return Underway(
            rung.trial,
            rung.rung,
            rung.grant.level,
            len(done),
            rung.grant.epochs,
            rung.threads,
            sum(epoch.measurement.time_s for epoch in done),
            rung.grant.time_s,
        )

    def _left_s(self) -> float | None:
        """An estimate: the work that is left at the pace so far, or what is left of the time limit if that is less."""
        minutes = self._spec.budget.minutes
        limit = max(0.0, minutes * 60 - self.elapsed_s) if minutes is not None else None
        if self._work <= 0:
            return limit
        left = self.elapsed_s * max(0.0, self._planned - self._work) / self._work
        return left if limit is None else min(left, limit)

    def tell(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Passes on what happened."""
        self._listener(News(kind, to_json(facts), self.snapshot))


def _work_done(epoch: Epoch, rung: Rung) -> float:
    """What an epoch is of the work that `work_of` plans for its rung."""
    return rung.grant.data if rung.grant.time_s is None else epoch.measurement.time_s
