"""What a worker does for a rung: train a trial, or build a fork from the checkpoint of its parent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onefold.engine import Call
from onefold.serving.trial_measurement import TrialMeasurement
from onefold.store import Store
from onefold.study.spec import Spec
from onefold.study.trial_ledger import TrialLedger
from onefold.study.worker_calls import ForkAssignment, build_fork, export_and_train, train_and_pack
from onefold.training import calls
from onefold.training.assignment import Assignment
from onefold.vocabulary.forks import Fork, dense_config, fork_of
from onefold.vocabulary.records import Config, Measurement, Rung


@dataclass(frozen=True)
class RungCalls:
    """The calls for the rungs of a study.

    Args:
        spec: The study.
        store: Has the knobs that are remembered.
        ledger: Its trials.
        folder: Its folder.
        measurement: Measures architectures on its devices; None if it has none, or measures the winner alone.
    """

    spec: Spec
    store: Store
    ledger: TrialLedger
    folder: Path
    measurement: TrialMeasurement | None

    def of(self, rung: Rung) -> Call:
        """Return the call for a rung."""
        config = self.ledger.trial(rung.trial).config
        fork = fork_of(config)
        return self._training(rung, config) if fork is None else self._fork(rung, fork)

    def _training(self, rung: Rung, config: Config) -> Call:
        spec = self.spec
        work = Assignment(
            trial=rung.trial,
            rung=rung.rung,
            config=config,
            grant=rung.grant,
            seed=spec.seed,
            threads=rung.threads,
            max_epochs=spec.budget.max_epochs,
            objective=spec.epoch_objective,
            comparable_since=self.ledger.comparable_since(rung),
            knobs=spec.knobs,
            remembered=tuple(self.store.knob_memories()) if spec.knobs.mode in ("on", "recall") else (),
        )
        is_exported = self.measurement is not None and not self.measurement.knows(rung.trial)
        model = f"models/{rung.trial:05d}.onnx" if is_exported else None
        if spec.compress == "in-loop":
            return Call(train_and_pack, ((work,), model, str(self.folder)), cores=rung.threads)
        if model is not None:
            return Call(export_and_train, ((work,), model), cores=rung.threads)
        return Call(calls.train, ((work,),), cores=rung.threads)

    def _fork(self, rung: Rung, fork: Fork) -> Call:
        parent, parent_rung = self.ledger.trial(fork.parent), self.ledger.parent_rung(rung, fork)
        before = [known.measurement for known in parent.current_rungs if known.rung <= parent_rung.rung]
        work = ForkAssignment(
            trial=rung.trial,
            rung=rung.rung,
            fork=fork,
            parent_rung=parent_rung.rung,
            config=dense_config(parent.config),
            parent_epochs=parent_rung.grant.epochs,
            epochs=rung.grant.epochs - parent_rung.grant.epochs,
            spent=sum(before, Measurement.nothing()),
            threads=rung.threads,
            options=self.spec.forks,
            is_measured=self.measurement is not None,
        )
        return Call(build_fork, (work, str(self.folder)), cores=rung.threads)
