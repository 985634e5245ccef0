"""The summary of a study, read from the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from onefold.report import Summary, summarize
from onefold.store import Store
from onefold.study.spec import Spec
from onefold.vocabulary.ranking import ranked
from onefold.vocabulary.records import Epoch, RungState, StudyState, Trial

MAX_CURVES = 300  # learning curves that are read; more lines cannot be told apart


def summary_of(
    name: str,
    store: Store,
    *,
    folder: Path,
    is_running: bool = True,
    epochs: Literal["all", "curves", "none"] = "all",
) -> Summary:
    """Return the summary of a study at this moment.

    `is_running` says whether a process runs it: a study that was killed is still stored as running. `folder`
    has its files. `epochs` says which epochs are read, of which there may be millions: all, those of the learning
    curves of the best trials, or only those that the other facts need.
    """
    record = store.study(name)
    if record.state is StudyState.RUNNING and not is_running:
        record = replace(record, state=StudyState.INTERRUPTED, reason="killed; resume it")
    spec = Spec.from_json(record.spec)
    trials = store.trials(name)
    last_epochs: dict[int, int] = {}
    for (trial, _), count in store.epoch_counts(name).items():
        last_epochs[trial] = max(count.last, last_epochs.get(trial, 0))
    has_result = any(trial.finished_rungs for trial in trials)
    if epochs == "all" or not has_result:  # without a result, trials are ranked by their epochs
        read = store.epochs(name)
    elif epochs == "curves":
        best = [trial.number for trial in ranked(trials, spec.objective)[:MAX_CURVES]]
        read = [epoch for trial in sorted({*best, *_open(trials)}) for epoch in store.epochs(name, trial)]
    else:
        read = open_epochs(name, store, trials)
    return summarize(
        record,
        trials,
        read,
        last_epochs=last_epochs,
        servings=store.trial_surfaces(name),
        devices=[device.name for device in spec.devices],
        quality=spec.workload_objective.goals[0] if spec.workload_objective is not None else None,
        epoch_objective=spec.epoch_objective,
        knob_records=store.knob_records(name),
        folder=str(folder),
    )


def open_epochs(name: str, store: Store, trials: Sequence[Trial]) -> list[Epoch]:
    """Return the epochs of the trials that have a rung without a result."""
    return [epoch for trial in _open(trials) for epoch in store.epochs(name, trial)]


def _open(trials: Sequence[Trial]) -> list[int]:
    return [trial.number for trial in trials if any(rung.state is RungState.DECIDED for rung in trial.rungs)]
