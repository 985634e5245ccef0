"""A store in one file: SQLite in WAL mode, where readers and the writer do not wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Executable, NullPool, create_engine
from sqlalchemy.exc import IntegrityError

from onefold.store import rows, schema, statements
from onefold.store.blocks import Blocks
from onefold.store.complaints import taken_name, unknown_study, unknown_trials
from onefold.store.rows import Row
from onefold.store.store import CompilationRecord, StudyRecord, Submission
from onefold.store.trouble import trouble
from onefold.vocabulary.errors import StoreError
from onefold.vocabulary.kernels import Operator, ScheduleCandidate
from onefold.vocabulary.knobs import Remembered, Steered
from onefold.vocabulary.records import Epoch, Rung, Trial, TrialState, to_json
from onefold.vocabulary.retraining import MemoryLesson
from onefold.vocabulary.serving import Surface


class SqliteStore:
    """The studies in the file at `path`, which is made where there is none.

    A write is on the disk when its method returns. Several processes may use one file; a write waits up to `patience_s`
    for another process to end its own.
    """

    def __init__(self, path: Path, *, patience_s: float = 30.0) -> None:
        self.path = Path(path)
        self._blocks = Blocks(self._begin, self._commit, self._rollback)
        with trouble(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = _connect(self.path, patience_s)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def together(self) -> AbstractContextManager[None]:
        """Makes the writes of the block durable as one."""
        return self._blocks.block()

    def create(self, study: StudyRecord) -> None:
        """Adds a study; raises StoreError when the name is taken."""
        with self._blocks.block():
            if study.name in self._study_names():
                raise taken_name(study.name)
            self._write(statements.CREATE, rows.study_row(study), study.name)

    def save_study(self, study: StudyRecord) -> None:
        """Replaces what is known of the study itself."""
        with self._blocks.block():
            if not self._write(statements.SAVE_STUDY, {**rows.study_row(study), "study": study.name}, study.name):
                self._check_known(study.name)

    def study(self, name: str) -> StudyRecord:
        """The study of that name."""
        found = self._read(statements.STUDY, study=name)
        if not found:
            raise unknown_study(name, self._study_names())
        return rows.study_of(found[0])

    def studies(self) -> list[StudyRecord]:
        """All studies, newest first."""
        return [rows.study_of(row) for row in self._read(statements.STUDIES)]

    def save_trial(self, study: str, trial: Trial) -> None:
        """Adds or replaces a trial."""
        self._write(statements.SAVE_TRIAL, rows.trial_row(study, trial), study)

    def mark_trials(self, study: str, states: Mapping[int, TrialState]) -> None:
        """Changes the states of these trials."""
        marks: list[Row] = [
            {"of_study": study, "of_number": number, "state": state.value} for number, state in states.items()
        ]
        if not marks:
            return
        with self._blocks.block():
            if self._write(statements.MARK_TRIAL, marks, study) < len(marks):
                for number in states:
                    self._check_known(study, number)

    def save_rung(self, study: str, rung: Rung) -> None:
        """Adds or replaces a rung."""
        self._write(statements.SAVE_RUNG, rows.rung_row(study, rung), study, rung.trial)

    def save_epoch(self, study: str, epoch: Epoch) -> None:
        """Adds an epoch, unless it is known."""
        self._write(statements.SAVE_EPOCH, rows.epoch_row(study, epoch), study, epoch.trial)

    def trials(self, study: str) -> list[Trial]:
        """All trials by number, each with its rungs."""
        with self._snapshot():
            self._check_known(study)
            found = self._read(statements.TRIALS, study=study)
            visits: dict[int, list[Rung]] = {row["number"]: [] for row in found}
            for row in self._read(statements.RUNGS, study=study):
                visits[row["trial"]].append(rows.rung_of(row))
        return [rows.trial_of(row, visits[row["number"]]) for row in found]

    def epochs(self, study: str, trial: int | None = None) -> list[Epoch]:
        """The epochs of one trial or of all."""
        with self._snapshot():
            self._check_known(study)
            if trial is None:
                found = self._read(statements.EPOCHS, study=study)
            else:
                found = self._read(statements.EPOCHS_OF_TRIAL, study=study, trial=trial)
        return [rows.epoch_of(row) for row in found]

    def save_surface(self, key: str, surface: Surface) -> None:
        """Remembers what serving an architecture costs."""
        self._write(statements.SAVE_SURFACE, rows.surface_row(key, surface), "")

    def surface(self, key: str) -> Surface | None:
        """What is remembered under a key."""
        return next((rows.surface_of(row) for row in self._read(statements.SURFACE, key=key)), None)

    def save_serving(self, study: str, trial: int, device: str, key: str, *, recalled: bool) -> None:
        """Notes which surface a trial's architecture has on a device."""
        self._write(statements.SAVE_SERVING, rows.serving_row(study, trial, device, key, recalled), study, trial)

    def servings(self, study: str) -> dict[tuple[int, str], Surface]:
        """The surfaces of a study's trials."""
        with self._snapshot():
            self._check_known(study)
            found = self._read(statements.SERVINGS, study=study)
        return {(row["trial"], row["device"]): rows.surface_of(row) for row in found}

    def save_steered(self, study: str, steered: Steered) -> None:
        """Adds what turning knobs came to in an epoch, unless it is known."""
        self._write(statements.SAVE_STEERED, rows.steered_row(study, steered), study, steered.trial)

    def steered(self, study: str) -> list[Steered]:
        """What turning knobs came to, by trial, rung and epoch."""
        with self._snapshot():
            self._check_known(study)
            found = self._read(statements.STEERED, study=study)
        return [rows.steered_of(row) for row in found]

    def remember(self, remembered: Remembered) -> None:
        """Remembers which knobs suit a job."""
        self._write(statements.REMEMBER, rows.remembered_row(remembered), "")

    def remembered(self) -> list[Remembered]:
        """All that is remembered of knobs."""
        return [rows.remembered_of(row) for row in self._read(statements.REMEMBERED)]

    def save_lesson(self, lesson: MemoryLesson) -> None:
        """Adds or replaces what a plan taught."""
        self._write(statements.SAVE_LESSON, rows.lesson_row(lesson), "")

    def lessons(self, machine: str) -> list[MemoryLesson]:
        """What plans taught on a machine, oldest first."""
        return [rows.lesson_of(row) for row in self._read(statements.LESSONS, machine=machine)]

    def save_operator(self, operator: Operator, loops: str = "") -> None:
        """Adds or replaces an operator."""
        self._write(statements.SAVE_OPERATOR, rows.operator_row(operator, loops), "")

    def loops(self, operator: str) -> str:
        """The loops that were saved with an operator."""
        return next((str(row["loops"]) for row in self._read(statements.LOOPS, key=operator)), "")

    def operators(self) -> dict[str, Operator]:
        """All operators, by key."""
        return {row["key"]: rows.operator_of(row) for row in self._read(statements.OPERATORS)}

    def save_candidates(self, candidates: Sequence[ScheduleCandidate]) -> None:
        """Adds or replaces candidates."""
        if candidates:
            self._write(statements.SAVE_CANDIDATES, [rows.candidate_row(one) for one in candidates], "")

    def candidates(self, operator: str | None = None, target: str | None = None) -> list[ScheduleCandidate]:
        """The candidates of an operator, for a target, or all."""
        wanted = {"operator": operator, "target": target}
        given = {name: value for name, value in wanted.items() if value is not None}
        return [rows.candidate_of(row) for row in self._read(statements.CANDIDATES.filter_by(**given))]

    def save_compilation(self, compilation: CompilationRecord) -> None:
        """Adds or replaces a compilation."""
        self._write(statements.SAVE_COMPILATION, rows.compilation_row(compilation), "")

    def compilation(self, key: str) -> CompilationRecord | None:
        """The compilation of that key."""
        return next((rows.compilation_of(row) for row in self._read(statements.COMPILATION, key=key)), None)

    def compilations(self) -> list[CompilationRecord]:
        """All compilations, newest first."""
        return [rows.compilation_of(row) for row in self._read(statements.COMPILATIONS)]

    def save_submission(self, submission: Submission) -> None:
        """Adds or replaces a study's place in the queue."""
        self._write(statements.SAVE_SUBMISSION, to_json(submission), submission.study)

    def submissions(self) -> list[Submission]:
        """The queue, first come first."""
        return [Submission(**row) for row in self._read(statements.SUBMISSIONS)]

    def delete(self, study: str) -> None:
        """Forgets a study."""
        with self._blocks.block():
            self._check_known(study)
            for statement in statements.DELETE:
                self._write(statement, {"of_study": study}, study)

    def close(self) -> None:
        """Lets go of the file; calling it twice is fine."""
        with trouble(self.path):
            self._connection.close()

    def _prepare(self) -> None:
        with trouble(self.path):
            # WAL lets others read meanwhile; FULL has every commit wait for the disk.
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
                self._connection.exec_driver_sql(f"PRAGMA {pragma}")
        if "meta" not in self._table_names():
            self._make_tables()
        if self._check_version() < schema.VERSION:
            self._make_tables()  # a newer version has so far only ever added tables

    def _check_version(self) -> int:
        version = next((row["value"] for row in self._read(statements.VERSION)), "")
        if not version.isdigit():
            raise StoreError(f"the store {self.path} does not say its version; move it away, or point --home elsewhere")
        if int(version) > schema.VERSION:
            raise StoreError(
                f"the store {self.path} was written by a newer Onefold (version {version} of its tables, and this one "
                f"knows {schema.VERSION}); upgrade onefold, or point --home elsewhere"
            )
        return int(version)

    def _make_tables(self) -> None:
        with self._blocks.block(), trouble(self.path):
            # Asked again under the lock: another process may have made them meanwhile.
            names = self._table_names()
            if names and "meta" not in names:
                raise StoreError(f"{self.path} is a database of another program; point --home elsewhere")
            schema.metadata.create_all(self._connection)
            self._connection.execute(statements.NOTE_VERSION, {"name": "version", "value": str(schema.VERSION)})

    def _table_names(self) -> set[str]:
        with trouble(self.path):
            return set(self._connection.exec_driver_sql(statements.TABLE_NAMES).scalars())

    def _study_names(self) -> list[str]:
        return [row["name"] for row in self._read(statements.STUDY_NAMES)]

    def _read(self, statement: Executable, **parameters: Any) -> list[Row]:
        with trouble(self.path):
            return [dict(row) for row in self._connection.execute(statement, parameters).mappings()]

    def _write(self, statement: Executable, row: Row | list[Row], study: str, trial: int | None = None) -> int:
        """Runs one writing statement, for one row or for several, and tells how many rows it changed."""
        with self._blocks.block(), trouble(self.path):
            try:
                return self._connection.execute(statement, row).rowcount
            except IntegrityError:
                self._check_known(study, trial)
                raise

    def _check_known(self, study: str, trial: int | None = None) -> None:
        names = self._study_names()
        if study not in names:
            raise unknown_study(study, names)
        if trial is not None and not self._read(statements.TRIAL, study=study, number=trial):
            raise unknown_trials(study, [trial])

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Has all reads of the block see one moment."""
        if self._blocks.are_open:
            yield
            return
        try:
            self._run("BEGIN")
            yield
        finally:
            self._rollback()

    def _begin(self) -> None:
        # Takes the lock at once: a transaction that began by reading could not be sure to get it later.
        self._run("BEGIN IMMEDIATE")

    def _commit(self) -> None:
        self._run("COMMIT")

    def _rollback(self) -> None:
        # SQLite has rolled back by itself after some errors, such as a full disk.
        driver = None if self._connection.closed else self._connection.connection.driver_connection
        if driver is not None and driver.in_transaction:
            self._run("ROLLBACK")

    def _run(self, command: str) -> None:
        with trouble(self.path):
            self._connection.exec_driver_sql(command)


def _connect(path: Path, patience_s: float) -> Connection:
    # AUTOCOMMIT leaves BEGIN and COMMIT to this store: the driver's own would begin too late and never for reads.
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
        connect_args={"timeout": patience_s},
    )
    return engine.connect()
