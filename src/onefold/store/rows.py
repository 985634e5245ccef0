"""Records as rows and back: keys and states are columns, everything deeper is a document of JSON text.

Every store keeps these rows, so that what comes back is the same whatever the store. Numbers that JSON does not know
(not a number, infinity) are written the way Python's `json` writes and reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any

from onefold.store.store import CompilationRecord, StudyRecord
from onefold.vocabulary.errors import StoreError
from onefold.vocabulary.kernels import CandidateFailure, CompileCost, Operator, ScheduleCandidate, TuningRound
from onefold.vocabulary.knobs import Remembered, Steered
from onefold.vocabulary.records import (
    Config,
    Epoch,
    Failure,
    Grant,
    Measurement,
    Refusal,
    Rung,
    RungState,
    StudyState,
    Trial,
    TrialState,
    from_json,
    to_json,
)
from onefold.vocabulary.retraining import MemoryLesson, RetrainingPlan
from onefold.vocabulary.serving import Surface

Row = Mapping[str, Any]

# Made once: `json.dumps` with separators would make a new encoder for every document.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def study_row(study: StudyRecord) -> Row:
    """A study as a row."""
    return {
        "name": study.name,
        "created": study.created,
        "state": study.state.value,
        "reason": _encode(study.reason),
        "elapsed_s": study.elapsed_s,
        "spec": _document(study.spec),
        "result": _document(study.result),
    }


def study_of(row: Row) -> StudyRecord:
    """The study of a row."""
    with _reading(f"study {row['name']!r}"):
        return StudyRecord(
            name=row["name"],
            spec=json.loads(row["spec"]),
            created=row["created"],
            state=StudyState(row["state"]),
            reason=json.loads(row["reason"]),
            elapsed_s=row["elapsed_s"],
            result=json.loads(row["result"]),
        )


def trial_row(study: str, trial: Trial) -> Row:
    """A trial as a row, without its rungs."""
    return {
        "study": study,
        "number": trial.number,
        "state": trial.state.value,
        "config": _document(trial.config),
        "refusals": _document(trial.refusals),
        "redraws": trial.redraws,
    }


def trial_of(row: Row, rungs: Iterable[Rung]) -> Trial:
    """The trial of a row, with these rungs."""
    with _reading(f"trial {row['number']} of study {row['study']!r}"):
        return Trial(
            number=row["number"],
            config=Config(json.loads(row["config"])),
            state=TrialState(row["state"]),
            rungs=tuple(rungs),
            refusals=tuple(from_json(Refusal, refusal) for refusal in json.loads(row["refusals"])),
            redraws=row["redraws"],
        )


def rung_row(study: str, rung: Rung) -> Row:
    """A rung as a row."""
    return {
        "study": study,
        "decision": rung.decision,
        "trial": rung.trial,
        "rung": rung.rung,
        "bracket": rung.bracket,
        "state": rung.state.value,
        "threads": rung.threads,
        "attempts": rung.attempts,
        "started_s": rung.started_s,
        "ended_s": rung.ended_s,
        "grant": _document(rung.grant),
        "metrics": _document(rung.metrics),
        "measurement": _document(rung.measurement),
        "failure": None if rung.failure is None else _document(rung.failure),
    }


def rung_of(row: Row) -> Rung:
    """The rung of a row."""
    with _reading(f"decision {row['decision']} of study {row['study']!r}"):
        return Rung(
            decision=row["decision"],
            trial=row["trial"],
            rung=row["rung"],
            bracket=row["bracket"],
            grant=from_json(Grant, json.loads(row["grant"])),
            threads=row["threads"],
            state=RungState(row["state"]),
            metrics=json.loads(row["metrics"]),
            measurement=from_json(Measurement, json.loads(row["measurement"])),
            failure=None if row["failure"] is None else from_json(Failure, json.loads(row["failure"])),
            attempts=row["attempts"],
            started_s=row["started_s"],
            ended_s=row["ended_s"],
        )


def epoch_row(study: str, epoch: Epoch) -> Row:
    """An epoch as a row."""
    return {
        "study": study,
        "trial": epoch.trial,
        "rung": epoch.rung,
        "number": epoch.number,
        "metrics": _document(epoch.metrics),
        "measurement": _document(epoch.measurement),
    }


def epoch_of(row: Row) -> Epoch:
    """The epoch of a row."""
    with _reading(f"epoch {row['number']} of trial {row['trial']} of study {row['study']!r}"):
        return Epoch(
            trial=row["trial"],
            number=row["number"],
            rung=row["rung"],
            metrics=json.loads(row["metrics"]),
            measurement=from_json(Measurement, json.loads(row["measurement"])),
        )


def surface_row(key: str, surface: Surface) -> Row:
    """A surface as a row."""
    return {"key": key, "content": _document(surface)}


def surface_of(row: Row) -> Surface:
    """The surface of a row; where the row says whether it was recalled, so does the surface."""
    with _reading(f"the surface {row['key']}"):
        surface = from_json(Surface, json.loads(row["content"]))
        return replace(surface, recalled=bool(row.get("recalled", surface.recalled)))


def serving_row(study: str, trial: int, device: str, key: str, recalled: bool) -> Row:
    """What links a trial to its surface, as a row."""
    return {"study": study, "trial": trial, "device": device, "key": key, "recalled": int(recalled)}


def steered_row(study: str, steered: Steered) -> Row:
    """What turning knobs came to in an epoch, as a row."""
    key = {"study": study, "trial": steered.trial, "rung": steered.rung, "epoch": steered.epoch}
    return {**key, "content": _document(steered)}


def steered_of(row: Row) -> Steered:
    """What turning knobs came to, of a row."""
    with _reading(f"the knobs of trial {row['trial']} of study {row['study']!r}"):
        return from_json(Steered, json.loads(row["content"]))


def remembered_row(remembered: Remembered) -> Row:
    """What is remembered of a job, as a row: of jobs that are as good as the same on a machine there is one."""
    content = _document(remembered)
    job = {name: round(value, 1) for name, value in sorted(remembered.profile.features.items())}
    same = _encode([remembered.machine, remembered.aim, remembered.reduced, job])
    return {"key": sha256(same.encode()).hexdigest()[:32], "machine": remembered.machine, "content": content}


def remembered_of(row: Row) -> Remembered:
    """What is remembered, of a row."""
    with _reading(f"what is remembered of knobs on {row['machine']}"):
        return from_json(Remembered, json.loads(row["content"]))


def lesson_row(lesson: MemoryLesson) -> Row:
    """What a plan taught, as a row: of one plan for a model on a machine there is one."""
    plan = from_json(RetrainingPlan, to_json(lesson.plan))  # 0 and 0.0 are the same rate
    same = _document([lesson.machine, lesson.model, plan])
    return {"machine": lesson.machine, "key": sha256(same.encode()).hexdigest()[:32], "content": _document(lesson)}


def lesson_of(row: Row) -> MemoryLesson:
    """What a plan taught, of a row."""
    with _reading(f"what plans taught on {row['machine']}"):
        return from_json(MemoryLesson, json.loads(row["content"]))


def operator_row(operator: Operator, loops: str = "") -> Row:
    """An operator as a row."""
    return {"key": operator.key, "content": _document(operator), "loops": loops}


def operator_of(row: Row) -> Operator:
    """The operator of a row."""
    with _reading(f"the operator {row['key']}"):
        return from_json(Operator, json.loads(row["content"]))


def candidate_row(candidate: ScheduleCandidate) -> Row:
    """A candidate as a row."""
    content = to_json(candidate)
    columns = {name: content.pop(name) for name in ("operator", "target", "trace")}
    return {"key": candidate.key, **columns, "content": _encode(content)}


def candidate_of(row: Row) -> ScheduleCandidate:
    """The candidate of a row."""
    with _reading(f"the candidate {row['key']} of operator {row['operator']}"):
        content = json.loads(row["content"])
        failure = content["failure"]
        # Field by field: there may be tens of thousands, and `from_json` would look at every decision.
        return ScheduleCandidate(
            operator=row["operator"],
            target=row["target"],
            machine=content["machine"],
            threads=content["threads"],
            implementation=content["implementation"],
            sketch=content["sketch"],
            decisions=tuple(content["decisions"]),
            trace=row["trace"],
            latency_s=content["latency_s"],
            failure=None if failure is None else CandidateFailure(failure),
            build_s=content["build_s"],
            run_s=content["run_s"],
            joules=content["joules"],
        )


def compilation_row(compilation: CompilationRecord) -> Row:
    """A compilation as a row."""
    return {
        "key": compilation.key,
        "created": compilation.created,
        "state": compilation.state.value,
        "reason": _encode(compilation.reason),
        "elapsed_s": compilation.elapsed_s,
        "spec": _document(compilation.spec),
        "rounds": _document(compilation.rounds),
        "spent": _document(compilation.spent),
    }


def compilation_of(row: Row) -> CompilationRecord:
    """The compilation of a row."""
    with _reading(f"compilation {row['key']}"):
        return CompilationRecord(
            key=row["key"],
            created=row["created"],
            state=StudyState(row["state"]),
            spec=json.loads(row["spec"]),
            rounds=tuple(from_json(TuningRound, one) for one in json.loads(row["rounds"])),
            elapsed_s=row["elapsed_s"],
            spent=from_json(CompileCost, json.loads(row["spent"])),
            reason=json.loads(row["reason"]),
        )


def _document(record: Any) -> str:
    return _encode(to_json(record))


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        # A document that another hand or a later version wrote; the file itself is sound.
        raise StoreError(
            f"{what} is written in a way that this version of Onefold cannot read ({error}); "
            "upgrade onefold, or point --home elsewhere"
        ) from error
