"""The end of a study: the best model, tested, with the settings to serve it, and the report."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onefold.device import runtime
from onefold.device.host import host
from onefold.engine import Call, Engine, answer
from onefold.engine.failures import failure_of
from onefold.report import StudyReport
from onefold.serving import deploy
from onefold.serving.scenarios import is_load, scenario
from onefold.serving.trial_measurement import TrialMeasurement
from onefold.store import Store, StudyRecord
from onefold.store.home import Home
from onefold.study.coordinator import Coordinator
from onefold.study.events import Listener, News
from onefold.study.result import Result, best_of, keep_best, kept_card
from onefold.study.spec import Spec
from onefold.study.summary import summary_of
from onefold.study.tunable import Subject
from onefold.study.worker_calls import export_trained
from onefold.training import calls
from onefold.training.assignment import Assignment
from onefold.training.trial_files import best_weights_file, trial_files
from onefold.vocabulary.errors import DeviceError, ModelError, StoreError, StudyFailed
from onefold.vocabulary.records import Failure, FailureKind, Metrics, StudyState, Trial, TrialState, to_json
from onefold.vocabulary.serving import Surface
from onefold.vocabulary.variants import SHORTLIST, Shortlist

log = logging.getLogger("onefold")


@dataclass(frozen=True)
class Ending:
    """Hands over what a study found."""

    spec: Spec
    subject: Subject
    store: Store
    engine: Engine
    folder: Path
    coordinator: Coordinator
    inference: TrialMeasurement | None
    listener: Listener
    home: Home

    def hand_over(self, record: StudyRecord) -> Result:
        """The best model so far; raises StudyFailed when there is none, and StoreError when it cannot be written."""
        try:
            return self._hand_over(record)
        except BrokenPipeError:
            raise  # the listener's: nobody reads any more
        except OSError as error:
            raise self._unwritten(error, record.name) from error

    def keep_so_far(self, record: StudyRecord) -> None:
        """Keeps the best model of a study that is interrupted, if there is one: quickly, and without any worker.

        It is neither tested nor made ready to serve, unless it is the one that was handed over before.
        """
        trials = self.store.trials(record.name)
        best = self._best(trials, record)
        if best is None:
            return
        card, kept = self._card(record, best, {}), kept_card(self.folder)
        if {**kept, "test": {}} == card:
            card = kept
        else:
            keep_best(self.folder, best, card)
        self.store.save_study(replace(record, result=card))

    def _hand_over(self, record: StudyRecord) -> Result:
        trials = self.coordinator.trials
        best = self._best(trials, record)
        if best is None:
            reason = _why_nothing(trials, record.reason)
            self.store.save_study(replace(record, state=StudyState.FAILED, reason=reason))
            raise StudyFailed(f"the study {record.name!r} has no model: {reason}")
        test = self._test(best)
        card = self._card(record, best, test)
        keep_best(self.folder, best, card)
        surfaces = self._deploy(best, card)
        shortlist = self._compress(trials, best, card) if self.spec.compress == "after" else None
        found = card if shortlist is None else {**card, SHORTLIST: to_json(shortlist)}
        record = replace(record, state=StudyState.DONE, result=found)
        self.store.save_study(record)
        page = self.folder / "report.html"
        summary = summary_of(record.name, self.store)
        page.write_text(StudyReport(summary).as_html(), encoding="utf-8")
        listed = shortlist.candidates if shortlist is not None else ()
        self._tidy(trials, {best.number, *(one.trial for one in listed)})
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
            shortlist=shortlist,
        )

    def _best(self, trials: list[Trial], record: StudyRecord) -> Trial | None:
        able = [trial for trial in trials if self._can_be_served(trial)]
        return best_of(able, self.store.epochs(record.name), self.spec.objective, self.spec.judge)

    def _card(self, record: StudyRecord, best: Trial, test: Metrics) -> dict[str, Any]:
        return {
            "study": record.name,
            "workload": self.spec.workload,
            "trial": best.number,
            "config": dict(best.config),
            "metrics": dict(best.metrics),
            "test": dict(test),
        }

    def _unwritten(self, error: OSError, name: str) -> StoreError:
        go_on = f"and go on with: onefold resume {name}"
        if failure_of(error).kind is FailureKind.NO_SPACE:
            return StoreError(f"the disk is full ({error}); nothing is lost: free some space in {self.folder} {go_on}")
        return StoreError(
            f"what was found cannot be written ({error}); nothing is lost: make {self.folder} writable {go_on}"
        )

    def _can_be_served(self, trial: Trial) -> bool:
        """Not when it failed before all devices knew it: its model, however good, is none for them."""
        if self.inference is None or self.spec.strategy == "hierarchical":
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
            max_epochs=self.spec.budget.max_epochs,
            objective=self.spec.judge,
        )
        found = answer(self.engine, Call(calls.score, (work,), cores=work.threads))
        return found if isinstance(found, dict) else {}

    def _deploy(self, best: Trial, card: dict[str, Any]) -> dict[str, Surface]:
        """The deployment folder of the best model, every number in it taken with care."""
        weights = best_weights_file(self.folder, best.number, best.finished_rungs[-1].rung)
        if self.inference is None or weights is None or self.spec.host is None:
            return {}
        target = self.folder / "best"
        model = target / deploy.MODEL
        found = answer(
            self.engine,
            Call(
                export_trained,
                (best.config, str(weights.relative_to(self.folder)), str(model.relative_to(self.folder))),
            ),
        )
        if isinstance(found, Failure):
            raise ModelError(f"the best model cannot be handed over as ONNX: {found.reason}")
        rests = any(is_load(scenario(text)) for text in self.spec.scenarios)
        surfaces = self.inference.measure_carefully(best.number, model, found, rests=rests)
        on = tuple(
            deploy.settings(
                device, surfaces[device.name], model, self.spec.scenarios, self.spec.scenario_goal, self.spec.host
            )
            for device in self.spec.devices
        )
        deploy.write(target, model, deploy.Deployment(self.spec.host, on, runtime(), card))
        return surfaces

    def _compress(self, trials: list[Trial], best: Trial, card: Mapping[str, Any]) -> Shortlist | None:
        """The best trials in several forms, on the first device of the study or on this machine.

        None when that fails, and why is told: the model that was found is handed over in any case.
        """

        from onefold.compression.after_study import (
            AfterStudyCompression,  # which loads torch: a command that needs none must not wait
        )

        def tell(said: str) -> None:
            self.listener(News("stage", {"said": said}, self.coordinator.snapshot))

        here = self.spec.host or host(self.home.devices)
        device = self.spec.devices[0] if self.spec.devices else here
        about = {name: card[name] for name in ("study", "workload")}
        spec = self.spec
        step = AfterStudyCompression(
            spec.objective, spec.quality or spec.objective, spec.serving,
            self.engine, self.folder, self.home, device, here, tell,
        )  # fmt: skip
        try:
            return step.compress(trials, best, about)
        except (ModelError, DeviceError) as error:
            tell(f"the best trials could not be compressed: {error}")
            log.warning("the best trials of %s could not be compressed: %s", card["study"], error)
            return None

    def _tidy(self, trials: list[Trial], kept: set[int]) -> None:
        """Removes the files that nothing can need any more."""
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        shutil.rmtree(self.folder / "models", ignore_errors=True)
        if not self.coordinator.is_over or self.spec.rungs == "asha" or self.spec.arms:
            return  # an extended asynchronous ladder may still promote anybody; arms are compared by all their trials
        for trial in trials:
            if trial.state in (TrialState.STOPPED, TrialState.FAILED) and trial.number not in kept:
                for file in trial_files(self.folder, trial.number):
                    file.unlink()


def _why_nothing(trials: list[Trial], reason: str) -> str:
    failures = [trial.failure for trial in trials if trial.failure is not None]
    if failures:
        return f"all {len(failures)} trials failed, the first because: {failures[0].reason}"
    return f"{reason} before any trial had finished an epoch"
