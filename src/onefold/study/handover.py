"""The end of a study: the winner, tested, with the settings to serve it, and the report."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onefold.device.host import host
from onefold.engine import Call, Engine, run_call
from onefold.engine.failure_mapping import failure_of
from onefold.model_folder import PROFILE, REFERENCE
from onefold.report import StudyReport, Summary
from onefold.serving.trial_measurement import TrialMeasurement
from onefold.store import Store, StudyRecord
from onefold.store.home import Home
from onefold.study.coordinator import Coordinator
from onefold.study.events import OnEvent, StageStarted, StudyEnded
from onefold.study.model_writer import ModelWriter
from onefold.study.result import Result, is_same_model, keep_best, read_card
from onefold.study.spec import Spec
from onefold.study.summary import open_epochs, summary_of
from onefold.study.tunable import Tunable
from onefold.study.worker_calls import profile_retraining
from onefold.training import calls
from onefold.training.trial_files import best_weights_file, trial_files
from onefold.vocabulary.costs import total_cost
from onefold.vocabulary.errors import DeviceError, ModelError, StoreError, StudyFailed
from onefold.vocabulary.log import log_of
from onefold.vocabulary.quantities import duration
from onefold.vocabulary.ranking import front, leaderboard
from onefold.vocabulary.records import Epoch, Failure, FailureKind, StudyState, Trial, TrialState, to_json
from onefold.vocabulary.variants import SHORTLIST, Shortlist

# Seconds to profile a model for retrainings, at most and at least, and the share of the study's duration.
MAX_PROFILE_S, MIN_PROFILE_S, PROFILE_SHARE = 10.0, 1.0, 0.05
log = log_of()


@dataclass(frozen=True)
class Handover:
    """Hands over the winner of a study."""

    spec: Spec
    tunable: Tunable
    store: Store
    engine: Engine
    folder: Path
    coordinator: Coordinator
    measurement: TrialMeasurement | None
    on_event: OnEvent
    home: Home

    def hand_over(self, record: StudyRecord) -> Result:
        """Test the winner, write its files and the report, and return the result.

        Raises StudyFailed if there is no winner, and StoreError if its files cannot be written.
        """
        try:
            return self._hand_over(record)
        except BrokenPipeError:
            raise  # raised by on_event: the reader of the output is gone
        except OSError as error:
            raise self._write_error(error, record.name) from error

    def keep_best_so_far(self, record: StudyRecord) -> None:
        """Write the best model of an interrupted study, if there is one: quickly, and without any worker.

        It is neither tested nor ready to serve, unless it was handed over before.
        """
        winner = self._winner(self.store.trials(record.name), record)
        if winner is None:
            return
        card, written = self._writer(record).card(winner, {}), read_card(self.folder)
        if is_same_model({**written, "test": {}}, card):
            card = written
        else:
            keep_best(self.folder, winner, card, self.home.path)
        self.store.save_study(replace(record, result=card))

    def _hand_over(self, record: StudyRecord) -> Result:
        trials = self.coordinator.trials
        winner = self._winner(trials, record)
        if winner is None:
            reason = _reason_of_failure(trials, record.reason)
            self.store.save_study(replace(record, state=StudyState.FAILED, reason=reason))
            page = self._write_report(record.name)[0]
            raise StudyFailed(f"the study {record.name!r} has no model: {reason}; its report: {page}")
        writer = self._writer(record)
        card = writer.card(winner, writer.describe(winner))
        self._write_reference(winner)
        self._write_profile(winner, record)
        keep_best(self.folder, winner, card, self.home.path)
        surfaces, card = writer.deploy(winner, self.folder / "best", card)
        best, test = winner.with_metrics(card["metrics"]), card["test"]  # of the very file, if it is compressed
        shortlist = self._compress(trials, winner, card) if self.spec.compress == "after" else None
        result = card if shortlist is None else {**card, SHORTLIST: to_json(shortlist)}
        record = replace(record, state=StudyState.DONE, result=result)
        self.store.save_study(record)
        page, summary = self._write_report(record.name)
        listed = shortlist.candidates if shortlist is not None else ()
        members = front(summary.ranking, self.spec.objective)
        kept = (winner, *members)
        self._remove_files(trials, {*(trial.number for trial in kept), *(candidate.trial for candidate in listed)})
        self.on_event(
            StudyEnded(
                self.coordinator.progress,
                record.reason,
                record.name,
                self.spec.workload,
                winner.number,
                winner.config,
                best.metrics,
                test,
            )
        )
        return Result(
            study=record.name,
            reason=record.reason,
            best=best,
            trials=tuple(trials),
            ranking=summary.ranking,
            front=sorted(members, key=lambda trial: trial.number),
            objective=self.spec.objective,
            test=test,
            folder=self.folder,
            report=page,
            elapsed_s=record.elapsed_s,
            cost=total_cost(trials, open_epochs(record.name, self.store, trials)),
            workload=self.tunable.workload,
            surfaces=surfaces,
            recommendation=summary.recommendation,
            shortlist=shortlist,
        )

    def _writer(self, record: StudyRecord) -> ModelWriter:
        return ModelWriter(
            record.name, self.spec, self.tunable, self.engine, self.folder, self.measurement, self.home.path
        )

    def _write_report(self, name: str) -> tuple[Path, Summary]:
        summary = summary_of(name, self.store, folder=self.folder, epochs="curves")
        page = self.folder / "report.html"
        page.write_text(StudyReport(summary).as_html(), encoding="utf-8")
        return page, summary

    def _write_reference(self, winner: Trial) -> None:
        """Write the reference set, once: all trials of a study have the same data."""
        file = self.folder / REFERENCE
        if self.tunable.workload is None or file.is_file():
            return
        written = run_call(self.engine, Call(calls.write_reference, (winner.config, str(file))))
        if isinstance(written, Failure):
            log.warning("the model of study %s has no reference set: %s", self.spec.workload, written.reason)

    def _write_profile(self, winner: Trial, record: StudyRecord) -> None:
        """Profile the winner for retrainings, in a small share of the time that the study took."""
        seconds = profile_s(record.elapsed_s)
        file = self.folder / PROFILE
        file.unlink(missing_ok=True)  # of the winner before an extension
        weights = best_weights_file(self.folder, winner.number, winner.finished_rungs[-1].rung)
        if self.tunable.workload is None or weights is None or not seconds:
            return
        given = (winner.config, str(weights.relative_to(self.folder)), str(file), seconds)
        is_profiled = run_call(self.engine, Call(profile_retraining, given))
        if not is_profiled or isinstance(is_profiled, Failure):
            reason = is_profiled.reason if isinstance(is_profiled, Failure) else f"{duration(seconds)} did not suffice"
            log.info("the model of study %s has no retraining profile: %s", record.name, reason)

    def _winner(self, trials: list[Trial], record: StudyRecord) -> Trial | None:
        objective, epoch_objective = self.spec.objective, self.spec.epoch_objective
        epochs = self._read_epochs(record.name)
        serving_metrics = (lambda _: {}) if self.measurement is None else self.measurement.known_metrics
        ranking = leaderboard(
            trials, epochs, objective, epoch_objective, is_servable=self._is_servable, serving_metrics=serving_metrics
        )
        return ranking[0] if ranking else None

    def _read_epochs(self, name: str) -> Iterator[Epoch]:
        """Read the epochs when the first one is needed: a study with results is ranked without them."""
        yield from self.store.epochs(name)

    def _write_error(self, error: OSError, name: str) -> StoreError:
        resume = f"and resume the study {name!r}"
        if failure_of(error).kind is FailureKind.NO_SPACE:
            return StoreError(f"the disk is full ({error}); nothing is lost: free some space in {self.folder} {resume}")
        return StoreError(
            f"the result cannot be written ({error}); nothing is lost: make {self.folder} writable {resume}"
        )

    def _is_servable(self, trial: Trial) -> bool:
        """Return whether the trial's model is known to run on all devices."""
        if self.measurement is None or self.spec.serving.measure == "winner":
            return True
        return trial.failure is None or self.measurement.knows(trial.number)

    def _compress(self, trials: list[Trial], winner: Trial, card: Mapping[str, Any]) -> Shortlist | None:
        """Compress the best trials and measure them on the first device, or on this machine.

        Returns None if that fails: the winner is handed over in any case.
        """

        from onefold.compression.after_study import (
            AfterStudyCompression,  # imports torch, which many commands do not need
        )

        def on_event(message: str) -> None:
            self.on_event(StageStarted(self.coordinator.progress, message))

        here = self.spec.host or host(self.home.devices)
        device = self.spec.devices[0] if self.spec.devices else here
        about = {name: card[name] for name in ("study", "workload")}
        spec = self.spec
        step = AfterStudyCompression(
            spec.objective, spec.workload_objective or spec.objective, spec.serving,
            self.engine, self.folder, self.home, device, here, on_event, spec.selection,
        )  # fmt: skip
        try:
            return step.compress(trials, winner, about)
        except (ModelError, DeviceError) as error:
            on_event(f"the best trials could not be compressed: {error}")
            log.warning("the best trials of study %s could not be compressed: %s", card["study"], error)
            return None

    def _remove_files(self, trials: list[Trial], kept: set[int]) -> None:
        """Remove the files that no extension of the study can need."""
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        shutil.rmtree(self.folder / "models", ignore_errors=True)
        if not self.coordinator.is_over or self.spec.rungs == "asha" or self.spec.arms:
            return  # asynchronous halving may still promote any trial, and arms are compared by all their trials
        for trial in trials:
            if trial.state is TrialState.STOPPED and trial.number not in kept:  # failed ones may be run again
                for file in trial_files(self.folder, trial.number):
                    file.unlink()


def profile_s(study_s: float) -> float:
    """Return the seconds to profile the model of a study that took so long; 0 if they would not suffice."""
    seconds = min(MAX_PROFILE_S, PROFILE_SHARE * study_s)
    return seconds if seconds >= MIN_PROFILE_S else 0.0


def _reason_of_failure(trials: list[Trial], reason: str) -> str:
    failures = [trial.failure for trial in trials if trial.failure is not None]
    if failures:
        failed = "its only trial failed" if len(failures) == 1 else f"all {len(failures)} trials failed; the first"
        return f"{failed}: {failures[0].reason}"
    return f"{reason} before any trial finished an epoch"
