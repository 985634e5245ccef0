"""Probe the knobs of several jobs before they are needed (the offline campaign of PipeTune)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from onefold.store.home import Home
from onefold.study.api import single_trial
from onefold.study.events import OnEvent
from onefold.study.tunable import Tunable
from onefold.vocabulary.errors import InputError, SpaceError
from onefold.vocabulary.knobs import KnobOptions, KnobRecord, has_probed
from onefold.vocabulary.records import Config

BATCH_SIZES = (32, 64, 512, 1024)  # those of PipeTune
REPEATS = 2
EPOCHS = 3
MAX_ATTEMPTS = 8  # at one job, each with twice the epochs


@dataclass(frozen=True, slots=True)
class ProfiledJob:
    """A job of the campaign, and what knob tuning did in it."""

    workload: str
    config: Config
    records: tuple[KnobRecord, ...]


def profile_knobs(
    workloads: Sequence[str],
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    repeats: int = REPEATS,
    epochs: int = EPOCHS,
    optimize_for: str = "time",
    home: str | Path | Home | None = None,
    on_event: OnEvent | None = None,
) -> Iterator[ProfiledJob]:
    """Train each workload with each batch size, probe every combination of its knobs, and remember the best.

    Args:
        workloads: References such as "digits" or "file.py:Class".
        batch_sizes: Values of the parameter `batch_size`; those that a workload does not permit are left out.
        repeats: How often each job is profiled.
        epochs: The number of epochs of each job. One that ends before all knobs are probed is repeated with twice as
            many.
        optimize_for: "time" or "energy".
        home: The home of Onefold; the default is `$ONEFOLD_HOME` or the data folder of the user.
        on_event: Called with every `StudyEvent`.

    Yields:
        One record per job, when it has ended.

    Raises:
        InputError: An argument is invalid.
    """
    if repeats < 1:
        raise InputError(f"repeats must be 1 or more, got {repeats}")
    knobs = KnobOptions("probe", optimize_for, probing="grid")  # type: ignore[arg-type]
    knobs.check()
    jobs = [(workload, config) for workload in workloads for config in _configs(Tunable(workload), batch_sizes)]
    for _ in range(repeats):
        for workload, config in jobs:
            for attempt in range(MAX_ATTEMPTS):
                study = single_trial(
                    workload, config, epochs=epochs * 2**attempt, knobs=knobs, home=home, on_event=on_event
                )
                study.run()
                if has_probed(study.knob_records):
                    break
            yield ProfiledJob(workload, config, tuple(study.knob_records))


def _configs(tunable: Tunable, batch_sizes: Sequence[int]) -> list[Config]:
    """Return the default configuration with each permitted batch size, or alone if it has no batch size."""
    defaults = tunable.space.complete({})
    if "batch_size" not in defaults:
        return [defaults]
    configs = [Config({**defaults, "batch_size": batch_size}) for batch_size in batch_sizes]
    permitted = [config for config in configs if _is_permitted(tunable, config)]
    if not permitted:
        raise InputError(f"{tunable.name} permits none of the batch sizes {', '.join(map(str, batch_sizes))}")
    return permitted


def _is_permitted(tunable: Tunable, config: Config) -> bool:
    try:
        tunable.space.check(config)
    except SpaceError:
        return False
    return True
