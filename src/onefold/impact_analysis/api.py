"""What tuning really changes: all arms trained as one study, the best of each compressed, measured and compared.

found = impact_of("workload.py", trials=30, device="raspberry-pi-4")
found.findings.effects, found.advice, found.report

Every configuration is trained once, however many arms try it, and only shortly at first; the best of each arm are
trained in full. Cut off, it goes on where it stopped when it is asked for again under the same name.
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
from onefold.device.catalogue import HOST
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
    arms,
    findings,
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
from onefold.vocabulary.errors import InputError, StoreError, StudyFailed
from onefold.vocabulary.knobs import KnobOptions
from onefold.vocabulary.objective import Budget, Objective
from onefold.vocabulary.records import Metrics, RungState, StudyState, Trial
from onefold.vocabulary.variants import Recipe, Variant

AS_IN_THE_PAPER = Recipe(sparsity=0.8, precision="int8")
PAGE, FIGURES = "impact.html", "impact.json"


@dataclass(frozen=True)
class Impact:
    """What a study of impact came to, and where it is written down."""

    study: str
    findings: Findings
    report: Path  # the page
    figures: Path  # the same as JSON

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What the findings say in plain words."""
        return advice(self.findings)


def impact_of(
    workload: WorkloadLike | Tunable,
    *,
    trials: int = 30,
    best: int = 10,
    max_epochs: int = 4,
    min_data: float = 0.2,
    recipe: Recipe | None = AS_IN_THE_PAPER,
    epochs: int = 1,
    device: str | Device = HOST,
    seed: int = 0,
    name: str | None = None,
    home: str | Path | Home | None = None,
    accelerator: str = "cpu",
    parallel: int | None = None,
    threads: int | None = None,
    memory_bytes: int | None = None,
    patience_s: float = 600.0,
    knobs: str | KnobOptions = "on",
    on_event: OnEvent | None = None,
) -> Impact:
    """Tunes everything, then holds each group and each hyperparameter fixed, and says what that changes.

    Each arm tries `trials` configurations, one epoch on `min_data` of the data; its `best` go on to `max_epochs` epochs
    on all of it. Those are compressed by the `recipe`, with `epochs` of training after pruning (None: they are not),
    and served on the device. A study of that `name` that was cut off goes on.
    """
    if best < 2:
        raise InputError(f"to compare arms takes 2 of the best models at least, but got {best}")
    if best > trials:
        raise InputError(f"an arm of {trials} trials has no {best} best; let best be {trials} or less")
    if epochs < 1:
        raise InputError(f"pruning is followed by one epoch of training at least, but got {epochs}")
    if recipe is not None:
        check_recipe(recipe)
        if recipe.is_plain:
            raise InputError(
                "the recipe leaves models as they are; give a sparsity, channels or a precision, or none at all"
            )
    subject = workload if isinstance(workload, Tunable) else Tunable(workload)
    if subject.workload is None:
        raise InputError("a function has no model whose properties could be measured: give a workload")
    place = home if isinstance(home, Home) else Home(home)
    target = device if isinstance(device, Device) else find_device(device, place.devices)
    plan = arms(subject.space, trials, seed=seed, check=subject.check)
    goal = subject.objective.goals[0]
    objective = Objective(maximize=goal.metric) if goal.maximize else Objective(minimize=goal.metric)
    budget = Budget(trials=len(plan.configs), kind="multi", max_epochs=max_epochs, min_data=min_data)
    study = _opened(name, place, subject, plan, budget, best, on_event) or Study(
        subject,
        objective=objective,
        budget=budget,
        seed=seed,
        name=name or name_for(subject, place),
        home=place,
        knobs=knobs,
        on_event=on_event,
        search=SearchOptions(
            algorithm="random", rungs="top-k", top_k=best, first=plan.configs, arms=[arm.members for arm in plan.arms]
        ),
        parallelism=ParallelismOptions(
            accelerator=accelerator,
            parallel=parallel,
            threads=threads,
            memory_bytes=memory_bytes,
            hang_timeout_s=patience_s,
        ),
    )
    said = f"{plan.asked} trainings in {len(plan.arms)} arms, of which {len(plan.configs)} differ and are made"
    study.on_event(StageStarted(lambda: StudyProgress(study.name), said))
    if study.record.state is not StudyState.DONE:
        study.run()
    return _Analysis(study, plan, subject, target, place, recipe, epochs).make()


@dataclass(frozen=True)
class _Analysis:
    """From a study whose trials are trained to what they say."""

    study: Study
    plan: ArmPlan
    subject: Tunable
    device: Device
    home: Home
    recipe: Recipe | None
    epochs: int

    def make(self) -> Impact:
        with self.home.study_lock(self.study.name) as folder:
            trials = {trial.number: trial for trial in self.study.trials}
            objective = self.study.spec.objective
            best = {arm.name: _best(arm, trials, objective, self._count(arm)) for arm in self.plan.arms}
            variants, failures = self._forms(folder, trials, best)
            evidence = self._evidence(trials, best, variants, failures)
            if not evidence.top():
                why = next(iter(evidence.failures.values()), "no trial was trained in full")
                raise StudyFailed(f"the study {self.study.name!r} has no model to compare with: {why}")
            self._tell("comparing the arms")
            found = findings(evidence, seed=self.study.spec.seed)
            self._write(folder, found)
            self._tidy(folder, best)
        return Impact(self.study.name, found, folder / PAGE, folder / FIGURES)

    def _write(self, folder: Path, found: Findings) -> None:
        try:
            report = ImpactReport(found)
            (folder / PAGE).write_text(report.as_html(), encoding="utf-8")
            (folder / FIGURES).write_text(json.dumps(report.as_json(), indent=1), encoding="utf-8")
        except OSError as error:
            raise StoreError(
                f"what was found cannot be written ({error}); nothing is lost: make {folder} writable, free some space "
                f"and ask for the same again under the name {self.study.name}"
            ) from error

    def _count(self, arm: Arm) -> int:
        """How many are the best of an arm; of one that has fewer trials than others, the same share of them."""
        best, most = self.study.spec.top_k, max(len(each.members) for each in self.plan.arms)
        return max(2, round(best * len(arm.members) / most))

    def _forms(
        self, folder: Path, trials: Mapping[int, Trial], best: Mapping[str, Sequence[int]]
    ) -> tuple[Mapping[int, tuple[Variant, ...]], Mapping[int, str]]:
        spec = self.study.spec
        recipes = (self.recipe,) if self.recipe is not None else ()
        chosen = list(dict.fromkeys(number for group in best.values() for number in group))
        others = [number for number in self.plan.arms[0].members if number not in chosen]
        orders = [
            VariantRequest(
                number,
                trials[number].config,
                str(weights),
                recipes if number in chosen else (),
                self.epochs,
                on_test_data=True,
            )
            for number in (*chosen, *others)
            if (weights := self._weights(folder, trials, number)) is not None
        ]

        def tell(done: int, of: int) -> None:
            self._tell(f"compressing and measuring on {self.device.name}: {done} of {of} models")

        shutil.rmtree(folder / "data", ignore_errors=True)  # of a run that was killed; the data may be new
        setup = self.subject.setup(folder, spec.parallelism.accelerator)
        slots = spec.parallelism.parallel or parallelism.most_workers(spec.parallelism.accelerator)
        with (
            open_engine(
                "processes",
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
                on_progress=tell,
            ) as forms,
        ):
            return forms.build(orders), forms.failures

    def _tell(self, said: str) -> None:
        self.study.on_event(StageStarted(lambda: StudyProgress(self.study.name), said))

    def _weights(self, folder: Path, trials: Mapping[int, Trial], number: int) -> Path | None:
        trial = trials.get(number)
        if trial is None or not trial.finished_rungs:
            return None
        return best_weights_file(folder, number, trial.finished_rungs[-1].rung)

    def _evidence(
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
            workload=self.subject.name,
            metric=goal.metric,
            higher_is_better=goal.maximize,
            space=self.study.spec.space,
            arms=self.plan.arms,
            best={arm: tuple(number for number in group if number in models) for arm, group in best.items()},
            configs={number: trial.config for number, trial in trials.items()},
            scores={
                number: rung.metrics[goal.metric]
                for number, trial in trials.items()
                if (rung := next((rung for rung in trial.rungs if rung.rung == 0), None)) is not None
                and rung.state is RungState.DONE
            },
            models=models,
            device=self.device.name,
            recipe=str(self.recipe) if self.recipe is not None else "",
            ways=self._ways(goal.metric, [form for forms in variants.values() for form in forms]),
            failures={**failed, **failures},
        )

    def _ways(self, metric: str, variants: Sequence[Variant]) -> Mapping[str, str]:
        """How each property came about, in words."""
        data = "test" if self.study.record.result.get("test") else "validation"
        source = variants[0].source.value if variants else "unknown"
        energy = variants[0].energy.source if variants else "unknown"
        return {
            metric: f"of what the runtime answers, on the {data} data; models are chosen on the validation data",
            "latency_s": f"{source}: a single sample, the median of 30 runs or more after warm-up, "
            "with the number of threads that suits the model",
            "energy_j": f"of a single sample: {energy}",
            "size_bytes": "of the model's file",
            "encoded_bytes": "of the file packed by DEFLATE or zstd, whichever is smaller, zeros stored sparse",
            "flops": "of a single sample, counted on the graph",
            "useful_flops": "without multiplications by weights that are zero",
            "memory_bytes": "of the process that serves the model",
        }

    def _tidy(self, folder: Path, best: Mapping[str, Sequence[int]]) -> None:
        """Keeps the weights of the models that were measured, and nothing else of the trials."""
        shutil.rmtree(folder / "data", ignore_errors=True)
        kept = {number for group in (self.plan.arms[0].members, *best.values()) for number in group}
        for number in range(len(self.plan.configs)):
            for file in trial_files(folder, number) if number not in kept else ():
                file.unlink()


def _opened(
    name: str | None, home: Home, subject: Tunable, plan: ArmPlan, budget: Budget, best: int, on_event: OnEvent | None
) -> Study | None:
    """The study of that name, if it was begun; raises InputError when it is of something else."""
    with closing(home.store()) as store:
        record = next((record for record in store.studies() if record.name == name), None)
    if record is None:
        return None
    spec, asked = Spec.from_json(record.spec), (plan.configs, tuple(arm.members for arm in plan.arms), budget, best)
    if (spec.first, spec.arms, spec.budget, spec.top_k) != asked:
        raise InputError(
            f"there is a study {record.name!r} already, with other arms or another budget; ask for the same, leave its "
            "name out or choose another"
        )
    return Study.open(record.name, home=home, workload=subject.reference or subject.workload, on_event=on_event)


def name_for(subject: Tunable, home: Home) -> str:
    """What a new study of a workload's impact is called."""
    with closing(home.store()) as store:
        return free_name(f"{subject.name}-impact", {record.name for record in store.studies()})


def _best(arm: Arm, trials: Mapping[int, Trial], objective: Objective, count: int) -> tuple[int, ...]:
    """The trials that an arm has sent on, best first by what they came to in the end."""
    begun = [(number, _result(trials.get(number), 0)) for number in arm.members]
    sent = _ordered([(number, found) for number, found in begun if found is not None], objective)[:count]
    top = max((rung.rung for trial in trials.values() for rung in trial.finished_rungs), default=0)
    ended = [(number, _result(trials[number], top)) for number in sent]
    return tuple(_ordered([(number, found) for number, found in ended if found is not None], objective))


def _ordered(results: Sequence[tuple[int, Metrics]], objective: Objective) -> list[int]:
    return [results[place][0] for place in objective.order([metrics for _, metrics in results])]


def _result(trial: Trial | None, rung: int) -> Metrics | None:
    done = [one for one in trial.finished_rungs if one.rung == rung] if trial is not None else []
    return done[0].metrics if done else None


def _properties(variant: Variant, metric: str) -> Metrics:
    found = {
        metric: variant.metrics[metric],
        "latency_s": variant.latency_s,
        "size_bytes": float(variant.size_bytes),
        "encoded_bytes": float(variant.smallest_bytes),
        "flops": variant.flops,
        "useful_flops": variant.useful_flops,
    }
    if variant.energy.joules is not None:
        found["energy_j"] = variant.energy.joules
    if variant.memory_bytes is not None:
        found["memory_bytes"] = float(variant.memory_bytes)
    return found
