"""Write the model of a trial into a folder: tested, and with devices ready to serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from onefold.device import runtime
from onefold.engine import Call, Engine, run_call
from onefold.model_folder import REFERENCE, new_generation
from onefold.runtimes.registry import selected_runtimes
from onefold.serving import deploy
from onefold.serving.runtime_selection import RuntimeScore, convert_and_score, eligible
from onefold.serving.scenarios import is_open_loop, parse_scenario
from onefold.serving.trial_measurement import TrialMeasurement
from onefold.study.result import write_card, write_files
from onefold.study.spec import Spec
from onefold.study.tunable import Tunable
from onefold.study.worker_calls import describe_fork, export_trained, signature_of
from onefold.training import calls
from onefold.training.assignment import Assignment
from onefold.training.trial_files import best_weights_file, fork_file
from onefold.vocabulary.errors import InputError, ModelError
from onefold.vocabulary.forks import Fork, dense_config, fork_of
from onefold.vocabulary.records import Failure, Metrics, Trial
from onefold.vocabulary.serving import RuntimeResult, Surface


@dataclass(frozen=True)
class ModelWriter:
    """Writes models of the trials of a study.

    Args:
        study: The name of the study.
        spec: Its specification.
        tunable: Its workload or function.
        engine: Where models are tested and exported.
        folder: The folder of the study.
        measurement: Measures models on the devices of the study; None if it has none.
        home: The home, which records the folders that it wrote.
    """

    study: str
    spec: Spec
    tunable: Tunable
    engine: Engine
    folder: Path
    measurement: TrialMeasurement | None
    home: Path

    def write(self, trial: Trial, target: Path, *, for_card: Mapping[str, Any]) -> None:
        """Write the model of a trial into `target`, in place of one that is there. Its card has `for_card` too.

        Raises InputError if the trial has no weights, and ModelError if it cannot be served.
        """
        if self.tunable.workload is None:
            raise InputError(f"the study {self.study!r} tuned a function: it has configurations but no models")
        if not trial.finished_rungs:
            raise InputError(f"trial {trial.number} has no model: it has not finished a rung")
        if self._model_file(trial) is None:
            raise InputError(
                f"trial {trial.number} was stopped at level {trial.level}, and its model was removed when the study "
                "ended; only those of the trials on the Pareto front, and of the winner, are kept: name one of these"
            )
        card = {**self.card(trial, self.describe(trial)), **for_card}
        with new_generation(target, home=self.home) as new:
            write_files(self.folder, new, trial, card, shared=(REFERENCE,))
        self.deploy(trial, target, card)

    def describe(self, trial: Trial) -> dict[str, Any]:
        """Return what only a worker can tell of a model: `test`, its metrics on test data, and of a fork its file."""
        if self.tunable.workload is None:
            return {"test": {}}
        fork = fork_of(trial.config)
        return {"test": dict(self._test(trial))} if fork is None else self._describe_fork(trial, fork)

    def _test(self, trial: Trial) -> Metrics:
        work = Assignment(
            trial=trial.number,
            rung=trial.finished_rungs[-1].rung,
            config=trial.config,
            grant=trial.finished_rungs[-1].grant,
            seed=self.spec.seed,
            threads=self.spec.parallelism.threads_for(1),
            max_epochs=self.spec.budget.max_epochs,
            objective=self.spec.epoch_objective,
        )
        metrics = run_call(self.engine, Call(calls.score, (work,), cores=work.threads))
        return metrics if isinstance(metrics, dict) else {}

    def _describe_fork(self, trial: Trial, fork: Fork) -> dict[str, Any]:
        model = str(self._model_file(trial))
        described = run_call(self.engine, Call(describe_fork, (fork, dense_config(trial.config), model)))
        if isinstance(described, Failure):
            raise ModelError(f"the file of trial {trial.number} cannot be read: {described.reason}")
        return dict(described)

    def card(self, trial: Trial, described: Mapping[str, Any]) -> dict[str, Any]:
        """Return the card of the model of a trial, with what `describe` returned."""
        return {
            "study": self.study,
            "workload": self.spec.workload,
            "trial": trial.number,
            "config": dict(trial.config),
            "metrics": dict(trial.metrics),
            "test": {},
            **described,
        }

    def deploy(self, trial: Trial, target: Path, card: dict[str, Any]) -> tuple[dict[str, Surface], dict[str, Any]]:
        """Add what serves a model to its folder, with every number measured carefully.

        Returns the surfaces, and the card with the serving costs as they were measured last: those by which the trials
        were compared are quick measurements, and a model has one figure for each thing.
        """
        file = self._model_file(trial)
        if self.measurement is None or file is None or self.spec.host is None:
            return {}, card
        with new_generation(target, home=self.home, update=True) as new:
            model = new / deploy.MODEL
            if fork_of(trial.config) is not None:  # its file is there already
                call = Call(signature_of, (str(model.absolute()),))
            else:
                files = (str(file.relative_to(self.folder)), str(model.absolute()))
                call = Call(export_trained, (trial.config, *files))
            signature = run_call(self.engine, call)
            model = deploy.model_in(new)
            if isinstance(signature, Failure):
                raise ModelError(f"trial {trial.number} cannot be exported to ONNX: {signature.reason}")
            serving = self.spec.serving
            after_idle = any(is_open_loop(parse_scenario(text)) for text in serving.scenarios)
            results = self._compare_runtimes(trial, model)
            surfaces = self.measurement.measure_precisely(
                trial.number, model, signature, after_idle=after_idle, runtimes=eligible(results)
            )
            settings = tuple(
                deploy.choose_device_settings(
                    device, surfaces[device.name], model, serving.scenarios, serving.scenario_goal, self.spec.host,
                    results,
                )
                for device in self.spec.devices
            )  # fmt: skip
            card = {**card, "metrics": self._with_serving_metrics(card["metrics"], trial)}
            write_card(new, card)
            deploy.write_files(new, model, deploy.Deployment(self.spec.host, settings, runtime(), card))
        return surfaces, card

    def _compare_runtimes(self, trial: Trial, model: Path) -> tuple[RuntimeResult, ...]:
        """Convert a model for the runtimes of the study, and score it in each on the validation data."""
        names = self.spec.serving.runtimes
        if not names or model.suffix != ".onnx":
            return ()
        from onefold.compression.after_study import score_in_worker  # imports torch, which many commands do not need

        goal = (self.spec.workload_objective or self.spec.objective).goals[0]
        config = trial.config if fork_of(trial.config) is None else dense_config(trial.config)
        scoring = RuntimeScore(goal.metric, goal.maximize, partial(score_in_worker, self.engine, config))
        return convert_and_score(model, selected_runtimes(names), scoring, self.spec.objective.require)

    def _model_file(self, trial: Trial) -> Path | None:
        """Return the best weights of a trial, or the ONNX file of a fork; None if they were removed."""
        rung = trial.finished_rungs[-1].rung
        if fork_of(trial.config) is None:
            return best_weights_file(self.folder, trial.number, rung)
        file = fork_file(self.folder, trial.number, rung)
        return file if file.exists() else None

    def _with_serving_metrics(self, metrics: Metrics, trial: Trial) -> Metrics:
        """Return the metrics with those of serving, and what is computed from them, as they were measured last."""
        objective = self.spec.objective
        computed = {*objective.metrics, *objective.guarded_metrics}.difference(objective.inputs, objective.guard_inputs)
        recorded = {name: value for name, value in metrics.items() if name not in computed}
        measured = self.measurement.metrics(trial.number) if self.measurement is not None else {}
        return objective.completed({**recorded, **measured})
