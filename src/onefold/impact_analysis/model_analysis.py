"""Compress and measure the best models of each arm of a finished study, compare them, and write the report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onefold.compression.trial_variants import TrialVariants, VariantRequest
from onefold.device import Device
from onefold.device.host import host
from onefold.engine import open_engine
from onefold.impact_analysis import (
    FORMS,
    TUNE_ALL,
    Arm,
    ArmPlan,
    Findings,
    ImpactMeasurements,
    MeasuredModel,
    compared_pairs,
    findings,
)
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
            variants, failures = self._build_variants(folder, trials, best, pairs)
            measurements = self._measurements(trials, best, pairs, variants, failures)
            if not measurements.best_models():
                reason = next(iter(measurements.failures.values()), "no trial was fully trained")
                raise StudyFailed(f"the study {self.study.name!r} has no models to compare: {reason}")
            self._report("comparing the arms")
            result = findings(measurements, seed=self.study.spec.seed)
            self._write_report(folder, result)
            self._remove_files(folder, set(measurements.models))
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
        folder: Path,
        trials: Mapping[int, Trial],
        best: Mapping[str, Sequence[int]],
        pairs: Mapping[str, Sequence[tuple[int, int]]],
    ) -> tuple[Mapping[int, tuple[Variant, ...]], Mapping[int, str]]:
        spec = self.study.spec
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
                self.home.pairings,
                plain_device=self.server,
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
        pairs: Mapping[str, tuple[tuple[int, int], ...]],
        variants: Mapping[int, tuple[Variant, ...]],
        failures: Mapping[int, str],
    ) -> ImpactMeasurements:
        goal = self.study.spec.objective.goals[0]
        models = {
            number: MeasuredModel(
                number,
                trials[number].config,
                trials[number].metrics[goal.metric],
                variant_properties(forms[0], goal.metric),
                variant_properties(forms[1], goal.metric) if len(forms) > 1 else {},
                control_properties(forms, goal.metric),
                {form: {"latency_s": v.latency_rsd} for form, v in zip(FORMS, forms) if v.latency_rsd is not None},
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
            "number of threads",
            "energy_j": f"of a single sample: {energy}",
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
