"""A second store, in memory: it shows that the contract holds for more than one database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields

from onefold.store import rows
from onefold.store.errors import name_taken, unknown_study, unknown_trials
from onefold.store.jobs import Attempt, Job
from onefold.store.kernel_history import CompilationRecord
from onefold.store.rows import Row
from onefold.store.studies import EpochCount, StudyRecord
from onefold.store.transactions import Transactions
from onefold.vocabulary.kernels import Operator, ScheduleCandidate
from onefold.vocabulary.knobs import KnobMemory, KnobRecord
from onefold.vocabulary.moment import Moment
from onefold.vocabulary.records import Epoch, Rung, Trial, TrialState
from onefold.vocabulary.retraining import MemoryLesson
from onefold.vocabulary.serving import Surface


@dataclass
class Tables:
    """All rows by their keys."""

    studies: dict[str, Row] = field(default_factory=dict)
    trials: dict[tuple[str, int], Row] = field(default_factory=dict)  # by study and number
    rungs: dict[tuple[str, int], Row] = field(default_factory=dict)  # by study and decision
    epochs: dict[tuple[str, int, int, int], Row] = field(default_factory=dict)  # by study, trial, rung and number
    surfaces: dict[str, Row] = field(default_factory=dict)
    servings: dict[tuple[str, int, str], Row] = field(default_factory=dict)  # by study, trial and device
    steered: dict[tuple[str, int, int, int], Row] = field(default_factory=dict)  # by study, trial, rung and epoch
    remembered: dict[tuple[str, str], Row] = field(default_factory=dict)  # by machine and key
    lessons: dict[str, Row] = field(default_factory=dict)  # by key
    operators: dict[str, Row] = field(default_factory=dict)  # by key, like the two below
    candidates: dict[str, Row] = field(default_factory=dict)
    compilations: dict[str, Row] = field(default_factory=dict)
    jobs: dict[tuple[str], Row] = field(default_factory=dict)  # by study
    attempts: dict[tuple[str, int], Row] = field(default_factory=dict)  # by study and number
    tenants: dict[str, float] = field(default_factory=dict)  # by name

    def copy(self) -> Tables:
        """Return a copy that can change without changing this one."""
        return Tables(*(dict(getattr(self, f.name)) for f in fields(self)))


class MemoryStore:
    """Keep the rows of a database in dictionaries."""

    def __init__(self) -> None:
        self._tables = self._before = Tables()
        self._transactions = Transactions(self._begin, lambda: None, self._rollback)

    def transaction(self) -> AbstractContextManager[None]:
        return self._transactions.transaction()

    def create_study(self, study: StudyRecord) -> None:
        with self.transaction():
            if study.name in self._tables.studies:
                raise name_taken(study.name)
            self._tables.studies[study.name] = rows.study_row(study)

    def save_study(self, study: StudyRecord) -> None:
        with self.transaction():
            self._check_study(study.name)
            self._tables.studies[study.name] = rows.study_row(study)

    def study(self, name: str) -> StudyRecord:
        self._check_study(name)
        return rows.study_of(self._tables.studies[name])

    def studies(self) -> list[StudyRecord]:
        return [rows.listed_study_of(row) for row in _newest_first(self._tables.studies.values())]

    def save_trial(self, study: str, trial: Trial) -> None:
        with self.transaction():
            self._check_study(study)
            self._tables.trials[study, trial.number] = rows.trial_row(study, trial)

    def set_trial_states(self, study: str, states: Mapping[int, TrialState]) -> None:
        if not states:
            return
        with self.transaction():
            self._check_trials(study, *states)
            for number, state in states.items():
                row = self._tables.trials[study, number]
                self._tables.trials[study, number] = {**row, "state": state.value}

    def save_rung(self, study: str, rung: Rung) -> None:
        with self.transaction():
            self._check_trials(study, rung.trial)
            self._tables.rungs[study, rung.decision] = rows.rung_row(study, rung)

    def save_epoch(self, study: str, epoch: Epoch) -> None:
        with self.transaction():
            self._check_trials(study, epoch.trial)
            self._tables.epochs.setdefault((study, epoch.trial, epoch.rung, epoch.number), rows.epoch_row(study, epoch))

    def trials(self, study: str) -> list[Trial]:
        self._check_study(study)
        rungs: dict[int, list[Rung]] = {}
        for key in sorted(key for key in self._tables.rungs if key[0] == study):
            rung = rows.rung_of(self._tables.rungs[key])
            rungs.setdefault(rung.trial, []).append(rung)
        keys = sorted(key for key in self._tables.trials if key[0] == study)
        return [rows.trial_of(self._tables.trials[key], rungs.get(key[1], ())) for key in keys]

    def epochs(self, study: str, trial: int | None = None) -> list[Epoch]:
        self._check_study(study)
        keys = sorted(key for key in self._tables.epochs if key[0] == study and trial in (None, key[1]))
        return [rows.epoch_of(self._tables.epochs[key]) for key in keys]

    def epoch_counts(self, study: str) -> dict[tuple[int, int], EpochCount]:
        numbers: dict[tuple[int, int], list[int]] = {}
        for epoch in self.epochs(study):
            numbers.setdefault((epoch.trial, epoch.rung), []).append(epoch.number)
        return {rung: EpochCount(len(known), max(known)) for rung, known in numbers.items()}

    def save_surface(self, key: str, surface: Surface) -> None:
        with self.transaction():
            self._tables.surfaces[key] = rows.surface_row(key, surface)

    def surface(self, key: str) -> Surface | None:
        row = self._tables.surfaces.get(key)
        return None if row is None else rows.surface_of(row)

    def surfaces(self) -> dict[str, Surface]:
        known = sorted(self._tables.surfaces.items())
        return {key: rows.surface_of(row) for key, row in known if not key.startswith(rows.ARCHIVED)}

    def archive_surface(self, key: str) -> None:
        with self.transaction():
            row = self._tables.surfaces.pop(key, None)
            links = [link for link, to in self._tables.servings.items() if to["key"] == key]
            if row is not None and links:
                new_key = rows.archived_key()
                self._tables.surfaces[new_key] = {**row, "key": new_key}
                for link in links:
                    self._tables.servings[link] = {**self._tables.servings[link], "key": new_key}

    def link_surface(self, study: str, trial: int, device: str, key: str, *, recalled: bool) -> None:
        with self.transaction():
            self._check_trials(study, trial)
            self._tables.servings[study, trial, device] = rows.surface_link_row(study, trial, device, key, recalled)

    def trial_surfaces(self, study: str) -> dict[tuple[int, str], Surface]:
        self._check_study(study)
        servings = {key[1:]: row for key, row in sorted(self._tables.servings.items()) if key[0] == study}
        return {key: rows.surface_of({**self._tables.surfaces[row["key"]], **row}) for key, row in servings.items()}

    def save_knob_record(self, study: str, record: KnobRecord) -> None:
        with self.transaction():
            self._check_trials(study, record.trial)
            key = (study, record.trial, record.rung, record.epoch)
            self._tables.steered.setdefault(key, rows.knob_record_row(study, record))

    def knob_records(self, study: str) -> list[KnobRecord]:
        self._check_study(study)
        keys = sorted(key for key in self._tables.steered if key[0] == study)
        return [rows.knob_record_of(self._tables.steered[key]) for key in keys]

    def save_knob_memory(self, memory: KnobMemory) -> None:
        with self.transaction():
            row = rows.knob_memory_row(memory)
            self._tables.remembered[row["machine"], row["key"]] = row

    def knob_memories(self) -> list[KnobMemory]:
        return [rows.knob_memory_of(row) for _, row in sorted(self._tables.remembered.items())]

    def save_lesson(self, lesson: MemoryLesson) -> None:
        with self.transaction():
            row = rows.lesson_row(lesson)
            self._tables.lessons.pop(row["key"], None)  # a replaced lesson counts as new
            self._tables.lessons[row["key"]] = row

    def lessons(self, machine: str) -> list[MemoryLesson]:
        return [rows.lesson_of(row) for row in self._tables.lessons.values() if row["machine"] == machine]

    def loops(self, operator: str) -> str:
        row = self._tables.operators.get(operator)
        return str(row["loops"]) if row is not None else ""

    def save_operator(self, operator: Operator, loops: str = "") -> None:
        with self.transaction():
            self._tables.operators[operator.key] = rows.operator_row(operator, loops)

    def operators(self) -> dict[str, Operator]:
        return {key: rows.operator_of(row) for key, row in sorted(self._tables.operators.items())}

    def save_candidates(self, candidates: Sequence[ScheduleCandidate]) -> None:
        with self.transaction():
            self._tables.candidates.update((candidate.key, rows.candidate_row(candidate)) for candidate in candidates)

    def candidates(self, operator: str | None = None, target: str | None = None) -> list[ScheduleCandidate]:
        candidates = self._tables.candidates.values()
        return [
            rows.candidate_of(row)
            for row in candidates
            if operator in (None, row["operator"]) and target in (None, row["target"])
        ]

    def save_compilation(self, compilation: CompilationRecord) -> None:
        with self.transaction():
            self._tables.compilations[compilation.key] = rows.compilation_row(compilation)

    def compilation(self, key: str) -> CompilationRecord | None:
        row = self._tables.compilations.get(key)
        return None if row is None else rows.compilation_of(row)

    def compilations(self) -> list[CompilationRecord]:
        return [rows.compilation_of(row) for row in _newest_first(self._tables.compilations.values())]

    def add_job(self, job: Job) -> None:
        with self.transaction():
            self._check_study(job.study)
            for key in [key for key in self._tables.attempts if key[0] == job.study]:
                del self._tables.attempts[key]
            self._tables.jobs.pop((job.study,), None)
            self._tables.jobs[job.study,] = rows.job_row(job)

    def end_job(self, study: str, ended: Moment) -> None:
        with self.transaction():
            self._tables.jobs[study,] = {**self._tables.jobs[study,], "ended": rows.document(ended)}

    def job(self, study: str) -> Job | None:
        return next((job for job in self.jobs() if job.study == study), None)

    def jobs(self, *, is_open: bool = False) -> list[Job]:
        attempts = [rows.attempt_of(row) for _, row in sorted(self._tables.attempts.items())]
        records = (row for row in self._tables.jobs.values() if not is_open or row["ended"] is None)
        return [rows.job_of(row, (each for each in attempts if each.study == row["study"])) for row in records]

    def save_attempt(self, attempt: Attempt) -> None:
        with self.transaction():
            self._check_study(attempt.study)
            self._tables.attempts[attempt.study, attempt.number] = rows.attempt_row(attempt)

    def save_shares(self, shares: Mapping[str, float]) -> None:
        with self.transaction():
            self._tables.tenants = dict(shares)

    def shares(self) -> dict[str, float]:
        return dict(self._tables.tenants)

    def delete_study(self, name: str) -> None:
        with self.transaction():
            self._check_study(name)
            del self._tables.studies[name]
            tables = self._tables
            training = (tables.trials, tables.rungs, tables.epochs, tables.servings, tables.steered)
            for table in (*training, tables.jobs, tables.attempts):
                for key in [key for key in table if key[0] == name]:
                    del table[key]  # type: ignore[arg-type]

    def close(self) -> None:
        """Do nothing: there is no file."""

    def _begin(self) -> None:
        self._before = self._tables.copy()

    def _rollback(self) -> None:
        self._tables = self._before

    def _check_study(self, name: str) -> None:
        if name not in self._tables.studies:
            raise unknown_study(name, self._tables.studies)

    def _check_trials(self, study: str, *numbers: int) -> None:
        self._check_study(study)
        missing = [number for number in numbers if (study, number) not in self._tables.trials]
        if missing:
            raise unknown_trials(study, missing)


def _newest_first(rows: Iterable[Row]) -> list[Row]:
    # The place in the table decides between two of the same instant.
    places = sorted(enumerate(rows), key=lambda place: (place[1]["created"], place[0]), reverse=True)
    return [row for _, row in places]
