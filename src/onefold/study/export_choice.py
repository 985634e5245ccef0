"""Which trial of a study is exported: the one handed over, a given one, or another one of the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onefold.serving.ranked_trials import Servings
from onefold.serving.recommendation import Recommendation, recommend
from onefold.store import StudyRecord
from onefold.study.spec import Spec
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.preference import Preference
from onefold.vocabulary.records import StudyState, Trial


def trial_handed_over(record: StudyRecord) -> int | None:
    """Return the number of the trial whose model a study has handed over; None if it has not ended."""
    return record.result.get("trial") if record.state is StudyState.DONE else None


@dataclass(frozen=True, slots=True)
class ExportChoice:
    """The trial to export and, if it was chosen from the Pareto front, the sentences that say why."""

    trial: Trial
    why: tuple[str, ...] = ()

    @property
    def for_card(self) -> dict[str, Any]:
        """Return what the model's card says of the choice."""
        return {"why": list(self.why)} if self.why else {}


def choose_export(
    record: StudyRecord,
    trials: Sequence[Trial],
    number: int | None,
    prefer: Preference | None,
    servings: Servings | None = None,
) -> ExportChoice:
    """Return the trial with this number; without one, the trial that is preferred or that was handed over.

    `servings` are the serving costs of the trials by device, for the reasons of a preference. Raises InputError if
    there is no such trial, or if both a number and a preference are given.
    """
    why: tuple[str, ...] = ()
    if prefer is not None:
        if number is not None:
            raise InputError(
                f"trial={number} names the model to export, so that nothing is left to prefer; give one of them"
            )
        recommended = _recommended(Spec.from_json(record.spec), trials, prefer, servings or {})
        if recommended is not None:
            number, why = recommended.trial, (*recommended.shortfalls, *recommended.reasons)
    if number is None:
        number = trial_handed_over(record)
    if number is None:
        raise InputError(f"the study {record.name!r} has handed over no model; name one of its trials")
    known = {trial.number: trial for trial in trials}
    if number not in known:
        has = f"0 to {max(known)}" if known else "none"
        raise InputError(f"the study {record.name!r} has no trial {number}; its trials: {has}")
    return ExportChoice(known[number], why)


def _recommended(spec: Spec, trials: Sequence[Trial], prefer: Preference, servings: Servings) -> Recommendation | None:
    """Return the recommendation by a preference; None if no trial has a result."""
    objective = spec.objective.preferring(prefer)
    finished = [trial.with_metrics(objective.completed(trial.metrics)) for trial in trials if trial.finished_rungs]
    if finished:
        objective.check_guard({name for trial in finished for name in trial.metrics})
    quality = (spec.workload_objective or objective).goals[0]
    return recommend(finished, objective, servings, [device.name for device in spec.devices], quality)
