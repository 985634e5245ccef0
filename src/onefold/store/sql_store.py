"""A store in an SQL database. What differs between databases is in its `Backend`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import Executable, Table, inspect
from sqlalchemy.exc import IntegrityError

from onefold.store import rows, schema, statements
from onefold.store.backend import Backend, mapped_errors
from onefold.store.errors import OTHER_HOME, name_taken, unknown_study, unknown_trials
from onefold.store.jobs import Attempt, Job
from onefold.store.kernel_history import CompilationRecord
from onefold.store.rows import Row
from onefold.store.studies import EpochCount, StudyRecord
from onefold.store.transactions import Transactions
from onefold.vocabulary.errors import StoreError
from onefold.vocabulary.kernels import Operator, ScheduleCandidate
from onefold.vocabulary.knobs import KnobMemory, KnobRecord
from onefold.vocabulary.moment import Moment
from onefold.vocabulary.records import Epoch, Rung, Trial, TrialState
from onefold.vocabulary.retraining import MemoryLesson
from onefold.vocabulary.serving import Surface


class SqlStore:
    """The store in the database of `backend`, which is created or migrated to the current revision."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._transactions = Transactions(self._begin, self._commit, self._rollback)
        with mapped_errors(backend):
            self._connection = backend.connect()
        self._dialect = self._connection.dialect.name
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def transaction(self) -> AbstractContextManager[None]:
        return self._transactions.transaction()

    # Studies.

    def create_study(self, study: StudyRecord) -> None:
        with self.transaction():
            if study.name in self._study_names():
                raise name_taken(study.name)
            self._write(statements.CREATE_STUDY, rows.study_row(study))

    def save_study(self, study: StudyRecord) -> None:
        with self.transaction():
            if not self._write(statements.SAVE_STUDY, {**rows.study_row(study), "study": study.name}):
                self._check_exists(study.name)

    def study(self, name: str) -> StudyRecord:
        records = self._read(statements.STUDY, study=name)
        if not records:
            raise unknown_study(name, self._study_names())
        return rows.study_of(records[0])

    def studies(self) -> list[StudyRecord]:
        return [rows.listed_study_of(row) for row in self._read(statements.STUDIES)]

    def delete_study(self, name: str) -> None:
        with self.transaction():
            self._check_exists(name)
            for statement in statements.DELETE_STUDY:
                self._write(statement, {"of_study": name})

    def save_trial(self, study: str, trial: Trial) -> None:
        self._upsert(schema.trials, rows.trial_row(study, trial), study=study)

    def set_trial_states(self, study: str, states: Mapping[int, TrialState]) -> None:
        if not states:
            return
        with self.transaction():
            for number, state in states.items():
                row = {"of_study": study, "of_number": number, "state": state.value}
                if not self._write(statements.SET_TRIAL_STATE, row):
                    self._check_exists(study, number)

    def save_rung(self, study: str, rung: Rung) -> None:
        self._upsert(schema.rungs, rows.rung_row(study, rung), study=study, trial=rung.trial)

    def save_epoch(self, study: str, epoch: Epoch) -> None:
        self._insert_if_absent(schema.epochs, rows.epoch_row(study, epoch), study, epoch.trial)

    def trials(self, study: str) -> list[Trial]:
        with self._snapshot():
            self._check_exists(study)
            records = self._read(statements.TRIALS, study=study)
            rungs: dict[int, list[Rung]] = {row["number"]: [] for row in records}
            for row in self._read(statements.RUNGS, study=study):
                rungs[row["trial"]].append(rows.rung_of(row))
        return [rows.trial_of(row, rungs[row["number"]]) for row in records]

    def epochs(self, study: str, trial: int | None = None) -> list[Epoch]:
        with self._snapshot():
            self._check_exists(study)
            if trial is None:
                records = self._read(statements.EPOCHS, study=study)
            else:
                records = self._read(statements.EPOCHS_OF_TRIAL, study=study, trial=trial)
        return [rows.epoch_of(row) for row in records]

    def epoch_counts(self, study: str) -> dict[tuple[int, int], EpochCount]:
        with self._snapshot():
            self._check_exists(study)
            records = self._read(statements.EPOCH_COUNTS, study=study)
        return {(row["trial"], row["rung"]): EpochCount(row["epochs"], row["last"]) for row in records}

    # Serving history.

    def save_surface(self, key: str, surface: Surface) -> None:
        self._upsert(schema.surfaces, rows.surface_row(key, surface))

    def surface(self, key: str) -> Surface | None:
        return next((rows.surface_of(row) for row in self._read(statements.SURFACE, key=key)), None)

    def surfaces(self) -> dict[str, Surface]:
        records = [row for row in self._read(statements.SURFACES) if not row["key"].startswith(rows.ARCHIVED)]
        return {row["key"]: rows.surface_of(row) for row in records}

    def archive_surface(self, key: str) -> None:
        with self.transaction():
            for row in self._read(statements.SURFACE, key=key):
                if self._read(statements.COUNT_LINKS, key=key)[0]["links"]:
                    new_key = rows.archived_key()
                    self._write(statements.ADD_SURFACE, {**row, "key": new_key})
                    self._write(statements.MOVE_LINKS, {"of_key": key, "new_key": new_key})
                self._write(statements.DELETE_SURFACE, {"of_key": key})

    def link_surface(self, study: str, trial: int, device: str, key: str, *, recalled: bool) -> None:
        row = rows.surface_link_row(study, trial, device, key, recalled)
        self._upsert(schema.servings, row, study=study, trial=trial)

    def trial_surfaces(self, study: str) -> dict[tuple[int, str], Surface]:
        with self._snapshot():
            self._check_exists(study)
            records = self._read(statements.TRIAL_SURFACES, study=study)
        return {(row["trial"], row["device"]): rows.surface_of(row) for row in records}

    # Knob history.

    def save_knob_record(self, study: str, record: KnobRecord) -> None:
        self._insert_if_absent(schema.steered, rows.knob_record_row(study, record), study, record.trial)

    def knob_records(self, study: str) -> list[KnobRecord]:
        with self._snapshot():
            self._check_exists(study)
            records = self._read(statements.KNOB_RECORDS, study=study)
        return [rows.knob_record_of(row) for row in records]

    def save_knob_memory(self, memory: KnobMemory) -> None:
        self._upsert(schema.remembered, rows.knob_memory_row(memory))

    def knob_memories(self) -> list[KnobMemory]:
        return [rows.knob_memory_of(row) for row in self._read(statements.KNOB_MEMORIES)]

    # Retraining history.

    def save_lesson(self, lesson: MemoryLesson) -> None:
        row = rows.lesson_row(lesson)
        with self.transaction():
            self._write(statements.DELETE_LESSON, {"of_key": row["key"]})
            self._write(statements.ADD_LESSON, row)

    def lessons(self, machine: str) -> list[MemoryLesson]:
        return [rows.lesson_of(row) for row in self._read(statements.LESSONS, machine=machine)]

    # Kernel history.

    def save_operator(self, operator: Operator, loops: str = "") -> None:
        self._upsert(schema.operators, rows.operator_row(operator, loops))

    def loops(self, operator: str) -> str:
        return next((str(row["loops"]) for row in self._read(statements.LOOPS, key=operator)), "")

    def operators(self) -> dict[str, Operator]:
        return {row["key"]: rows.operator_of(row) for row in self._read(statements.OPERATORS)}

    def save_candidates(self, candidates: Sequence[ScheduleCandidate]) -> None:
        if candidates:
            self._upsert(schema.candidates, [rows.candidate_row(candidate) for candidate in candidates], "key")

    def candidates(self, operator: str | None = None, target: str | None = None) -> list[ScheduleCandidate]:
        filters = {"operator": operator, "target": target}
        given = {name: value for name, value in filters.items() if value is not None}
        return [rows.candidate_of(row) for row in self._read(statements.CANDIDATES.filter_by(**given))]

    def save_compilation(self, compilation: CompilationRecord) -> None:
        self._upsert(schema.compilations, rows.compilation_row(compilation), "key")

    def compilation(self, key: str) -> CompilationRecord | None:
        return next((rows.compilation_of(row) for row in self._read(statements.COMPILATION, key=key)), None)

    def compilations(self) -> list[CompilationRecord]:
        return [rows.compilation_of(row) for row in self._read(statements.COMPILATIONS)]

    # The queue.

    def add_job(self, job: Job) -> None:
        with self.transaction():
            for statement in statements.DELETE_JOB:
                self._write(statement, {"of_study": job.study})
            self._write(statements.ADD_JOB, rows.job_row(job), study=job.study)

    def end_job(self, study: str, ended: Moment) -> None:
        self._write(statements.END_JOB, {"of_study": study, "ended": rows.document(ended)})

    def job(self, study: str) -> Job | None:
        return next(iter(self._jobs(statements.JOB, statements.ATTEMPTS_OF_JOB, study=study)), None)

    def jobs(self, *, is_open: bool = False) -> list[Job]:
        if is_open:
            return self._jobs(statements.OPEN_JOBS, statements.ATTEMPTS_OF_OPEN_JOBS)
        return self._jobs(statements.JOBS, statements.ATTEMPTS)

    def _jobs(self, jobs: Executable, attempts: Executable, **parameters: Any) -> list[Job]:
        with self._snapshot():
            records = self._read(jobs, **parameters)
            tries: dict[str, list[Attempt]] = {row["study"]: [] for row in records}
            for row in self._read(attempts, **parameters):
                tries[row["study"]].append(rows.attempt_of(row))
        return [rows.job_of(row, tries[row["study"]]) for row in records]

    def save_attempt(self, attempt: Attempt) -> None:
        self._upsert(schema.attempts, rows.attempt_row(attempt), study=attempt.study)

    def save_shares(self, shares: Mapping[str, float]) -> None:
        with self.transaction():
            self._write(statements.DELETE_SHARES, {})
            for name, share in shares.items():
                self._upsert(schema.tenants, {"name": name, "share": share})

    def shares(self) -> dict[str, float]:
        return {row["name"]: row["share"] for row in self._read(statements.SHARES)}

    def close(self) -> None:
        with mapped_errors(self._backend):
            self._connection.close()

    # Revisions.

    def _prepare(self) -> None:
        """Create or migrate the tables unless they are current."""
        if self._stored_revision() == schema.REVISION:
            return
        with self.transaction(), mapped_errors(self._backend):
            # Asked again under the lock: another process may have migrated the store meanwhile.
            names, revision = self._table_names(), self._stored_revision()
            if not names:
                self._create_tables()
            elif revision is None and "meta" not in names:
                raise StoreError(f"{self._backend.location} is a database of another program; {OTHER_HOME}")
            elif revision is None:
                self._check_legacy_version()
                self._migrate()
            elif revision > schema.REVISION:
                raise self._too_new(f"revision {revision}", schema.REVISION)
            elif revision < schema.REVISION:
                self._migrate()

    def _stored_revision(self) -> str | None:
        if schema.alembic_version.name not in self._table_names():
            return None
        return next((row["version_num"] for row in self._read(statements.REVISION)), None)

    def _create_tables(self) -> None:
        schema.metadata.create_all(self._connection)
        self._connection.execute(statements.SAVE_REVISION, {"version_num": schema.REVISION})
        self._connection.execute(statements.SAVE_LEGACY_VERSION, {"name": "version", "value": schema.LEGACY_VERSION})

    def _migrate(self) -> None:
        from onefold.store.migrations import migrate  # imports Alembic, which takes longer than opening a store

        migrate(self._connection, schema.REVISION)

    def _check_legacy_version(self) -> None:
        version = next((row["value"] for row in self._read(statements.LEGACY_VERSION)), "")
        if not version.isdigit():
            raise StoreError(f"the store {self._backend.location} has no version; move it away, or {OTHER_HOME}")
        if int(version) > int(schema.LEGACY_VERSION):
            raise self._too_new(f"version {version}", schema.LEGACY_VERSION)

    def _too_new(self, stored: str, supported: str) -> StoreError:
        return StoreError(
            f"the store {self._backend.location} was written by a newer Onefold ({stored}, while this one supports "
            f"{supported}); upgrade onefold, or {OTHER_HOME}"
        )

    def _table_names(self) -> set[str]:
        with mapped_errors(self._backend):
            return set(inspect(self._connection).get_table_names())

    # Reading and writing.

    def _study_names(self) -> list[str]:
        return [row["name"] for row in self._read(statements.STUDY_NAMES)]

    def _read(self, statement: Executable, **parameters: Any) -> list[Row]:
        with mapped_errors(self._backend):
            return [dict(row) for row in self._connection.execute(statement, parameters).mappings()]

    def _upsert(
        self, table: Table, row: Row | list[Row], *keys: str, study: str | None = None, trial: int | None = None
    ) -> None:
        self._write(statements.upsert(self._dialect, table, *keys), row, study, trial)

    def _insert_if_absent(self, table: Table, row: Row, study: str, trial: int) -> None:
        self._write(statements.insert_if_absent(self._dialect, table), row, study, trial)

    def _write(
        self, statement: Executable, row: Row | list[Row], study: str | None = None, trial: int | None = None
    ) -> int:
        """Execute a writing statement and return how many rows it changed.

        `study` and `trial` are what the row refers to, and what to check if the database refuses it.
        """
        with self.transaction(), mapped_errors(self._backend):
            try:
                return self._connection.execute(statement, row).rowcount
            except IntegrityError:
                if study is not None:
                    self._check_exists(study, trial)
                raise

    def _check_exists(self, study: str, trial: int | None = None) -> None:
        names = self._study_names()
        if study not in names:
            raise unknown_study(study, names)
        if trial is not None and not self._read(statements.TRIAL, study=study, number=trial):
            raise unknown_trials(study, [trial])

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Let all reads of the block see the same moment."""
        if self._transactions.is_open:
            yield
            return
        try:
            with mapped_errors(self._backend):
                self._backend.begin_snapshot(self._connection)
            yield
        finally:
            self._rollback()

    def _begin(self) -> None:
        with mapped_errors(self._backend):
            self._backend.begin(self._connection)

    def _commit(self) -> None:
        with mapped_errors(self._backend):
            self._backend.commit(self._connection)

    def _rollback(self) -> None:
        with mapped_errors(self._backend):
            self._backend.rollback(self._connection)
