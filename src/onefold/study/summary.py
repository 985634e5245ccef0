"""The summary of a study, read from the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onefold.report import Summary, summarize
from onefold.store import Store
from onefold.study.spec import Spec
from onefold.vocabulary.records import StudyState


def summary_of(name: str, store: Store, *, folder: Path, is_running: bool = True) -> Summary:
    """Return the summary of a study at this moment.

    `is_running` says whether a process runs it: a study that was killed is still stored as running. `folder`
    has its files.
    """
    record = store.study(name)
    if record.state is StudyState.RUNNING and not is_running:
        record = replace(record, state=StudyState.INTERRUPTED, reason="killed; resume it")
    spec = Spec.from_json(record.spec)
    return summarize(
        record,
        store.trials(name),
        store.epochs(name),
        servings=store.trial_surfaces(name),
        devices=[device.name for device in spec.devices],
        quality=spec.workload_objective.goals[0] if spec.workload_objective is not None else None,
        epoch_objective=spec.epoch_objective,
        knob_records=store.knob_records(name),
        folder=str(folder),
    )
