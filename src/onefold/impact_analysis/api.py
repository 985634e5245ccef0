"""`onefold.impact`: train all arms as one study, compress and measure the best of each, and compare them.

result = impact("workload.py", options=ImpactOptions(trials=30), device="raspberry-pi-4")
result.findings.effects, result.advice, result.report

Every configuration is trained once, even if several arms share it: shortly at first, and fully if it is compared, that
is, if it is among the best of an arm or of the pairs with its counterparts. An interrupted analysis continues where it
stopped when it is called again with the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

from onefold.compression.registry import check_recipe
from onefold.device import Device
from onefold.device.catalog import HOST
from onefold.device.host import find_device
from onefold.impact_analysis import Advice, ArmPlan, Findings, advice, plan_arms
from onefold.impact_analysis.model_analysis import FIGURES, PAGE, ModelAnalysis
from onefold.store.home import Home, free_name
from onefold.study.events import OnEvent, StageStarted, StudyProgress
from onefold.study.options import ParallelismOptions, SearchOptions
from onefold.study.spec import Spec
from onefold.study.study import Study
from onefold.study.tunable import Tunable, WorkloadLike
from onefold.vocabulary.argument_checks import suggest_fields, suggest_keywords
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.knobs import KnobOptions
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import StudyState
from onefold.vocabulary.space import Space
from onefold.vocabulary.variants import Recipe

PAPER_RECIPE = Recipe(sparsity=0.8, precision="int8")
DEFAULT_EPOCHS = 4
DEFAULT_BEST = 10


@suggest_fields
@dataclass(frozen=True, slots=True)
class ImpactOptions:
    """The size of an impact analysis."""

    trials: int = 30  # configurations per arm
    best: int | None = None  # of each arm, which are fully trained and compared; by default 10, or all of fewer trials
    max_epochs: int | None = None  # of the full training; by default what the space's `epochs` may be, or 4
    min_data: float = 0.2  # share of the data in the first rung, which is one epoch
    fine_tuning_epochs: int = 1  # after pruning

    def check(self) -> None:
        """Raise InputError for values out of range."""
        if self.trials < 2:
            raise InputError(f"trials must be at least 2 to compare arms, but got {self.trials}")
        if self.best is not None and self.best < 2:
            raise InputError(f"best must be at least 2 to compare arms, but got {self.best}")
        if self.best is not None and self.best > self.trials:
            raise InputError(f"best must be at most trials={self.trials}, but got {self.best}")
        if self.fine_tuning_epochs < 1:
            raise InputError(
                f"fine_tuning_epochs must be at least 1, since training follows pruning, got {self.fine_tuning_epochs}"
            )

    @property
    def best_per_arm(self) -> int:
        """Return how many models of each arm are fully trained and compared."""
        return min(DEFAULT_BEST, self.trials) if self.best is None else self.best

    def full_epochs(self, space: Space) -> int:
        """Return the epochs of the full training; raises InputError if they cut the hyperparameter `epochs` short."""
        largest = _largest_epochs(space)
        if self.max_epochs is None:
            return largest or DEFAULT_EPOCHS
        if largest is not None and self.max_epochs < largest:
            raise InputError(
                f"max_epochs must be at least {largest}, the largest value of the hyperparameter epochs, but got "
                f"{self.max_epochs}; raise it, or narrow the range of epochs"
            )
        return self.max_epochs


@dataclass(frozen=True)
class ImpactResult:
    """The findings of an impact analysis, and the files of its report."""

    study: str
    findings: Findings
    report: Path  # HTML page
    figures: Path  # JSON

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """Return the findings in plain language."""
        return advice(self.findings)


@suggest_keywords
def impact(
    workload: WorkloadLike | Tunable,
    *,
    device: str | Device = HOST,
    server: str | Device | None = None,
    recipe: Recipe | None = PAPER_RECIPE,
    options: ImpactOptions | None = None,
    parallelism: ParallelismOptions | None = None,
    knobs: str | KnobOptions = "on",
    seed: int = 0,
    name: str | None = None,
    home: str | Path | Home | None = None,
    on_event: OnEvent | None = None,
) -> ImpactResult:
    """Analyze how hyperparameters and compression affect the properties of a workload's models.

    Each arm is a random search: one with everything tuned, and one with each group and each hyperparameter held at its
    default. The best models of each arm, and those of the pairs that share a draw with the arm in which everything is
    tuned, are fully trained, compressed, measured on the device and compared.

    Args:
        workload: A `Workload` instance, or a reference such as "file.py:Class" or "digits".
        device: Name of the device to measure on, or the device itself.
        server: The device of the plain models, if it is another one.
        recipe: How models are compressed; None to analyze plain models only. By default as in the paper.
        options: Number of trials and models per arm, and how long they are trained.
        parallelism: Where trials run and how many in parallel; by default measured.
        knobs: "on", "off", "probe" or "recall", or all knob options.
        seed: The seed of all decisions and of the statistics.
        name: Name of the study. An unfinished or finished study of that name, with the same options, continues.
        home: Folder of studies and devices; by default $ONEFOLD_HOME or the user's data folder.
        on_event: Called with every `StudyEvent`.

    Returns:
        The findings, the advice that they lead to, and the files of the report.

    Raises:
        InputError: An argument is invalid, or a study of that name has other options; nothing is trained then.
        StudyFailed: No model could be trained and measured.
        StoreError: The report cannot be written; call again with the same name to continue.
    """
    options = options or ImpactOptions()
    options.check()
    if recipe is None:
        _check_plain(server, options)
    else:
        check_recipe(recipe)
        if recipe.is_plain:
            raise InputError("the recipe leaves models unchanged; set a compression method, or pass recipe=None")
    tunable = workload if isinstance(workload, Tunable) else Tunable(workload)
    home = home if isinstance(home, Home) else Home(home)
    target = device if isinstance(device, Device) else find_device(device, home.devices)
    plain_target = find_device(server, home.devices) if isinstance(server, str) else server
    planned = plan_analysis(tunable, options, seed=seed, name=name, home=home)
    plan, goal = planned.arms, tunable.objective.goals[0]
    study = _open_study(planned, home, tunable, on_event) or Study(
        tunable,
        objective=Objective(maximize=goal.metric) if goal.maximize else Objective(minimize=goal.metric),
        budget=planned.budget,
        search=planned.search,
        parallelism=parallelism,
        knobs=knobs,
        seed=seed,
        name=name or default_name([tunable], home),
        home=home,
        on_event=on_event,
    )
    shared = plan.total_trials - len(plan.configs)
    message = (
        f"{plan.total_trials} trials in {len(plan.arms)} arms; {shared} are shared, {len(plan.configs)} are trained"
        f"{f'; {plan.rejections}' if plan.rejections else ''}"
    )
    study.on_event(StageStarted(lambda: StudyProgress(study.name), message))
    if study.record.state is not StudyState.DONE:
        study.run()
    models = ModelAnalysis(study, plan, tunable, target, plain_target, home, recipe, options.fine_tuning_epochs)
    return ImpactResult(study.name, models.run(), study.folder / PAGE, study.folder / FIGURES)


@dataclass(frozen=True, slots=True)
class PlannedAnalysis:
    """What is decided before an analysis begins: its arms, search and budget, and the stored study that continues."""

    arms: ArmPlan
    search: SearchOptions
    budget: Budget
    stored: str | None  # name of the study


def plan_analysis(
    tunable: Tunable, options: ImpactOptions, *, seed: int = 0, name: str | None = None, home: Home
) -> PlannedAnalysis:
    """Draw the configurations of an analysis and build the model of each; nothing is trained.

    Raises InputError if the workload is a function, if it accepts no configuration of an arm, such as that of its
    defaults, or if a study of that name has other options.
    """
    if tunable.workload is None:
        raise InputError("a function has no model whose properties can be measured; give a workload")
    max_epochs = options.full_epochs(tunable.space)
    plan = plan_arms(tunable.space, options.trials, seed=seed, check=tunable.check_build)
    search = SearchOptions(
        "random",
        "top-k",
        options.best_per_arm,
        first=plan.configs,
        arms=[arm.members for arm in plan.arms],
        pairs=[arm.pairs for arm in plan.arms],
    )
    budget = Budget(trials=len(plan.configs), kind="multi", max_epochs=max_epochs, min_data=options.min_data)
    return PlannedAnalysis(plan, search, budget, _stored_study(name, home, search, budget))


def _check_plain(server: str | Device | None, options: ImpactOptions) -> None:
    """Raise InputError for arguments that have no meaning without compression."""
    if server is not None:
        given = server if isinstance(server, str) else server.name
        raise InputError(
            "with recipe=None there are only plain models, which are measured on device; leave server out, or give "
            f'device="{given}" instead of server="{given}"'
        )
    if options.fine_tuning_epochs != ImpactOptions().fine_tuning_epochs:
        raise InputError(
            "with recipe=None there is no pruning that fine-tuning could follow; leave fine_tuning_epochs out, got "
            f"{options.fine_tuning_epochs}"
        )


def _stored_study(name: str | None, home: Home, search: SearchOptions, budget: Budget) -> str | None:
    """Return the name if there is a stored study of it; raises InputError if that differs in arms or budget."""
    with closing(home.store()) as store:
        record = next((record for record in store.studies() if record.name == name), None)
    if record is None:
        return None
    spec = Spec.from_json(record.spec)
    arms = tuple(tuple(arm) for arm in search.arms)
    pairs = tuple(tuple(group) for group in search.pairs)
    given = (tuple(search.first), arms, pairs, budget, search.top_k)
    if (spec.first, spec.arms, spec.pairs, spec.budget, spec.top_k) != given:
        raise InputError(
            f"there is a study {record.name!r} already, with other arms or another budget; use its options, or choose "
            "another name"
        )
    return record.name


def _open_study(planned: PlannedAnalysis, home: Home, tunable: Tunable, on_event: OnEvent | None) -> Study | None:
    if planned.stored is None:
        return None
    return Study.open(planned.stored, home=home, workload=tunable.reference or tunable.workload, on_event=on_event)


def default_name(tunables: Sequence[Tunable], home: Home) -> str:
    """Return a free name for a new analysis of a workload, or the free start of the names of several."""
    with closing(home.store()) as store:
        taken = {record.name for record in store.studies()}
    if len(tunables) == 1:
        return free_name(f"{tunables[0].name}-impact", taken)
    numbers = (f"impacts-{number}" for number in count(1))
    return next(name for name in numbers if not any(f"{name}-{each.name}" in taken for each in tunables))


def _largest_epochs(space: Space) -> int | None:
    """Return the largest value of the hyperparameter `epochs`; None without it."""
    values = space.parameters["epochs"].grid(2) if "epochs" in space.parameters else ()  # with both ends of a range
    return max((value for value in values if isinstance(value, int)), default=None)
