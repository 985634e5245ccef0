"""One configuration, trained with its knobs tuned: a study of a single trial, durable like any other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onefold.errors import InputError, suggestion
from onefold.knobs import KnobWish
from onefold.objective import Budget
from onefold.records import Config, Value
from onefold.space import Choice, Space
from onefold.study.home import Home
from onefold.study.machine import cores
from onefold.study.news import Listener
from onefold.study.study import Study
from onefold.study.subject import Given, Subject


def training(
    workload: Given | Subject,
    config: Mapping[str, Value] | None = None,
    *,
    epochs: int = Budget.max_epochs,
    knobs: str | KnobWish = "on",
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
    chosen = whole_config(subject.space, config or {})
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


def whole_config(space: Space, given: Mapping[str, Any]) -> Config:
    """The configuration with defaults for what is not given; tells what the space does not know and what is missing."""
    for name in given:
        if name not in space.parameters:
            raise InputError(f"the workload has no parameter {name!r}{suggestion(name, space.parameters)}")
    values: dict[str, Value] = {}
    for name in space.in_order():
        if not space.is_active(name, values):
            continue
        parameter = space.parameters[name]
        default = parameter.grid(1)[0] if parameter.size == 1 else parameter.default
        if name not in given and default is None and parameter.size > 1:
            raise InputError(f"the configuration says nothing about {name!r}, and the workload has no default for it")
        values[name] = given.get(name, default)
    return Config(values)
