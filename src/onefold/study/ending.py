"""The end of a study: the best model, tested, with the settings to serve it, and the report."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onefold import deploy, report
from onefold.device import runtime
from onefold.engine import Call, Engine, answer
from onefold.errors import ModelError, StudyFailed
from onefold.inference.scenarios import choose, scenario
from onefold.records import Failure, Metrics, StudyState, Trial, TrialState, to_json
from onefold.serving import Surface
from onefold.store import Store, StudyRecord
from onefold.study.coordinator import Coordinator
from onefold.study.inference import Inference
from onefold.study.news import Listener, News
from onefold.study.reporting import summary_of
from onefold.study.result import Result, best_of, keep_best
from onefold.study.spec import Spec
from onefold.study.subject import Subject
from onefold.study.visits import export_trained
from onefold.training import calls
from onefold.training.assignment import Assignment, files_of, weights_file


@dataclass(frozen=True)
class Ending:
    """Hands over what a study found."""

    spec: Spec
    subject: Subject
    store: Store
    engine: Engine
    folder: Path
    coordinator: Coordinator
    inference: Inference | None
    listener: Listener

    def hand_over(self, record: StudyRecord) -> Result:
        """The best model so far; raises StudyFailed when there is none."""
        trials, epochs = self.coordinator.trials, self.store.epochs(record.name)
        able = [trial for trial in trials if self._can_be_served(trial)]
        best = best_of(able, epochs, self.spec.objective, self.spec.judge)
        if best is None:
            reason = _why_nothing(trials, record.reason)
            self.store.save_study(replace(record, state=StudyState.FAILED, reason=reason))
            raise StudyFailed(f"the study {record.name!r} has no model: {reason}")
        test = self._test(best)
        card = {
            "study": record.name,
            "workload": self.spec.workload,
            "trial": best.number,
            "config": dict(best.config),
            "metrics": dict(best.metrics),
            "test": dict(test),
        }
        keep_best(self.folder, best, card)
        surfaces = self._deploy(best, card)
        record = replace(record, state=StudyState.DONE, result=card)
        self.store.save_study(record)
        page = self.folder / "report.html"
        summary = summary_of(record.name, self.store)
        page.write_text(report.as_html(summary), encoding="utf-8")
        self._tidy(trials, best)
        self.listener(News("ended", {"reason": record.reason, **to_json(card)}, self.coordinator.snapshot))
        return Result(
            study=record.name,
            reason=record.reason,
            best=best,
            trials=tuple(trials),
            objective=self.spec.objective,
            test=test,
            folder=self.folder,
            report=page,
            elapsed_s=record.elapsed_s,
            workload=self.subject.workload,
            surfaces=surfaces,
            recommendation=summary.recommendation,
        )

    def _can_be_served(self, trial: Trial) -> bool:
        """Not when it failed before all devices knew it: its model, however good, is none for them."""
        if self.inference is None or self.spec.strategy != "onefold":
            return True
        return trial.failure is None or self.inference.knows(trial.number)

    def _test(self, best: Trial) -> Metrics:
        if self.subject.workload is None:
            return {}
        work = Assignment(
            trial=best.number,
            rung=best.finished_rungs[-1].rung,
            config=best.config,
            grant=best.finished_rungs[-1].grant,
            seed=self.spec.seed,
            threads=self.spec.threads_for(1),
            most_epochs=self.spec.budget.max_epochs,
            folder=str(self.folder),
            objective=self.spec.judge,
        )
        found = answer(self.engine, Call(calls.score, (work,), cores=work.threads))
        return found if isinstance(found, dict) else {}

    def _deploy(self, best: Trial, card: dict[str, Any]) -> dict[str, Surface]:
        """The deployment folder of the best model, every number in it taken with care."""
        weights = weights_file(self.folder, best.number, best.finished_rungs[-1].rung)
        if self.inference is None or weights is None or self.spec.host is None:
            return {}
        target = self.folder / "best"
        model = target / deploy.MODEL
        found = answer(self.engine, Call(export_trained, (best.config, str(weights), str(model))))
        if isinstance(found, Failure):
            raise ModelError(f"the best model cannot be handed over as ONNX: {found.reason}")
        surfaces = self.inference.measure_carefully(best.number, model, found)
        on = tuple(
            deploy.Settings(
                device,
                surfaces[device.name],
                tuple(choose(scenario(text), surfaces[device.name].served) for text in self.spec.scenarios),
            )
            for device in self.spec.devices
        )
        deploy.write(target, model, deploy.Deployment(self.spec.host, on, runtime(), card))
        return surfaces

    def _tidy(self, trials: list[Trial], best: Trial) -> None:
        """Removes the files that nothing can need any more."""
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        shutil.rmtree(self.folder / "models", ignore_errors=True)
        if not self.coordinator.is_over or self.spec.rungs == "asha":
            return  # an extended asynchronous ladder may still promote anybody
        for trial in trials:
            if trial.state in (TrialState.STOPPED, TrialState.FAILED) and trial.number != best.number:
                for file in files_of(self.folder, trial.number):
                    file.unlink()


def _why_nothing(trials: list[Trial], reason: str) -> str:
    failures = [trial.failure for trial in trials if trial.failure is not None]
    if failures:
        return f"all {len(failures)} trials failed, the first because: {failures[0].reason}"
    return f"{reason} before any trial had finished an epoch"
