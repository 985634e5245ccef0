"""The public functions over studies: `tune` searches, `train` trains one configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from onefold.compression.selection import SelectionOptions
from onefold.search import Algorithm
from onefold.serving.options import ServingOptions
from onefold.store.home import Home
from onefold.study.events import OnEvent
from onefold.study.options import CompressMode, ParallelismOptions, SearchOptions
from onefold.study.parallelism import cores
from onefold.study.result import Result
from onefold.study.study import DeviceLike, Study
from onefold.study.tunable import Tunable, WorkloadLike
from onefold.vocabulary.argument_checks import suggest_keywords
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.errors import BudgetError, InputError
from onefold.vocabulary.forks import ForkOptions
from onefold.vocabulary.knobs import KnobOptions
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Value
from onefold.vocabulary.space import SYSTEM, Choice, Parameter, Space


@suggest_keywords
def tune(
    workload: WorkloadLike | Tunable,
    space: Space | None = None,
    *,
    trials: int | None = None,
    minutes: float | None = None,
    max_epochs: int | None = None,
    device: DeviceLike | Sequence[DeviceLike] = (),
    objective: Objective | None = None,
    budget: Budget | None = None,
    search: Algorithm | SearchOptions = "tpe",
    serving: ServingOptions | None = None,
    knobs: str | KnobOptions = "on",
    compress: CompressMode | ForkOptions | SelectionOptions = "off",
    parallelism: ParallelismOptions | None = None,
    seed: int = 0,
    name: str | None = None,
    home: str | Path | Home | None = None,
    on_event: OnEvent | None = None,
) -> Result:
    """Find the best configuration of a workload or function, train it, and measure how to serve it.

    Args:
        workload: A `Workload` instance, a reference such as "file.py:Class" or "digits", or a plain function.
        space: The search space; by default the workload's own. Functions need one.
        trials: The number of configurations to try; overrides `budget.trials`.
        minutes: Stop after this many minutes; overrides `budget.minutes`.
        max_epochs: The epochs of the full budget; overrides `budget.max_epochs`.
        device: The devices that the model will be served on: names from `onefold devices`, or `Device` records.
        objective: What to maximize, minimize and require; by default the workload's own objective.
        budget: When the study stops and what each rung may spend.
        search: The search algorithm by name, one for each group of the space, or all search options.
        serving: How serving points are searched and judged; needs a device.
        knobs: "on", "off", "probe" or "recall", or all knob options.
        compress: "off"; "in-loop" to fork trials into compressed variants while they are tuned; "after" to compress the
            best trials when the study has ended; a `ForkOptions` means "in-loop" with these options, and a
            `SelectionOptions` "after" with these options of the selection.
        parallelism: Where trials run and how many in parallel; by default measured.
        seed: The seed of all decisions. The same seed and results give the same decisions.
        name: The name of the study; by default the workload's name and a number.
        home: The folder of studies; by default $ONEFOLD_HOME or the user's data folder.
        on_event: Called with every `StudyEvent`; by default events are logged.

    Returns:
        The best trial with its trained model, all other trials, and where the report is.

    Raises:
        InputError: An argument is invalid.
        StudyFailed: No trial gave a result.
    """
    limits = {"trials": trials, "minutes": minutes, "max_epochs": max_epochs}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    return Study(
        workload,
        space,
        device=device,
        objective=objective,
        budget=replace(budget or Budget(), **given),  # type: ignore[arg-type]
        search=search,
        serving=serving,
        knobs=knobs,
        compress=compress,
        parallelism=parallelism,
        seed=seed,
        name=name,
        home=home,
        on_event=on_event,
    ).run()


@suggest_keywords
def train(
    workload: WorkloadLike | Tunable,
    config: Mapping[str, Value] | None = None,
    *,
    epochs: int = Budget.max_epochs,
    knobs: str | KnobOptions = "on",
    accelerator: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    name: str | None = None,
    home: str | Path | Home | None = None,
    on_event: OnEvent | None = None,
) -> Result:
    """Train one configuration with its knobs tuned while it trains.

    Args:
        workload: A `Workload` instance or a reference such as "file.py:Class" or "digits".
        config: Values of parameters; the others have the workload's defaults.
        epochs: The number of epochs.
        knobs: "on", "off", "probe" or "recall", or all knob options.
        accelerator: "cpu", "cuda" or "cuda:1".
        threads: The threads to begin with; by default one per core.
        seed: The seed of the training.
        name: The name of the study of this one trial.
        home: The folder of studies; by default $ONEFOLD_HOME or the user's data folder.
        on_event: Called with every `StudyEvent`; by default events are logged.

    Returns:
        The trained model and its metrics.

    Raises:
        InputError: An argument is invalid, or `workload` is a function.
    """
    return single_trial(
        workload,
        config,
        epochs=epochs,
        knobs=knobs,
        accelerator=accelerator,
        threads=threads,
        seed=seed,
        name=name,
        home=home,
        on_event=on_event,
    ).run()


def _system_group(space: Space) -> dict[str, dict[str, Parameter]]:
    return {SYSTEM: space.inner[SYSTEM]} if SYSTEM in space.inner else {}


def single_trial(
    workload: WorkloadLike | Tunable,
    config: Mapping[str, Value] | None = None,
    *,
    epochs: int = Budget.max_epochs,
    knobs: str | KnobOptions = "on",
    accelerator: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    name: str | None = None,
    home: str | Path | Home | None = None,
    on_event: OnEvent | None = None,
) -> Study:
    """Return the study of one trial that `train` runs: durable and resumable like any other."""
    tunable = workload if isinstance(workload, Tunable) else Tunable(workload)
    if tunable.workload is None:
        raise InputError("a plain function has no training loop; give a workload")
    if epochs < 1:
        raise BudgetError(f"epochs must be 1 or more, got {epochs}")
    complete = tunable.space.complete(config or {})
    return Study(
        tunable,
        Space(**{name: Choice(value) for name, value in complete.items()}, **_system_group(tunable.space)),
        budget=Budget(trials=1, max_epochs=epochs),
        search=SearchOptions("grid", rungs="none"),
        knobs=knobs,
        parallelism=ParallelismOptions(1, cores() if threads is None else threads, accelerator),
        seed=seed,
        name=name,
        home=home,
        on_event=on_event,
    )
