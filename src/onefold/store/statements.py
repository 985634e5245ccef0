"""The statements of the SQLite store, built once so that SQLAlchemy finds their SQL ready in its cache."""

from __future__ import annotations

from sqlalchemy import Executable, Table, bindparam, delete, insert, select, update
from sqlalchemy.dialects.sqlite import insert as insert_or

from onefold.store.schema import (
    candidates,
    compilations,
    epochs,
    lessons,
    meta,
    operators,
    remembered,
    rungs,
    servings,
    steered,
    studies,
    submissions,
    surfaces,
    trials,
)


def _upsert(table: Table, *known_by: str) -> Executable:
    # Where a key beside the primary one is named, a row that is replaced keeps its place in the table.
    statement = insert_or(table)
    keys = [table.c[name] for name in known_by] or list(table.primary_key)
    rest = {
        column.name: statement.excluded[column.name]
        for column in table.columns
        if not column.primary_key and column not in keys
    }
    return statement.on_conflict_do_update(index_elements=keys, set_=rest)


TABLE_NAMES = "SELECT name FROM sqlite_master WHERE type = 'table'"
VERSION = select(meta.c.value).where(meta.c.name == "version")
NOTE_VERSION = _upsert(meta)

STUDY = select(studies).where(studies.c.name == bindparam("study"))
STUDY_NAMES = select(studies.c.name)
STUDIES = select(studies).order_by(studies.c.created.desc(), studies.c.id.desc())
CREATE = insert(studies)
SAVE_STUDY = update(studies).where(studies.c.name == bindparam("study"))

TRIALS = select(trials).where(trials.c.study == bindparam("study")).order_by(trials.c.number)
TRIAL = select(trials).where(trials.c.study == bindparam("study"), trials.c.number == bindparam("number"))
SAVE_TRIAL = _upsert(trials)
# A parameter may not be called like a column that an update could set.
MARK_TRIAL = update(trials).where(trials.c.study == bindparam("of_study"), trials.c.number == bindparam("of_number"))

RUNGS = select(rungs).where(rungs.c.study == bindparam("study")).order_by(rungs.c.decision)
SAVE_RUNG = _upsert(rungs)

EPOCHS = (
    select(epochs).where(epochs.c.study == bindparam("study")).order_by(epochs.c.trial, epochs.c.rung, epochs.c.number)
)
EPOCHS_OF_TRIAL = EPOCHS.where(epochs.c.trial == bindparam("trial"))
SAVE_EPOCH = insert_or(epochs).on_conflict_do_nothing()

SURFACE = select(surfaces).where(surfaces.c.key == bindparam("key"))
SAVE_SURFACE = _upsert(surfaces)
SERVINGS = (
    select(servings, surfaces.c.content)
    .join(surfaces, servings.c.key == surfaces.c.key)
    .where(servings.c.study == bindparam("study"))
    .order_by(servings.c.trial, servings.c.device)
)
SAVE_SERVING = _upsert(servings)

STEERED = (
    select(steered)
    .where(steered.c.study == bindparam("study"))
    .order_by(steered.c.trial, steered.c.rung, steered.c.epoch)
)
SAVE_STEERED = insert_or(steered).on_conflict_do_nothing()
REMEMBERED = select(remembered).order_by(remembered.c.machine, remembered.c.key)
REMEMBER = _upsert(remembered)

LESSONS = select(lessons).where(lessons.c.machine == bindparam("machine")).order_by(lessons.c.id)
# The row that is replaced goes away, so that the new one is the newest.
SAVE_LESSON = insert(lessons).prefix_with("OR REPLACE")

OPERATORS = select(operators.c.key, operators.c.content).order_by(operators.c.key)
LOOPS = select(operators.c.loops).where(operators.c.key == bindparam("key"))
SAVE_OPERATOR = _upsert(operators)

CANDIDATES = select(candidates).order_by(candidates.c.id)
SAVE_CANDIDATES = _upsert(candidates, "key")

COMPILATION = select(compilations).where(compilations.c.key == bindparam("key"))
COMPILATIONS = select(compilations).order_by(compilations.c.created.desc(), compilations.c.id.desc())
SAVE_COMPILATION = _upsert(compilations, "key")

SUBMISSIONS = select(submissions).order_by(submissions.c.submitted, submissions.c.study)
SAVE_SUBMISSION = _upsert(submissions)

# From the leaves to the root: a foreign key never points at nothing, and no row is looked for twice.
DELETE = [
    *(
        delete(table).where(table.c.study == bindparam("of_study"))
        for table in (submissions, steered, servings, epochs, rungs, trials)
    ),
    delete(studies).where(studies.c.name == bindparam("of_study")),
]
