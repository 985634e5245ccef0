"""`onefold.impact`: train all arms as one study, compress and measure the best of each, and compare them.

result = impact("workload.py", options=ImpactOptions(trials=30), device="raspberry-pi-4")
result.findings.effects, result.advice, result.report

Every configuration is trained once, even if several arms share it: shortly at first, and fully if it is among the best
of an arm. An interrupted analysis continues where it stopped when it is called again with the same name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from onefold.compression.registry import check_recipe
from onefold.compression.trial_variants import TrialVariants, VariantRequest
from onefold.device import Device
from onefold.device.catalog import HOST
from onefold.device.host import find_device, host
from onefold.engine import open_engine
from onefold.impact_analysis import (
    Advice,
    Arm,
    ArmPlan,
    Findings,
    ImpactMeasurements,
    MeasuredModel,
    advice,
    findings,
    plan_arms,
)
from onefold.report.impact import ImpactReport
from onefold.store.home import Home, free_name
from onefold.study import parallelism
from onefold.study.events import OnEvent, StageStarted, StudyProgress
from onefold.study.options import ParallelismOptions, SearchOptions
from onefold.study.spec import Spec
from onefold.study.study import Study
from onefold.study.tunable import Tunable, WorkloadLike
from onefold.training.trial_files import best_weights_file, trial_files
from onefold.vocabulary.argument_checks import suggest_fields, suggest_keywords
from onefold.vocabulary.errors import InputError, StoreError, StudyFailed
from onefold.vocabulary.knobs import KnobOptions
from onefold.vocabulary.objective import Budget, Objective
from onefold.vocabulary.records import Metrics, RungState, StudyState, Trial
from onefold.vocabulary.variants import Recipe, Variant

PAPER_RECIPE = Recipe(sparsity=0.8, precision="int8")
PAGE, FIGURES = "impact.html", "impact.json"


@suggest_fields
@dataclass(frozen=True, slots=True)
class ImpactOptions:
    """The size of an impact analysis."""

    trials: int = 30  # configurations per arm
    best: int = 10  # of each arm, which are fully trained and compared
    max_epochs: int = 4  # of the full training
    min_data: float = 0.2  # share of the data in the first rung, which is one epoch
    fine_tuning_epochs: int = 1  # after pruning

    def check(self) -> None:
        """Raise InputError for values out of range."""
        if self.best < 2:
            raise InputError(f"best must be at least 2 to compare arms, but got {self.best}")
        if self.best > self.trials:
            raise InputError(f"best must be at most trials={self.trials}, but got {self.best}")
        if self.fine_tuning_epochs < 1:
            raise InputError(
                f"fine_tuning_epochs must be at least 1, since training follows pruning, got {self.fine_tuning_epochs}"
            )


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
    default. The best models of each arm are fully trained, compressed and measured on the device, and compared.

    Args:
        workload: A `Workload` instance, or a reference such as "file.py:Class" or "digits".
        device: Name of the device to measure on, or the device itself.
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
    if recipe is not None:
        check_recipe(recipe)
        if recipe.is_plain:
            raise InputError("the recipe leaves models unchanged; set a compression method, or pass recipe=None")
    tunable = workload if isinstance(workload, Tunable) else Tunable(workload)
    if tunable.workload is None:
        raise InputError("a function has no model whose properties can be measured; give a workload")
    home = home if isinstance(home, Home) else Home(home)
    target = device if isinstance(device, Device) else find_device(device, home.devices)
    plan = plan_arms(tunable.space, options.trials, seed=seed, check=tunable.check)
    goal = tunable.objective.goals[0]
    search = SearchOptions("random", "top-k", options.best, first=plan.configs, arms=[arm.members for arm in plan.arms])
    budget = Budget(trials=len(plan.configs), kind="multi", max_epochs=options.max_epochs, min_data=options.min_data)
    study = _open_study(name, home, tunable, search, budget, on_event) or Study(
        tunable,
        objective=Objective(maximize=goal.metric) if goal.maximize else Objective(minimize=goal.metric),
        budget=budget,
        search=search,
        parallelism=parallelism,
        knobs=knobs,
        seed=seed,
        name=name or default_name(tunable, home),
        home=home,
        on_event=on_event,
    )
    shared = plan.total_trials - len(plan.configs)
    message = (
        f"{plan.total_trials} trials in {len(plan.arms)} arms; {shared} are shared, {len(plan.configs)} are trained"
    )
    study.on_event(StageStarted(lambda: StudyProgress(study.name), message))
    if study.record.state is not StudyState.DONE:
        study.run()
    return _Analysis(study, plan, tunable, target, home, recipe, options.fine_tuning_epochs).run()


@dataclass(frozen=True)
class _Analysis:
    """Compress and measure the models of a finished study, and write the report."""

    study: Study
    plan: ArmPlan
    tunable: Tunable
    device: Device
    home: Home
    recipe: Recipe | None
    fine_tuning_epochs: int

    def run(self) -> ImpactResult:
        folder = self.study.folder
        with self.home.study_lock(self.study.name):
            trials = {trial.number: trial for trial in self.study.trials}
            objective = self.study.spec.objective
            best = {arm.name: _best_trials(arm, trials, objective, self._best_count(arm)) for arm in self.plan.arms}
            variants, failures = self._build_variants(folder, trials, best)
            measurements = self._measurements(trials, best, variants, failures)
            if not measurements.best_models():
                reason = next(iter(measurements.failures.values()), "no trial was fully trained")
                raise StudyFailed(f"the study {self.study.name!r} has no models to compare: {reason}")
            self._report("comparing the arms")
            result = findings(measurements, seed=self.study.spec.seed)
            self._write_report(folder, result)
            self._remove_files(folder, best)
        return ImpactResult(self.study.name, result, folder / PAGE, folder / FIGURES)

    def _write_report(self, folder: Path, result: Findings) -> None:
        try:
            report = ImpactReport(result)
            (folder / PAGE).write_text(report.as_html(), encoding="utf-8")
            (folder / FIGURES).write_text(json.dumps(report.as_json(), indent=1), encoding="utf-8")
        except OSError as error:
            raise StoreError(
                f"the report cannot be written ({error}); make {folder} writable or free some space, and run the "
                f"analysis again with the name {self.study.name!r}: it continues from here"
            ) from error

    def _best_count(self, arm: Arm) -> int:
        """Return how many models of an arm are compared: of an arm with fewer trials, the same share of them."""
        best, largest = self.study.spec.top_k, max(len(other.members) for other in self.plan.arms)
        return max(2, round(best * len(arm.members) / largest))

    def _build_variants(
        self, folder: Path, trials: Mapping[int, Trial], best: Mapping[str, Sequence[int]]
    ) -> tuple[Mapping[int, tuple[Variant, ...]], Mapping[int, str]]:
        spec = self.study.spec
        recipes = (self.recipe,) if self.recipe is not None else ()
        chosen = list(dict.fromkeys(number for group in best.values() for number in group))
        others = [number for number in self.plan.arms[0].members if number not in chosen]
        requests = [
            VariantRequest(
                number,
                trials[number].config,
                str(weights),
                recipes if number in chosen else (),
                self.fine_tuning_epochs,
                on_test_data=True,
            )
            for number in (*chosen, *others)
            if (weights := self._weights(folder, trials, number)) is not None
        ]

        def on_progress(done: int, total: int) -> None:
            self._report(f"compressing and measuring on {self.device.name}: {done} of {total} models")

        shutil.rmtree(folder / "data", ignore_errors=True)  # left by a killed run, and possibly outdated
        setup = self.tunable.setup(folder, spec.parallelism.accelerator)
        slots = spec.parallelism.parallel or parallelism.most_workers(spec.parallelism.accelerator)
        with (
            open_engine(
                spec.parallelism.engine,
                setup,
                slots=slots,
                hang_timeout_s=spec.parallelism.hang_timeout_s,
                memory_bytes=spec.parallelism.memory_bytes,
            ) as engine,
            TrialVariants(
                engine,
                self.device,
                host(self.home.devices),
                self.home.locks.measurement,
                folder / "forms",
                on_progress=on_progress,
            ) as builder,
        ):
            return builder.build(requests), builder.failures

    def _report(self, message: str) -> None:
        self.study.on_event(StageStarted(lambda: StudyProgress(self.study.name), message))

    def _weights(self, folder: Path, trials: Mapping[int, Trial], number: int) -> Path | None:
        trial = trials.get(number)
        if trial is None or not trial.finished_rungs:
            return None
        return best_weights_file(folder, number, trial.finished_rungs[-1].rung)

    def _measurements(
        self,
        trials: Mapping[int, Trial],
        best: Mapping[str, tuple[int, ...]],
        variants: Mapping[int, tuple[Variant, ...]],
        failures: Mapping[int, str],
    ) -> ImpactMeasurements:
        goal = self.study.spec.objective.goals[0]
        models = {
            number: MeasuredModel(
                number,
                trials[number].config,
                trials[number].metrics[goal.metric],
                _properties(forms[0], goal.metric),
                _properties(forms[1], goal.metric) if len(forms) > 1 else {},
            )
            for number, forms in variants.items()
        }
        failed = {number: trial.failure.reason for number, trial in trials.items() if trial.failure is not None}
        return ImpactMeasurements(
            workload=self.tunable.name,
            metric=goal.metric,
            higher_is_better=goal.maximize,
            space=self.study.spec.space,
            arms=self.plan.arms,
            best={arm: tuple(number for number in group if number in models) for arm, group in best.items()},
            configs={number: trial.config for number, trial in trials.items()},
            scores={
                number: rung.metrics[goal.metric]
                for number, trial in trials.items()
                if (rung := next((rung for rung in trial.current_rungs if rung.rung == 0), None)) is not None
                and rung.state is RungState.DONE
            },
            models=models,
            device=self.device.name,
            recipe=str(self.recipe) if self.recipe is not None else "",
            ways=self._how_measured(goal.metric, [form for forms in variants.values() for form in forms]),
            failures={**failed, **failures},
        )

    def _how_measured(self, metric: str, variants: Sequence[Variant]) -> Mapping[str, str]:
        """Describe how each property was measured."""
        data = "test" if self.study.record.result.get("test") else "validation"
        source = variants[0].source.value if variants else "unknown"
        energy = variants[0].energy.source if variants else "unknown"
        return {
            metric: f"of the runtime's outputs on the {data} data; models are ranked on the validation data",
            "latency_s": f"{source}: median of at least 30 runs at batch size 1 after warm-up, with the faster "
            "number of threads",
            "energy_j": f"of a single sample: {energy}",
            "size_bytes": "of the ONNX file",
            "encoded_bytes": "of the file packed with DEFLATE or zstd, whichever is smaller; sparse tensors as bitmaps",
            "flops": "of a single sample, counted on the graph",
            "useful_flops": "without multiplications by zero weights",
            "memory_bytes": "of the serving process",
        }

    def _remove_files(self, folder: Path, best: Mapping[str, Sequence[int]]) -> None:
        """Remove the files of trials that were not measured."""
        shutil.rmtree(folder / "data", ignore_errors=True)
        kept = {number for group in (self.plan.arms[0].members, *best.values()) for number in group}
        for number in range(len(self.plan.configs)):
            for file in trial_files(folder, number) if number not in kept else ():
                file.unlink()


def _open_study(
    name: str | None, home: Home, tunable: Tunable, search: SearchOptions, budget: Budget, on_event: OnEvent | None
) -> Study | None:
    """Return the stored study of that name, if there is one; raises InputError if it differs in arms or budget."""
    with closing(home.store()) as store:
        record = next((record for record in store.studies() if record.name == name), None)
    if record is None:
        return None
    spec = Spec.from_json(record.spec)
    arms = tuple(tuple(arm) for arm in search.arms)
    if (spec.first, spec.arms, spec.budget, spec.top_k) != (tuple(search.first), arms, budget, search.top_k):
        raise InputError(
            f"there is a study {record.name!r} already, with other arms or another budget; use its options, or choose "
            "another name"
        )
    return Study.open(record.name, home=home, workload=tunable.reference or tunable.workload, on_event=on_event)


def default_name(tunable: Tunable, home: Home) -> str:
    """Return a free name for a new analysis of a workload."""
    with closing(home.store()) as store:
        return free_name(f"{tunable.name}-impact", {record.name for record in store.studies()})


def _best_trials(arm: Arm, trials: Mapping[int, Trial], objective: Objective, count: int) -> tuple[int, ...]:
    """Return the trials that an arm promoted, ranked by their final metrics."""
    last = max((rung.rung for trial in trials.values() for rung in trial.finished_rungs), default=0)
    promoted = _rank([trials[number] for number in arm.members if number in trials], 0, objective)[:count]
    return tuple(trial.number for trial in _rank(promoted, last, objective))


def _rank(trials: Sequence[Trial], rung: int, objective: Objective) -> list[Trial]:
    """Return the trials that finished a rung, best first by its metrics."""
    metrics = {
        trial.number: finished.metrics for trial in trials for finished in trial.finished_rungs if finished.rung == rung
    }
    finishers = [trial for trial in trials if trial.number in metrics]
    return [finishers[index] for index in objective.order([metrics[trial.number] for trial in finishers])]


def _properties(variant: Variant, metric: str) -> Metrics:
    properties = {
        metric: variant.metrics[metric],
        "latency_s": variant.latency_s,
        "size_bytes": float(variant.size_bytes),
        "encoded_bytes": float(variant.smallest_bytes),
        "flops": variant.flops,
        "useful_flops": variant.useful_flops,
    }
    if variant.energy.joules is not None:
        properties["energy_j"] = variant.energy.joules
    if variant.memory_bytes is not None:
        properties["memory_bytes"] = float(variant.memory_bytes)
    return properties
