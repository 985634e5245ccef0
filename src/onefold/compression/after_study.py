"""Compress the best trials of a finished study and select one variant.

HOME/studies/NAME/variants/           records of each trial's variants
HOME/studies/NAME/compressed/         deployment folder of the selected variant
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from onefold.compression.api import write_variant
from onefold.compression.file_properties import file_properties
from onefold.compression.selection import SelectionCriteria, SelectionOptions, select_variant
from onefold.compression.trial_variants import TrialVariants, VariantRequest
from onefold.device import Device
from onefold.engine import Call, Engine, run_call
from onefold.serving.api import measure_file
from onefold.serving.options import ServingOptions
from onefold.serving.runtime_selection import RuntimeScore
from onefold.store.home import Home
from onefold.training.trainer import Tick, Trainer
from onefold.training.trial_files import best_weights_file
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.ranking import ranked
from onefold.vocabulary.records import Config, Metrics, Trial
from onefold.vocabulary.requirement import Bound
from onefold.vocabulary.variants import COMPRESSED_FOLDER, COMPRESSION, RECIPES, Shortlist, TrialVariant, Variant

MAX_TRIALS = 10
EPOCHS = 3  # of fine-tuning


@dataclass(frozen=True)
class AfterStudyCompression:
    """Compress the best trials of a study. `report` receives progress messages."""

    objective: Objective
    workload_objective: Objective
    serving: ServingOptions
    engine: Engine
    folder: Path
    home: Home
    device: Device
    host: Device
    report: Callable[[str], None]
    selection: SelectionOptions = field(default_factory=SelectionOptions)

    def compress(self, trials: Sequence[Trial], best: Trial, about: Mapping[str, Any]) -> Shortlist:
        """Build variants of the best trials, select one, and write its deployment folder.

        No folder is written if the plain model of the best trial is selected, which the study deploys in any case.
        Raises ModelError if the best trial cannot be compressed.
        """
        requests = self._requests(trials, best)

        def on_progress(done: int, total: int) -> None:
            self.report(f"compressing the best trials and measuring them on {self.device.name}: {done} of {total}")

        folder = self.folder / "variants"
        with TrialVariants(
            self.engine,
            self.device,
            self.host,
            self.home.locks.measurement,
            folder,
            self.home.pairings,
            keep_files=True,
            on_progress=on_progress,
        ) as builder:
            variants = builder.build(requests)
            if best.number not in variants:
                reason = builder.failures.get(best.number, "its weights are missing")
                raise ModelError(f"trial {best.number} cannot be compressed: {reason}")
            failures = {str(trial): reason for trial, reason in builder.failures.items()}
            bounds = self.objective.settled(trial.metrics for trial in trials if trial.finished_rungs).require
            shortlist = replace(self._shortlist(variants, best, bounds), failures=failures)
            shutil.rmtree(self.folder / COMPRESSED_FOLDER, ignore_errors=True)
            choice = shortlist.choice
            if not (choice.trial == best.number and choice.variant.recipe.is_plain):
                request = next(request for request in requests if request.trial == choice.trial)
                model = builder.file(request, choice.variant.recipe)
                shortlist = replace(shortlist, test=self._test(request.config, model))
                self._deploy(shortlist, model, {**about, "trial": request.trial, "config": dict(request.config)})
        return shortlist

    def _requests(self, trials: Sequence[Trial], best: Trial) -> list[VariantRequest]:
        others = (trial for trial in ranked(trials, self.objective) if trial.number != best.number)
        chosen = [best, *(trial for trial in others if trial.failure is None)][:MAX_TRIALS]
        return [
            VariantRequest(
                trial.number,
                trial.config,
                str(weights),
                RECIPES,
                EPOCHS,
                self.selection.max_metric_loss,
                skip_failures=True,
            )
            for trial in chosen
            if (weights := best_weights_file(self.folder, trial.number, trial.finished_rungs[-1].rung)) is not None
        ]

    def _shortlist(
        self, variants: Mapping[int, tuple[Variant, ...]], best: Trial, bounds: Mapping[str, Bound]
    ) -> Shortlist:
        goal = self.workload_objective.goals[0]
        candidates = [TrialVariant(trial, variant) for trial, group in variants.items() for variant in group]
        names = {id(candidate.variant): str(candidate) for candidate in candidates}
        best_first = sorted(candidates, key=lambda candidate: candidate.trial != best.number)
        plain, *others = (candidate.variant for candidate in best_first)
        criteria = SelectionCriteria(goal.metric, goal.maximize, self.selection, bounds)
        selection = select_variant(plain, others, criteria, lambda variant: names[id(variant)])
        judged = tuple(
            replace(candidate, refused=selection.refused.get(str(candidate), "")) for candidate in candidates
        )
        taken = next(index for index, candidate in enumerate(judged) if candidate.variant is selection.chosen)
        return Shortlist(self.device.name, goal.metric, judged, taken, selection.why)

    def _test(self, config: Config, model: Path) -> Metrics:
        metrics = run_call(self.engine, Call(score_onnx, (config, str(model))))
        return metrics if isinstance(metrics, dict) else {}

    def _deploy(self, shortlist: Shortlist, model: Path, about: Mapping[str, Any]) -> None:
        variant = shortlist.choice.variant
        result = {
            "variant": str(variant.recipe),
            COMPRESSION: file_properties(model, variant.recipe, variant.layers),
            "metrics": dict(variant.metrics),
            "test": dict(shortlist.test),
        }
        self.report(f"measuring the serving points of {shortlist.choice}")
        goal, config = self.workload_objective.goals[0], about["config"]
        scoring = RuntimeScore(goal.metric, goal.maximize, partial(score_in_worker, self.engine, config))
        deployment = measure_file(
            model, [self.device], self.serving, self.home, {**about, **result}, require=self.objective.require,
            scoring=scoring,
        )  # fmt: skip
        write_variant(self.folder / COMPRESSED_FOLDER, model, deployment, self.home)


def score_in_worker(engine: Engine, config: Config, model: Path, runtime: str) -> Metrics:
    """Return the metrics of a model in a runtime on the validation data. Raises ModelError if it cannot be scored."""
    metrics = run_call(engine, Call(score_served, (config, str(model.absolute()), runtime)))
    if isinstance(metrics, dict):
        return metrics
    raise ModelError(f"the model cannot be scored in {runtime}: {getattr(metrics, 'reason', 'it has no metrics')}")


def score_served(
    trainer: Trainer, config: Config, model: str, runtime: str, *, tick: Tick
) -> Generator[None, None, Metrics]:
    """Return the metrics of a model in a runtime on the validation data; runs in a worker process."""
    from onefold.compression.onnx_module import OnnxModule

    yield from ()
    trained = trainer.open_model(config, tick=tick)
    return trained.score(OnnxModule(Path(model), trained.outputs, runtime))


def score_onnx(trainer: Trainer, config: Config, model: str, *, tick: Tick) -> Generator[None, None, Metrics]:
    """Return the metrics of an ONNX file on the test data; runs in a worker process."""
    from onefold.compression.onnx_module import OnnxModule

    yield from ()
    trained = trainer.open_model(config, tick=tick)
    return trained.test(OnnxModule(Path(model), trained.outputs))
