"""A study report as JSON values. No number is rounded.

    format       1; incremented when a key changes its meaning
    study        name, workload, objective (maximize, minimize, require), state, reason, created, elapsed_s, spec,
                 result (the handover: trial, config, metrics, test, …; shortlist if the best trials were
                 compressed after the study: device, metric, candidates, taken, why, test, failures)
    best         the number of the best trial, or null
    ranking      the numbers of all trials with a result, best first
    front        with several goals: the numbers of the trials on the Pareto front
    reasons      with several goals or serving costs: why the best trial is the one to take
    counts       the number of trials in each state, and of all
    cost         of all rungs together: time_s, cpu_s, energy_j, energy_source, energy_measured, memory_bytes
    trials       number, state, config, metrics (as measured alike for all trials: study.result has those of the model
                 that was handed over, measured again), keeps (the requirements; null without a result), level, epochs,
                 cost, refusals, and its rungs: rung, level, bracket, decision, state, epochs, data, time_s (granted),
                 threads, attempts, metrics, cost, started_s, ended_s, failure
    levels       the rungs of uncompressed trials by level: level, epochs, data, time_s (granted), trials, done,
                 failed, running, promoted, best
    epochs       trial, rung, number, metrics, cost
    progress     finished rungs by time: time_s, trial, level, value (of the first goal), keeps, best (at that time)
    curves       metric, and by trial its points as [epoch, value]
    failures     trial, rung, level, kind, reason, traceback, config, and log: the file in the study's folder
                 with all of the traceback
    forks        only with in-loop compression: the rungs of forks as in levels, with the fewest epochs of each level
    serving      only if serving was measured: devices (names), labels (sources of metrics that were not
                 measured on the device), recommendation (trial, keeps, quality, reasons, shortfalls, and by device:
                 points by purpose, reasons, top, alternatives, compared, front), surfaces (trials that share it,
                 signature, device, served points, size_bytes, parameters, measured_s, recalled, notes)
    knobs        only if knobs were tuned: by trial, rung and epoch the windows of steps (phase, knobs, steps,
                 step_s, step_j), the profile, what was learned of it, notes, and which knobs were missing and why

Times are seconds, `started_s`, `ended_s` and `progress.time_s` since the study began. A number that is not finite is
null. `energy_measured` is false for an estimate.
"""

from __future__ import annotations

from typing import Any

from onefold.report.json_values import finite
from onefold.report.study.course import RungSummary
from onefold.report.study.serving import serving_json
from onefold.report.study.summary import FailedTrial, Summary
from onefold.vocabulary.records import Failure, Grant, Measurement, Rung, Trial, to_json

FORMAT = 1


def as_json(summary: Summary) -> dict[str, Any]:
    """Return the report as values that `json.dumps(..., allow_nan=False)` accepts."""
    study = summary.study
    content = {
        "format": FORMAT,
        "study": {
            **_attributes(study, "name", "state", "reason", "created", "elapsed_s", "result", "spec"),
            "workload": summary.workload,
            "objective": summary.objective.to_json(),
        },
        "best": None if summary.best is None else summary.best.number,
        "ranking": [trial.number for trial in summary.ranking],
        "front": [trial.number for trial in summary.front],
        "reasons": _reasons(summary),
        "counts": {**{state.value: count for state, count in summary.counts.items()}, "all": len(summary.trials)},
        "cost": _cost(summary.cost),
        "trials": [_trial(summary, trial) for trial in summary.trials],
        "levels": [_level(level) for level in summary.levels],
        "epochs": [
            {**_attributes(epoch, "trial", "rung", "number", "metrics"), "cost": _cost(epoch.measurement)}
            for epoch in summary.epochs
        ],
        "progress": summary.progress,
        "curves": {
            "metric": summary.curve_metric,
            "trials": {curve.trial: curve.points for curve in summary.curves},
        },
        "failures": [_failed(failed) for failed in summary.failures],
        **({"forks": [_level(level) for level in summary.forks]} if summary.forks else {}),
        **({"serving": serving_json(summary)} if summary.servings else {}),
        **({"knobs": summary.knob_records} if summary.knob_records else {}),
    }
    plain: dict[str, Any] = finite(to_json(content))
    return plain


def front_json(summary: Summary) -> dict[str, Any]:
    """Return the Pareto front: study, objective, best (a number or null), reasons, and the trials as in `as_json`."""
    content = {
        "study": summary.study.name,
        "objective": summary.objective.to_json(),
        "best": None if summary.best is None else summary.best.number,
        "reasons": _reasons(summary),
        "front": [_trial(summary, trial) for trial in summary.front_by_goal],
    }
    plain: dict[str, Any] = finite(to_json(content))
    return plain


def _reasons(summary: Summary) -> list[str]:
    return [] if summary.recommendation is None else list(summary.recommendation.reasons)


def _trial(summary: Summary, trial: Trial) -> dict[str, Any]:
    shown = summary.compared_as(trial)
    return {
        **_attributes(trial, "number", "state", "config", "refusals"),
        **_attributes(shown, "level", "metrics"),
        "keeps": summary.is_feasible(shown) if shown.finished_rungs else None,
        "epochs": summary.epochs_of(trial),
        "cost": _cost(trial.cost),
        "rungs": [_rung(rung) for rung in trial.rungs],
    }


def _rung(rung: Rung) -> dict[str, Any]:
    return {
        **_attributes(rung, "rung", "bracket", "decision", "state", "threads", "attempts", "metrics"),
        **_attributes(rung, "started_s", "ended_s"),
        **_grant(rung.grant),
        "cost": _cost(rung.measurement),
        "failure": rung.failure and _failure(rung.failure),
    }


def _grant(grant: Grant) -> dict[str, Any]:
    return _attributes(grant, "level", "epochs", "data", "time_s")


def _level(level: RungSummary) -> dict[str, Any]:
    return {**_grant(level.grant), **_attributes(level, "trials", "done", "failed", "running", "promoted", "best")}


def _cost(spent: Measurement) -> dict[str, Any]:
    nothing = spent.energy.source == "nothing"
    return {
        **_attributes(spent, "time_s", "cpu_s", "memory_bytes"),
        "energy_j": None if nothing else spent.energy.joules,
        "energy_source": "unavailable" if nothing else spent.energy.source,
        "energy_measured": spent.energy.measured and not nothing,
    }


def _failed(failed: FailedTrial) -> dict[str, Any]:
    rung = failed.rung
    labels = {"trial": rung.trial, "rung": rung.rung, "level": rung.grant.level}
    return {**labels, **_failure(failed.failure), "config": failed.config}


def _failure(failure: Failure) -> dict[str, Any]:
    return _attributes(failure, "kind", "reason", "traceback", "log")


def _attributes(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}
