"""Convert records to rows and back: keys and states are columns, everything deeper is a JSON document.

Every store keeps these rows, so that every store returns the same records. NaN and infinity, which JSON lacks, are
written the way Python's `json` writes and reads them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any

from onefold.store import checksums
from onefold.store.errors import OTHER_HOME
from onefold.store.jobs import Attempt, AttemptOutcome, Job
from onefold.store.kernel_history import CompilationRecord
from onefold.store.studies import StudyRecord
from onefold.vocabulary.errors import StoreError
from onefold.vocabulary.kernels import CandidateFailure, CompileCost, Operator, ScheduleCandidate, TuningRound
from onefold.vocabulary.knobs import KnobMemory, KnobRecord
from onefold.vocabulary.moment import Moment
from onefold.vocabulary.records import (
    Config,
    Energy,
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

# `json.dumps` with separators would create an encoder for every document.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def study_row(study: StudyRecord) -> Row:
    """Return the row of a study."""
    row = {
        "name": study.name,
        "created": study.created,
        "state": study.state.value,
        "reason": _encode(study.reason),
        "elapsed_s": study.elapsed_s,
        "spec": document(study.spec),
        "result": document(study.result),
    }
    return checksums.with_checksum(row, checksums.STUDY)


def study_of(row: Row) -> StudyRecord:
    """Return the study of a row."""
    checksums.check(f"study {row['name']!r}", row, checksums.STUDY)
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


def listed_study_of(row: Row) -> StudyRecord:
    """Return the study of a row, or what can be said of it if it cannot be read."""
    try:
        return study_of(row)
    except StoreError as error:
        return StudyRecord(str(row["name"]), {}, str(row["created"]), problem=str(error))


def trial_row(study: str, trial: Trial) -> Row:
    """Return the row of a trial, without its rungs."""
    row = {
        "study": study,
        "number": trial.number,
        "state": trial.state.value,
        "config": document(trial.config),
        "refusals": document(trial.refusals),
        "redraws": trial.redraws,
    }
    return checksums.with_checksum(row, checksums.TRIAL)


def trial_of(row: Row, rungs: Iterable[Rung]) -> Trial:
    """Return the trial of a row, with these rungs."""
    checksums.check(f"trial {row['number']} of study {row['study']!r}", row, checksums.TRIAL)
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
    """Return the row of a rung."""
    row = {
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
        "grant": document(rung.grant),
        "metrics": document(rung.metrics),
        "measurement": document(rung.measurement),
        "failure": None if rung.failure is None else document(rung.failure),
    }
    return checksums.with_checksum(row, checksums.RUNG)


def rung_of(row: Row) -> Rung:
    """Return the rung of a row."""
    checksums.check(f"decision {row['decision']} of study {row['study']!r}", row, checksums.RUNG)
    with _reading(f"decision {row['decision']} of study {row['study']!r}"):
        return Rung(
            decision=row["decision"],
            trial=row["trial"],
            rung=row["rung"],
            bracket=row["bracket"],
            grant=Grant(**json.loads(row["grant"])),
            threads=row["threads"],
            state=RungState(row["state"]),
            metrics=json.loads(row["metrics"]),
            measurement=_measurement_of(row["measurement"]),
            failure=None if row["failure"] is None else from_json(Failure, json.loads(row["failure"])),
            attempts=row["attempts"],
            started_s=row["started_s"],
            ended_s=row["ended_s"],
        )


def epoch_row(study: str, epoch: Epoch) -> Row:
    """Return the row of an epoch."""
    return {
        "study": study,
        "trial": epoch.trial,
        "rung": epoch.rung,
        "number": epoch.number,
        "metrics": document(epoch.metrics),
        "measurement": document(epoch.measurement),
    }


def epoch_of(row: Row) -> Epoch:
    """Return the epoch of a row."""
    with _reading(f"epoch {row['number']} of trial {row['trial']} of study {row['study']!r}"):
        return Epoch(
            trial=row["trial"],
            number=row["number"],
            rung=row["rung"],
            metrics=json.loads(row["metrics"]),
            measurement=_measurement_of(row["measurement"]),
        )


def surface_row(key: str, surface: Surface) -> Row:
    """Return the row of a surface."""
    return {"key": key, "content": document(surface)}


def surface_of(row: Row) -> Surface:
    """Return the surface of a row; the `recalled` of a link, if the row has one, wins over the surface's own."""
    with _reading(f"the surface {row['key']}"):
        surface = from_json(Surface, json.loads(row["content"]))
        return replace(surface, recalled=bool(row.get("recalled", surface.recalled)))


ARCHIVED = "archived-"  # what the keys of surfaces begin with that are not in the history any more


def archived_key() -> str:
    """Return a new key for a surface that only its trials know."""
    return f"{ARCHIVED}{secrets.token_hex(16)}"


def surface_link_row(study: str, trial: int, device: str, key: str, recalled: bool) -> Row:
    """Return the row that links a trial to its surface."""
    return {"study": study, "trial": trial, "device": device, "key": key, "recalled": int(recalled)}


def knob_record_row(study: str, record: KnobRecord) -> Row:
    """Return the row of an epoch's knobs."""
    key = {"study": study, "trial": record.trial, "rung": record.rung, "epoch": record.epoch}
    return {**key, "content": document(record)}


def knob_record_of(row: Row) -> KnobRecord:
    """Return the knob record of a row."""
    with _reading(f"the knobs of trial {row['trial']} of study {row['study']!r}"):
        return from_json(KnobRecord, json.loads(row["content"]))


def knob_memory_row(memory: KnobMemory) -> Row:
    """Return the row of a knob memory. Jobs with the same rounded profile and load on a machine share a key."""
    profile = {name: round(value, 1) for name, value in sorted(memory.profile.features.items())}
    load = round(memory.load)
    key = _key([memory.machine, memory.aim, memory.reduced, profile, *([load] if load else [])])
    return {"key": key, "machine": memory.machine, "content": document(memory)}


def knob_memory_of(row: Row) -> KnobMemory:
    """Return the knob memory of a row."""
    with _reading(f"a knob memory of machine {row['machine']}"):
        return from_json(KnobMemory, json.loads(row["content"]))


def lesson_row(lesson: MemoryLesson) -> Row:
    """Return the row of a lesson. A plan for a model on a machine has one key."""
    plan = from_json(RetrainingPlan, to_json(lesson.plan))  # 0 and 0.0 are the same rate
    key = _key(to_json([lesson.machine, lesson.model, plan]))
    return {"machine": lesson.machine, "key": key, "content": document(lesson)}


def lesson_of(row: Row) -> MemoryLesson:
    """Return the lesson of a row."""
    with _reading(f"a lesson of machine {row['machine']}"):
        return from_json(MemoryLesson, json.loads(row["content"]))


def operator_row(operator: Operator, loops: str = "") -> Row:
    """Return the row of an operator."""
    return {"key": operator.key, "content": document(operator), "loops": loops}


def operator_of(row: Row) -> Operator:
    """Return the operator of a row."""
    with _reading(f"the operator {row['key']}"):
        return from_json(Operator, json.loads(row["content"]))


def candidate_row(candidate: ScheduleCandidate) -> Row:
    """Return the row of a candidate."""
    content = to_json(candidate)
    columns = {name: content.pop(name) for name in ("operator", "target", "trace")}
    return {"key": candidate.key, **columns, "content": _encode(content)}


def candidate_of(row: Row) -> ScheduleCandidate:
    """Return the candidate of a row."""
    with _reading(f"the candidate {row['key']} of operator {row['operator']}"):
        content = json.loads(row["content"])
        failure = content["failure"]
        # Field by field: there may be tens of thousands, and `from_json` would convert every decision.
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
    """Return the row of a compilation."""
    return {
        "key": compilation.key,
        "created": compilation.created,
        "state": compilation.state.value,
        "reason": _encode(compilation.reason),
        "elapsed_s": compilation.elapsed_s,
        "spec": document(compilation.spec),
        "rounds": document(compilation.rounds),
        "spent": document(compilation.spent),
    }


def compilation_of(row: Row) -> CompilationRecord:
    """Return the compilation of a row."""
    with _reading(f"compilation {row['key']}"):
        return CompilationRecord(
            key=row["key"],
            created=row["created"],
            state=StudyState(row["state"]),
            spec=json.loads(row["spec"]),
            rounds=tuple(from_json(TuningRound, document) for document in json.loads(row["rounds"])),
            elapsed_s=row["elapsed_s"],
            spent=from_json(CompileCost, json.loads(row["spent"])),
            reason=json.loads(row["reason"]),
        )


def job_row(job: Job) -> Row:
    """Return the row of a job, without its attempts."""
    return {
        "study": job.study,
        "tenant": job.tenant,
        "folder": job.folder,
        "submitted": document(job.submitted),
        "ended": _optional_document(job.ended),
    }


def job_of(row: Row, attempts: Iterable[Attempt]) -> Job:
    """Return the job of a row, with these attempts."""
    with _reading(f"the job of study {row['study']!r}"):
        return Job(
            study=row["study"],
            submitted=_moment(row["submitted"]),
            tenant=row["tenant"],
            folder=row["folder"],
            ended=_optional_moment(row["ended"]),
            attempts=tuple(attempts),
        )


def attempt_row(attempt: Attempt) -> Row:
    """Return the row of an attempt."""
    return {
        "study": attempt.study,
        "number": attempt.number,
        "owner": attempt.owner,
        "cores": attempt.cores,
        "epochs": attempt.epochs,
        "began": document(attempt.began),
        "heartbeat": document(attempt.heartbeat),
        "ended": _optional_document(attempt.ended),
        "outcome": None if attempt.outcome is None else attempt.outcome.value,
    }


def attempt_of(row: Row) -> Attempt:
    """Return the attempt of a row."""
    with _reading(f"attempt {row['number']} at study {row['study']!r}"):
        return Attempt(
            study=row["study"],
            number=row["number"],
            owner=row["owner"],
            cores=row["cores"],
            epochs=row["epochs"],
            began=_moment(row["began"]),
            heartbeat=_moment(row["heartbeat"]),
            ended=_optional_moment(row["ended"]),
            outcome=None if row["outcome"] is None else AttemptOutcome(row["outcome"]),
        )


def _moment(text: str) -> Moment:
    return Moment(**json.loads(text))


def _optional_moment(text: str | None) -> Moment | None:
    return None if text is None else _moment(text)


def _optional_document(record: Any) -> str | None:
    return None if record is None else document(record)


def _measurement_of(text: str) -> Measurement:
    # Field by field, unlike `from_json`: there may be a million.
    values = json.loads(text)
    values["energy"] = Energy(**values["energy"])
    return Measurement(**values)


def document(record: Any) -> str:
    """Return a record as JSON text."""
    return _encode(to_json(record))


def _key(identity: Any) -> str:
    return sha256(_encode(identity).encode()).hexdigest()[:32]


@contextmanager
def _reading(record: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        # The database is sound, but another program or a later version wrote the document.
        raise StoreError(
            f"{record} is stored in a form that this version of Onefold cannot read ({error}); "
            f"upgrade onefold, or {OTHER_HOME}"
        ) from error
