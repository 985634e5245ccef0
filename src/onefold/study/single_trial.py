"""One configuration, trained with its knobs tuned: a study of a single trial, durable like any other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onefold.store.home import Home
from onefold.study.events import Listener
from onefold.study.parallelism import cores
from onefold.study.study import Study
from onefold.study.tunable import Given, Subject
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.knobs import KnobOptions
from onefold.vocabulary.objective import Budget
from onefold.vocabulary.records import Value
from onefold.vocabulary.space import Choice, Space


def training(
    workload: Given | Subject,
    config: Mapping[str, Value] | None = None,
    *,
    epochs: int = Budget.max_epochs,
    knobs: str | KnobOptions = "on",
    name: str | None = None,
    home: str | Path | Home | None = None,
    seed: int = 0,
    accelerator: str = "cpu",
    threads: int | None = None,
    listener: Listener | None = None,
) -> Study:
    """The study that trains this configuration; what it leaves open has the author's defaults."""
    subject = workload if isinstance(workload, Subject) else Subject(workload)
    if subject.workload is None:
        raise InputError("a function trains nothing by itself: train a workload")
    chosen = subject.space.complete(config or {})
    return Study(
        subject,
        Space(**{name: Choice(value) for name, value in chosen.items()}),
        budget=Budget(trials=1, max_epochs=epochs),
        search="grid",
        rungs="none",
        knobs=knobs,
        seed=seed,
        name=name,
        home=home,
        accelerator=accelerator,
        parallel=1,
        threads=threads or cores(),
        listener=listener,
    )
