"""Compress and measure the best models of each arm of a finished study, compare them, and write the report."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onefold.compression.trial_variants import TrialVariants, VariantRequest
from onefold.device import Device
from onefold.device.host import host
from onefold.engine import Engine, open_engine
from onefold.impact_analysis import (
    FORMS,
    TUNE_ALL,
    Arm,
    ArmPlan,
    Findings,
    Form,
    ImpactMeasurements,
    MeasuredModel,
    compared_pairs,
    findings,
)
from onefold.impact_analysis.architecture_costs import (
    ROUNDS,
    ArchitectureCost,
    CostMeasurements,
    SharedCosts,
    share_costs,
)
from onefold.impact_analysis.architecture_records import ArchitectureRecords, RecordingEngine
from onefold.impact_analysis.compared_trials import best_trials, fully_trained, rank
from onefold.impact_analysis.variant_properties import control_properties, variant_properties
from onefold.report.impact import ImpactReport
from onefold.store.home import Home
from onefold.study import parallelism
from onefold.study.events import StageStarted, StudyProgress
from onefold.study.study import Study
from onefold.study.tunable import Tunable
from onefold.training.trial_files import best_weights_file, trial_files
from onefold.vocabulary.errors import StoreError, StudyFailed
from onefold.vocabulary.records import RungState, Trial
from onefold.vocabulary.variants import Recipe, Variant

PAGE, FIGURES = "impact.html", "impact.json"


@dataclass(frozen=True)
class ModelAnalysis:
    """Compresses and measures the models of a finished study, and compares them."""

    study: Study
    plan: ArmPlan
    tunable: Tunable
    device: Device
    server: Device | None
    home: Home
    recipe: Recipe | None
    fine_tuning_epochs: int

    def run(self) -> Findings:
        """Return the findings, and write the report.

        Raises StudyFailed if no model can be compared, and StoreError if the report cannot be written.
        """
        folder = self.study.folder
        with self.home.study_lock(self.study.name):
            trials = {trial.number: trial for trial in self.study.trials}
            objective = self.study.spec.objective
            best = {arm.name: best_trials(arm, trials, objective, self._best_count(arm)) for arm in self.plan.arms}
            trained = fully_trained(trials)
            ranking = [trial.number for trial in rank(list(trials.values()), 0, objective)]
            pairs = {
                arm.name: tuple(
                    pair for pair in compared_pairs(arm, ranking, self.study.spec.top_k) if set(pair) <= trained
                )
                for arm in self.plan.arms
            }
            records = ArchitectureRecords(folder / "architectures")
            variants, failures, costs = self._build_variants(records, trials, best, pairs)
            forms = self._forms(records, variants, costs)
            measurements = self._measurements(trials, best, pairs, variants, forms, failures)
            if not measurements.best_models():
                reason = next(iter(measurements.failures.values()), "no trial was fully trained")
                raise StudyFailed(f"the study {self.study.name!r} has no models to compare: {reason}")
            self._report("comparing the arms")
            result = findings(measurements, seed=self.study.spec.seed)
            self._write_report(folder, result)
            self._remove_files(folder, set(measurements.models))
            records.remove_files()
        return result

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
        self,
        records: ArchitectureRecords,
        trials: Mapping[int, Trial],
        best: Mapping[str, Sequence[int]],
        pairs: Mapping[str, Sequence[tuple[int, int]]],
    ) -> tuple[Mapping[int, tuple[Variant, ...]], Mapping[int, str], Mapping[Form, Mapping[str, ArchitectureCost]]]:
        """Return the variants and failures by trial, and the costs of their architectures by form."""
        spec, folder = self.study.spec, self.study.folder
        recipes = (self.recipe,) if self.recipe is not None else ()
        compared = [*best.values(), *(pair for group in pairs.values() for pair in group)]
        chosen = list(dict.fromkeys(number for group in compared for number in group))
        others = [number for number in self.plan.arms[0].members if number not in chosen]
        requests = [
            VariantRequest(
                number,
                trials[number].config,
                str(weights),
                recipes if number in chosen else (),
                self.fine_tuning_epochs,
                on_test_data=True,
                control=number in best[TUNE_ALL],
            )
            for number in (*chosen, *others)
            if (weights := self._weights(folder, trials, number)) is not None
        ]
        random.Random(spec.seed).shuffle(requests)  # a drift of the machine must not follow the order of the arms
        for request in requests:
            if not records.of(request.trial):  # measured by an earlier version: built again
                (folder / "forms" / f"{request.trial:05d}.json").unlink(missing_ok=True)

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
                RecordingEngine(engine, records),
                self.device,
                host(self.home.devices),
                self.home.locks.measurement,
                folder / "forms",
                self.home.pairings,
                plain_device=self.server,
                on_progress=on_progress,
            ) as builder,
        ):
            variants = builder.build(requests)
            return variants, builder.failures, self._costs(records, variants, engine)

    def _costs(
        self, records: ArchitectureRecords, variants: Collection[int], engine: Engine
    ) -> Mapping[Form, Mapping[str, ArchitectureCost]]:
        """Measure each architecture once on the device where it is served."""
        costs: dict[Form, Mapping[str, ArchitectureCost]] = {}
        for index, form in enumerate(FORMS):
            signatures = {known[index] for trial in variants if len(known := records.of(trial)) > index}
            device = self.server if form == "plain" and self.server is not None else self.device

            def on_round(done: int, total: int, form: Form = form, count: int = len(signatures)) -> None:
                self._report(f"measuring {count} {form} architectures in turn: round {done + 1} of {total}")

            measurements = CostMeasurements(
                device,
                host(self.home.devices),
                records.folder / "costs.json",
                self.home.locks.measurement,
                engine.paused,
                self.home.pairings,
                self.study.spec.seed,
                on_round,
            )
            costs[form] = measurements.measure({name: records.file(name) for name in signatures})
        return costs

    def _forms(
        self,
        records: ArchitectureRecords,
        variants: Mapping[int, tuple[Variant, ...]],
        costs: Mapping[Form, Mapping[str, ArchitectureCost]],
    ) -> Mapping[Form, SharedCosts]:
        """Return the properties of each form's models, in which models of one architecture share its costs."""
        metric, shared = self.study.spec.objective.goals[0].metric, {}
        for index, form in enumerate(FORMS):
            built = {trial: group[index] for trial, group in variants.items() if len(group) > index}
            signatures = {trial: known[index] for trial in built if len(known := records.of(trial)) > index}
            figures = {trial: variant_properties(variant, metric) for trial, variant in built.items()}
            shared[form] = share_costs(figures, signatures, costs[form])
        return shared

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
        pairs: Mapping[str, tuple[tuple[int, int], ...]],
        variants: Mapping[int, tuple[Variant, ...]],
        forms: Mapping[Form, SharedCosts],
        failures: Mapping[int, str],
    ) -> ImpactMeasurements:
        goal = self.study.spec.objective.goals[0]
        models = {
            number: MeasuredModel(
                number,
                trials[number].config,
                trials[number].metrics[goal.metric],
                forms["plain"].figures[number],
                forms["compressed"].figures.get(number, {}),
                control_properties(forms["plain"].figures[number], group, goal.metric),
                {
                    form: shared.repeatability[number]
                    for form, shared in forms.items()
                    if number in shared.repeatability
                },
            )
            for number, group in variants.items()
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
            ways=self._how_measured(goal.metric, [variant for group in variants.values() for variant in group]),
            failures={**failed, **failures},
            pairs=pairs,
            server=self.server.name if self.server is not None else "",
        )

    def _how_measured(self, metric: str, variants: Sequence[Variant]) -> Mapping[str, str]:
        """Describe how each property was measured."""
        data = "test" if self.study.record.result.get("test") else "validation"
        source = variants[0].source.value if variants else "unknown"
        energy = variants[0].energy.source if variants else "unknown"
        return {
            metric: f"of the runtime's outputs on the {data} data; models are ranked on the validation data",
            "latency_s": f"{source}: median of at least 30 runs at batch size 1 after warm-up, with the faster "
            f"number of threads; the fastest of {ROUNDS} rounds over all architectures, each in a random order",
            "energy_j": f"of a single sample: {energy}; like latency, memory and size, one figure per architecture",
            "size_bytes": "of the ONNX file",
            "encoded_bytes": "of the file packed with DEFLATE or zstd, whichever is smaller; sparse tensors as bitmaps",
            "flops": "of a single sample, counted on the graph",
            "useful_flops": "without multiplications by zero weights",
            "memory_bytes": "of the serving process",
        }

    def _remove_files(self, folder: Path, measured: Collection[int]) -> None:
        """Remove the files of trials that were not measured."""
        shutil.rmtree(folder / "data", ignore_errors=True)
        for number in range(len(self.plan.configs)):
            for file in trial_files(folder, number) if number not in measured else ():
                file.unlink()
