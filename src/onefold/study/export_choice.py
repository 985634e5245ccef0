"""Which trial of a study is exported: the one handed over, a given one, or another one of the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence

from onefold.store import StudyRecord
from onefold.study.spec import Spec
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.preference import Preference
from onefold.vocabulary.ranking import ranked
from onefold.vocabulary.records import StudyState, Trial


def trial_handed_over(record: StudyRecord) -> int | None:
    """Return the number of the trial whose model a study has handed over; None if it has not ended."""
    return record.result.get("trial") if record.state is StudyState.DONE else None


def trial_to_export(
    record: StudyRecord, trials: Sequence[Trial], number: int | None, prefer: Preference | None
) -> Trial:
    """Return the trial with this number; without one, the trial that is preferred or that was handed over.

    Raises InputError if there is none, or if both a number and a preference are given.
    """
    if prefer is not None:
        if number is not None:
            raise InputError(
                f"trial={number} names the model to export, so that nothing is left to prefer; give one of them"
            )
        number = _preferred(Spec.from_json(record.spec).objective.preferring(prefer), trials)
    if number is None:
        number = trial_handed_over(record)
    if number is None:
        raise InputError(f"the study {record.name!r} has handed over no model; name one of its trials")
    known = {trial.number: trial for trial in trials}
    if number not in known:
        has = f"0 to {max(known)}" if known else "none"
        raise InputError(f"the study {record.name!r} has no trial {number}; its trials: {has}")
    return known[number]


def _preferred(objective: Objective, trials: Sequence[Trial]) -> int | None:
    """Return the number of the trial to hand over by this objective; None if no trial has a result."""
    finished = [trial.with_metrics(objective.completed(trial.metrics)) for trial in trials if trial.finished_rungs]
    if finished:
        objective.check_guard({name for trial in finished for name in trial.metrics})
    ranking = ranked(finished, objective)
    return ranking[0].number if ranking else None
