"""A store for tests: the same contract, gone with the process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields

from onefold.store import rows
from onefold.store.blocks import Blocks
from onefold.store.complaints import taken_name, unknown_study, unknown_trials
from onefold.store.rows import Row
from onefold.store.store import CompilationRecord, StudyRecord, Submission
from onefold.vocabulary.kernels import Operator, ScheduleCandidate
from onefold.vocabulary.knobs import Remembered, Steered
from onefold.vocabulary.records import Epoch, Rung, Trial, TrialState, to_json
from onefold.vocabulary.retraining import MemoryLesson
from onefold.vocabulary.serving import Surface


@dataclass
class Tables:
    """The rows by their keys."""

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
    submissions: dict[tuple[str], Row] = field(default_factory=dict)  # by study

    def copy(self) -> Tables:
        """The same rows; adding to the copy leaves this one as it is."""
        return Tables(*(dict(getattr(self, f.name)) for f in fields(self)))


class MemoryStore:
    """Keeps the rows that a database would keep, in dictionaries; nothing survives the process."""

    def __init__(self) -> None:
        self._tables = self._before = Tables()
        self._blocks = Blocks(self._begin, lambda: None, self._rollback)

    def together(self) -> AbstractContextManager[None]:
        """Makes the writes of the block happen as one."""
        return self._blocks.block()

    def create(self, study: StudyRecord) -> None:
        """Adds a study; raises StoreError when the name is taken."""
        with self._blocks.block():
            if study.name in self._tables.studies:
                raise taken_name(study.name)
            self._tables.studies[study.name] = rows.study_row(study)

    def save_study(self, study: StudyRecord) -> None:
        """Replaces what is known of the study itself."""
        with self._blocks.block():
            self._check_study(study.name)
            self._tables.studies[study.name] = rows.study_row(study)

    def study(self, name: str) -> StudyRecord:
        """The study of that name."""
        self._check_study(name)
        return rows.study_of(self._tables.studies[name])

    def studies(self) -> list[StudyRecord]:
        """All studies, newest first."""
        return [rows.study_of(row) for row in _newest_first(self._tables.studies.values())]

    def save_trial(self, study: str, trial: Trial) -> None:
        """Adds or replaces a trial."""
        with self._blocks.block():
            self._check_study(study)
            self._tables.trials[study, trial.number] = rows.trial_row(study, trial)

    def mark_trials(self, study: str, states: Mapping[int, TrialState]) -> None:
        """Changes the states of these trials."""
        if not states:
            return
        with self._blocks.block():
            self._check_trials(study, *states)
            for number, state in states.items():
                row = self._tables.trials[study, number]
                self._tables.trials[study, number] = {**row, "state": state.value}

    def save_rung(self, study: str, rung: Rung) -> None:
        """Adds or replaces a rung."""
        with self._blocks.block():
            self._check_trials(study, rung.trial)
            self._tables.rungs[study, rung.decision] = rows.rung_row(study, rung)

    def save_epoch(self, study: str, epoch: Epoch) -> None:
        """Adds an epoch, unless it is known."""
        with self._blocks.block():
            self._check_trials(study, epoch.trial)
            self._tables.epochs.setdefault((study, epoch.trial, epoch.rung, epoch.number), rows.epoch_row(study, epoch))

    def trials(self, study: str) -> list[Trial]:
        """All trials by number, each with its rungs."""
        self._check_study(study)
        visits: dict[int, list[Rung]] = {}
        for key in sorted(key for key in self._tables.rungs if key[0] == study):
            rung = rows.rung_of(self._tables.rungs[key])
            visits.setdefault(rung.trial, []).append(rung)
        keys = sorted(key for key in self._tables.trials if key[0] == study)
        return [rows.trial_of(self._tables.trials[key], visits.get(key[1], ())) for key in keys]

    def epochs(self, study: str, trial: int | None = None) -> list[Epoch]:
        """The epochs of one trial or of all."""
        self._check_study(study)
        keys = sorted(key for key in self._tables.epochs if key[0] == study and trial in (None, key[1]))
        return [rows.epoch_of(self._tables.epochs[key]) for key in keys]

    def save_surface(self, key: str, surface: Surface) -> None:
        """Remembers what serving an architecture costs."""
        with self._blocks.block():
            self._tables.surfaces[key] = rows.surface_row(key, surface)

    def surface(self, key: str) -> Surface | None:
        """What is remembered under a key."""
        row = self._tables.surfaces.get(key)
        return None if row is None else rows.surface_of(row)

    def save_serving(self, study: str, trial: int, device: str, key: str, *, recalled: bool) -> None:
        """Notes which surface a trial's architecture has on a device."""
        with self._blocks.block():
            self._check_trials(study, trial)
            self._tables.servings[study, trial, device] = rows.serving_row(study, trial, device, key, recalled)

    def servings(self, study: str) -> dict[tuple[int, str], Surface]:
        """The surfaces of a study's trials."""
        self._check_study(study)
        found = {key[1:]: row for key, row in sorted(self._tables.servings.items()) if key[0] == study}
        return {key: rows.surface_of({**self._tables.surfaces[row["key"]], **row}) for key, row in found.items()}

    def save_steered(self, study: str, steered: Steered) -> None:
        """Adds what turning knobs came to in an epoch, unless it is known."""
        with self._blocks.block():
            self._check_trials(study, steered.trial)
            key = (study, steered.trial, steered.rung, steered.epoch)
            self._tables.steered.setdefault(key, rows.steered_row(study, steered))

    def steered(self, study: str) -> list[Steered]:
        """What turning knobs came to, by trial, rung and epoch."""
        self._check_study(study)
        keys = sorted(key for key in self._tables.steered if key[0] == study)
        return [rows.steered_of(self._tables.steered[key]) for key in keys]

    def remember(self, remembered: Remembered) -> None:
        """Remembers which knobs suit a job."""
        with self._blocks.block():
            row = rows.remembered_row(remembered)
            self._tables.remembered[row["machine"], row["key"]] = row

    def remembered(self) -> list[Remembered]:
        """All that is remembered of knobs."""
        return [rows.remembered_of(row) for _, row in sorted(self._tables.remembered.items())]

    def save_lesson(self, lesson: MemoryLesson) -> None:
        """Adds or replaces what a plan taught."""
        with self._blocks.block():
            row = rows.lesson_row(lesson)
            self._tables.lessons.pop(row["key"], None)  # what is replaced counts as new
            self._tables.lessons[row["key"]] = row

    def lessons(self, machine: str) -> list[MemoryLesson]:
        """What plans taught on a machine, oldest first."""
        return [rows.lesson_of(row) for row in self._tables.lessons.values() if row["machine"] == machine]

    def loops(self, operator: str) -> str:
        """The loops that were saved with an operator."""
        row = self._tables.operators.get(operator)
        return str(row["loops"]) if row is not None else ""

    def save_operator(self, operator: Operator, loops: str = "") -> None:
        """Adds or replaces an operator."""
        with self._blocks.block():
            self._tables.operators[operator.key] = rows.operator_row(operator, loops)

    def operators(self) -> dict[str, Operator]:
        """All operators, by key."""
        return {key: rows.operator_of(row) for key, row in sorted(self._tables.operators.items())}

    def save_candidates(self, candidates: Sequence[ScheduleCandidate]) -> None:
        """Adds or replaces candidates."""
        with self._blocks.block():
            self._tables.candidates.update((one.key, rows.candidate_row(one)) for one in candidates)

    def candidates(self, operator: str | None = None, target: str | None = None) -> list[ScheduleCandidate]:
        """The candidates of an operator, for a target, or all."""
        found = self._tables.candidates.values()
        return [
            rows.candidate_of(row)
            for row in found
            if operator in (None, row["operator"]) and target in (None, row["target"])
        ]

    def save_compilation(self, compilation: CompilationRecord) -> None:
        """Adds or replaces a compilation."""
        with self._blocks.block():
            self._tables.compilations[compilation.key] = rows.compilation_row(compilation)

    def compilation(self, key: str) -> CompilationRecord | None:
        """The compilation of that key."""
        row = self._tables.compilations.get(key)
        return None if row is None else rows.compilation_of(row)

    def compilations(self) -> list[CompilationRecord]:
        """All compilations, newest first."""
        return [rows.compilation_of(row) for row in _newest_first(self._tables.compilations.values())]

    def save_submission(self, submission: Submission) -> None:
        """Adds or replaces a study's place in the queue."""
        with self._blocks.block():
            self._check_study(submission.study)
            self._tables.submissions[submission.study,] = to_json(submission)

    def submissions(self) -> list[Submission]:
        """The queue, first come first."""
        found = (Submission(**row) for row in self._tables.submissions.values())
        return sorted(found, key=lambda one: (one.submitted, one.study))

    def delete(self, study: str) -> None:
        """Forgets a study."""
        with self._blocks.block():
            self._check_study(study)
            del self._tables.studies[study]
            tables = self._tables
            own = (tables.trials, tables.rungs, tables.epochs, tables.servings, tables.steered, tables.submissions)
            for table in own:
                for key in [key for key in table if key[0] == study]:
                    del table[key]  # type: ignore[arg-type]

    def close(self) -> None:
        """There is nothing to let go of."""

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


def _newest_first(found: Iterable[Row]) -> list[Row]:
    # The place in the table decides between two that began in the same instant.
    places = sorted(enumerate(found), key=lambda place: (place[1]["created"], place[0]), reverse=True)
    return [row for _, row in places]
