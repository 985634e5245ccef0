"""The extension of a study: more trials, time or energy, another target, or failed trials again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onefold.store import StudyRecord
from onefold.study.coordinator import DONE, EXHAUSTED
from onefold.study.spec import Spec
from onefold.vocabulary.budget import BudgetUse
from onefold.vocabulary.errors import BudgetError
from onefold.vocabulary.records import Measurement, Rung, StudyState, Trial


@dataclass(frozen=True, slots=True)
class Extension:
    """What is added to the budget of a study; `target` replaces the earlier one.

    Raises BudgetError if an amount is not above 0.
    """

    trials: int | None = None
    minutes: float | None = None
    joules: float | None = None
    target: float | None = None

    def __post_init__(self) -> None:
        for argument, extra in (("trials", self.trials), ("minutes", self.minutes), ("joules", self.joules)):
            if extra is not None and not extra > 0:
                raise BudgetError(f"{argument} must be above 0 to extend a study, got {extra}")

    def extended(
        self, spec: Spec, record: StudyRecord, trials: Sequence[Trial], spent: Measurement, failed: Sequence[Trial] = ()
    ) -> Spec:
        """Return the spec of the extended study.

        Args:
            spec: Its present spec.
            record: What the store knows of it.
            trials: Its trials so far.
            spent: Their cost.
            failed: Trials that run again.

        Raises:
            BudgetError: The study has ended and would not continue.
        """
        budget = replace(
            spec.budget,
            trials=spec.budget.trials + (self.trials or 0),
            minutes=_extended(spec.budget.minutes, self.minutes, record.elapsed_s / 60),
            joules=_extended(spec.budget.joules, self.joules, spent.energy.joules or 0.0),
            target=self.target if self.target is not None else spec.budget.target,
        )
        if record.state is StudyState.DONE:
            winner = record.result.get("trial") if record.result else None
            best = next((trial.metrics for trial in trials if trial.number == winner), {})
            use = BudgetUse(time_s=record.elapsed_s, joules=spent.energy.joules, best=best)
            _check_continues(record, use.reason_to_stop(budget, spec.objective), self.trials, failed)
        batches = (*spec.trial_batches, self.trials) if self.trials else spec.trial_batches
        return replace(spec, budget=budget, trial_batches=batches)


def retried_rungs(trials: Sequence[Trial], failed: Sequence[Trial]) -> list[Rung]:
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
