"""The trials of a running study: in memory and, before anything depends on it, in the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from onefold.store import Store
from onefold.study.events import RunningRung, StudyProgress
from onefold.study.open_epochs import OpenEpochs
from onefold.study.spec import Spec
from onefold.study.work import StudyWork, work_of_epoch
from onefold.vocabulary.forks import Fork, fork_of
from onefold.vocabulary.ranking import LiveRanking
from onefold.vocabulary.records import Config, Epoch, Grant, Measurement, Rung, RungState, Trial, TrialState


class TrialLedger:
    """Keeps trials, rungs and epochs with what they have cost, and which trial is the best.

    Args:
        name: Name of the study.
        spec: The study.
        store: Where everything is stored; callers open the transactions.
    """

    def __init__(self, name: str, spec: Spec, store: Store) -> None:
        self._name, self._spec, self._store = name, spec, store
        self._trials: dict[int, Trial] = {}
        self._rungs: dict[int, Rung] = {}  # by decision
        self._epochs = OpenEpochs(store, name)
        self._work = StudyWork(spec)
        self._ranking = LiveRanking(spec.objective)
        self._failed: set[int] = set()  # trials
        self._fork_count = 0

    @property
    def trials(self) -> list[Trial]:
        """Return all trials by number."""
        return [self._trials[number] for number in sorted(self._trials)]

    @property
    def trial_count(self) -> int:
        """Return the number of trials without forks."""
        return len(self._trials) - self._fork_count

    @property
    def best(self) -> Trial | None:
        """Return the best trial with a result so far."""
        number = self._ranking.best()
        return None if number is None else self._trials[number]

    @property
    def cost(self) -> Measurement:
        """Return the cost of all epochs so far."""
        return self._work.cost

    @property
    def has_epochs(self) -> bool:
        """Return whether any trial has reported an epoch."""
        return self._work.has_reported

    @property
    def has_results(self) -> bool:
        """Return whether any rung has a result."""
        return any(rung.state is RungState.DONE for rung in self._rungs.values())

    def trial(self, number: int) -> Trial:
        """Return a trial."""
        return self._trials[number]

    def rung(self, decision: int) -> Rung:
        """Return the rung of a decision."""
        return self._rungs[decision]

    def restore(self, trials: Iterable[Trial]) -> None:
        """Take over stored trials. Only the epochs of open rungs are read one by one."""
        self._trials = {trial.number: trial for trial in trials}
        self._rungs = {rung.decision: rung for trial in self._trials.values() for rung in trial.rungs}
        rungs = sorted((r for trial in self._trials.values() for r in trial.current_rungs), key=lambda r: r.decision)
        has_failed = any(rung.state is RungState.FAILED for rung in rungs)
        counts = self._store.epoch_counts(self._name) if has_failed else {}
        for rung in rungs:
            if rung.state is RungState.DECIDED:
                self._epochs.open(rung.trial)
                for epoch in self._epochs.of(rung):
                    self._work.count(epoch, rung)
            else:
                self._work.restore(rung, self._grant_before(rung), counts)
        self._fork_count = sum(fork_of(trial.config) is not None for trial in self._trials.values())
        for trial in self._trials.values():
            self._rank(trial)

    def add(self, trial: Trial) -> None:
        """Store a new trial."""
        self._trials[trial.number] = trial
        self._fork_count += fork_of(trial.config) is not None
        self._epochs.open(trial.number, is_new=True)
        self._store.save_trial(self._name, trial)

    def save(self, rung: Rung) -> None:
        """Store a new or changed rung."""
        self._rungs[rung.decision] = rung
        trial = self._trials[rung.trial]
        others = tuple(known for known in trial.rungs if known.decision != rung.decision)
        self._trials[rung.trial] = replace(trial, rungs=(*others, rung))
        self._rank(self._trials[rung.trial])
        self._store.save_rung(self._name, rung)

    def start(self, decision: int, started_s: float) -> None:
        """Note in memory when a rung started, and have the epochs of its trial ready."""
        rung = self._rungs[decision]
        self._epochs.open(rung.trial)
        self._rungs[decision] = replace(rung, started_s=started_s)

    def add_epoch(self, epoch: Epoch, decision: int) -> bool:
        """Store an epoch; return False if it is known, since a restarted rung reports it again."""
        if not self._epochs.add(epoch):
            return False
        rung = self._rungs[decision]
        self._work.count(epoch, rung)
        self._store.save_epoch(self._name, epoch)
        if rung.attempts:
            self.save(replace(rung, attempts=0))
        return True

    def end(self, rung: Rung, ended_s: float) -> None:
        """Store a rung that has a result or has failed, with the cost of its epochs."""
        epochs = self._epochs.of(rung)
        cost = sum((epoch.measurement for epoch in epochs), Measurement.nothing())
        rung = replace(rung, measurement=cost, ended_s=ended_s)
        self.save(rung)
        self._work.settle(rung, self._grant_before(rung), sum(work_of_epoch(epoch, rung) for epoch in epochs))
        self._epochs.close(rung.trial)

    def set_states(self, states: Mapping[int, TrialState]) -> None:
        """Store the states of trials, of those whose state changes."""
        changed = {number: state for number, state in states.items() if self._trials[number].state is not state}
        for number, state in changed.items():
            self._trials[number] = replace(self._trials[number], state=state)
        if changed:
            self._store.set_trial_states(self._name, changed)

    def parent_rung(self, rung: Rung, fork: Fork) -> Rung:
        """Return the rung of the parent whose checkpoint a fork continues: that of the same level."""
        rungs = self._trials[fork.parent].finished_rungs
        return next(known for known in rungs if known.grant.level == rung.grant.level)

    def comparable_since(self, rung: Rung) -> int:
        """Return the lowest rung whose epochs compare with this one's: same share of the data, same training run.

        The reports of a plain function at different budgets never compare.
        """
        if rung.grant.fresh or self._spec.workload_objective is None:
            return rung.rung
        shares = {known.rung: known.grant.data for known in self._trials[rung.trial].rungs}
        lower = [at for at in range(rung.rung) if shares.get(at) != rung.grant.data]
        return max(lower) + 1 if lower else 0

    def comparable_epochs(self, rung: Rung) -> list[Epoch]:
        """Return the epochs of a running rung, and those of lower rungs that compare with them."""
        return self._epochs.of(rung, self.comparable_since(rung))

    def progress(self, elapsed_s: float, running: Iterable[int]) -> StudyProgress:
        """Return where the study stands; `running` are the decisions whose rungs run."""
        best = self.best
        return StudyProgress(
            name=self._name,
            elapsed_s=elapsed_s,
            left_s=self._work.left_s(elapsed_s, self._spec.budget.minutes),
            trials_started=self.trial_count,
            trials_planned=sum(self._spec.trial_batches),
            trials_failed=len(self._failed),
            running=tuple(self._running_rung(self._rungs[decision]) for decision in running),
            best_trial=best.number if best else None,
            best_config=best.config if best else Config(),
            best_metrics=best.metrics if best else {},
            energy_j=self.cost.energy.joules,
            energy_source=self.cost.energy.source,
        )

    def _running_rung(self, rung: Rung) -> RunningRung:
        done = self._epochs.of(rung, rung.rung if rung.grant.fresh else 0)
        return RunningRung(
            rung.trial,
            rung.rung,
            rung.grant.level,
            len(done),
            rung.grant.epochs,
            rung.threads,
            sum(epoch.measurement.time_s for epoch in done),
            rung.grant.time_s,
        )

    def _grant_before(self, rung: Rung) -> Grant | None:
        """Return the grant of the rung that this one continues, if it does not train from scratch."""
        fork = fork_of(self._trials[rung.trial].config)
        if fork is not None:
            return self.parent_rung(rung, fork).grant
        if rung.rung == 0 or rung.grant.fresh or self._spec.workload_objective is None:
            return None
        return next((known.grant for known in self._trials[rung.trial].rungs if known.rung == rung.rung - 1), None)

    def _rank(self, trial: Trial) -> None:
        """Update the ranking and the failed trials."""
        self._ranking.update(trial)
        if trial.failure is not None:
            self._failed.add(trial.number)
        else:
            self._failed.discard(trial.number)
