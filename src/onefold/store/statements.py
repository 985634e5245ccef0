"""The SQL of the store in SQLAlchemy Core, for every dialect, built once so that SQLAlchemy finds it in its cache."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Executable, Table, bindparam, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from onefold.store.schema import (
    alembic_version,
    attempts,
    candidates,
    compilations,
    epochs,
    jobs,
    lessons,
    meta,
    operators,
    remembered,
    rungs,
    servings,
    steered,
    studies,
    surfaces,
    tenants,
    trials,
)

_INSERTS: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}  # those with ON CONFLICT

REVISION = select(alembic_version.c.version_num)
SAVE_REVISION = insert(alembic_version)
LEGACY_VERSION = select(meta.c.value).where(meta.c.name == "version")
SAVE_LEGACY_VERSION = insert(meta)

STUDY = select(studies).where(studies.c.name == bindparam("study"))
STUDY_NAMES = select(studies.c.name)
STUDIES = select(studies).order_by(studies.c.created.desc(), studies.c.id.desc())
CREATE_STUDY = insert(studies)
SAVE_STUDY = update(studies).where(studies.c.name == bindparam("study"))

TRIALS = select(trials).where(trials.c.study == bindparam("study")).order_by(trials.c.number)
TRIAL = select(trials).where(trials.c.study == bindparam("study"), trials.c.number == bindparam("number"))
# A parameter may not have the name of a column that an update could set.
SET_TRIAL_STATE = update(trials).where(
    trials.c.study == bindparam("of_study"), trials.c.number == bindparam("of_number")
)

RUNGS = select(rungs).where(rungs.c.study == bindparam("study")).order_by(rungs.c.decision)

EPOCHS = (
    select(epochs).where(epochs.c.study == bindparam("study")).order_by(epochs.c.trial, epochs.c.rung, epochs.c.number)
)
EPOCH_COUNTS = (
    select(epochs.c.trial, epochs.c.rung, func.count().label("epochs"), func.max(epochs.c.number).label("last"))
    .where(epochs.c.study == bindparam("study"))
    .group_by(epochs.c.trial, epochs.c.rung)
)
EPOCHS_OF_TRIAL = EPOCHS.where(epochs.c.trial == bindparam("trial"))

SURFACE = select(surfaces).where(surfaces.c.key == bindparam("key"))
SURFACES = select(surfaces).order_by(surfaces.c.key)
COUNT_LINKS = select(func.count().label("links")).select_from(servings).where(servings.c.key == bindparam("key"))
ADD_SURFACE = insert(surfaces)
MOVE_LINKS = update(servings).where(servings.c.key == bindparam("of_key")).values(key=bindparam("new_key"))
DELETE_SURFACE = delete(surfaces).where(surfaces.c.key == bindparam("of_key"))
TRIAL_SURFACES = (
    select(servings, surfaces.c.content)
    .join(surfaces, servings.c.key == surfaces.c.key)
    .where(servings.c.study == bindparam("study"))
    .order_by(servings.c.trial, servings.c.device)
)

KNOB_RECORDS = (
    select(steered)
    .where(steered.c.study == bindparam("study"))
    .order_by(steered.c.trial, steered.c.rung, steered.c.epoch)
)
KNOB_MEMORIES = select(remembered).order_by(remembered.c.machine, remembered.c.key)

LESSONS = select(lessons).where(lessons.c.machine == bindparam("machine")).order_by(lessons.c.id)
# A lesson is deleted and added again, so that a replaced one becomes the newest.
DELETE_LESSON = delete(lessons).where(lessons.c.key == bindparam("of_key"))
ADD_LESSON = insert(lessons)

OPERATORS = select(operators.c.key, operators.c.content).order_by(operators.c.key)
LOOPS = select(operators.c.loops).where(operators.c.key == bindparam("key"))

CANDIDATES = select(candidates).order_by(candidates.c.id)

COMPILATION = select(compilations).where(compilations.c.key == bindparam("key"))
COMPILATIONS = select(compilations).order_by(compilations.c.created.desc(), compilations.c.id.desc())

JOB = select(jobs).where(jobs.c.study == bindparam("study"))
JOBS = select(jobs).order_by(jobs.c.id)
OPEN_JOBS = JOBS.where(jobs.c.ended.is_(None))
ATTEMPTS = select(attempts).order_by(attempts.c.study, attempts.c.number)
ATTEMPTS_OF_JOB = ATTEMPTS.where(attempts.c.study == bindparam("study"))
ATTEMPTS_OF_OPEN_JOBS = ATTEMPTS.join(jobs, jobs.c.study == attempts.c.study).where(jobs.c.ended.is_(None))
ADD_JOB = insert(jobs)
END_JOB = update(jobs).where(jobs.c.study == bindparam("of_study"))
DELETE_JOB = [delete(table).where(table.c.study == bindparam("of_study")) for table in (attempts, jobs)]

SHARES = select(tenants).order_by(tenants.c.name)
DELETE_SHARES = delete(tenants)

# From the leaves to the root, so that no foreign key is violated in between.
DELETE_STUDY = [
    *(
        delete(table).where(table.c.study == bindparam("of_study"))
        for table in (attempts, jobs, steered, servings, epochs, rungs, trials)
    ),
    delete(studies).where(studies.c.name == bindparam("of_study")),
]


@cache
def upsert(dialect: str, table: Table, *keys: str) -> Executable:
    """Return the statement that inserts a row or replaces the one with the same `keys` (default: the primary key).

    A row that is replaced by other keys than the primary one keeps its primary key, and so its place in the table.
    """
    statement = _INSERTS[dialect](table)
    identity = [table.c[name] for name in keys] or list(table.primary_key)
    values = {
        column.name: statement.excluded[column.name]
        for column in table.columns
        if not column.primary_key and column not in identity
    }
    return statement.on_conflict_do_update(index_elements=identity, set_=values)  # type: ignore[no-any-return]


@cache
def insert_if_absent(dialect: str, table: Table) -> Executable:
    """Return the statement that inserts a row unless there is one with the same primary key."""
    return _INSERTS[dialect](table).on_conflict_do_nothing()  # type: ignore[no-any-return]
