"""Stores that an older Onefold wrote: made new in place, nothing lost."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from onefold.store import SqliteStore
from onefold.store.rows import lesson_row, study_row, trial_row
from onefold.store.schema import VERSION, metadata
from onefold.testing.kernel_stores import a_candidate, a_compilation, an_operator
from onefold.testing.stores import a_lesson, a_rung, a_study, a_surface, a_trial, an_epoch

ADDED = {  # by the version that did
    2: {"surfaces", "servings"},
    3: {"steered", "remembered", "submissions"},
    4: {"lessons"},
    5: {"operators", "candidates", "compilations"},
}
NEW: set[str] = set().union(*ADDED.values())  # since version 1


def written(path: Path, version: int) -> Path:
    """A store of an older version with a study in it."""
    engine = create_engine(f"sqlite:///{path}")
    later: set[str] = set().union(*(names for since, names in ADDED.items() if since > version))
    tables = [table for table in metadata.sorted_tables if table.name not in later]
    with engine.begin() as connection:
        metadata.create_all(connection, tables=tables)
        connection.execute(metadata.tables["meta"].insert(), {"name": "version", "value": str(version)})
        connection.execute(metadata.tables["studies"].insert(), study_row(a_study()))
        connection.execute(metadata.tables["trials"].insert(), trial_row("digits", a_trial()))
    engine.dispose()
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return written(tmp_path / "store.db", 1)


def version(path: Path) -> str:
    with closing(sqlite3.connect(path)) as database:
        return str(database.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()[0])


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as database:
        return {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_a_store_of_version_1_is_made_new_and_keeps_its_studies(old: Path) -> None:
    assert version(old) == "1"
    assert not tables(old) & NEW
    with closing(SqliteStore(old)) as store:
        assert store.studies() == [a_study()]
        assert store.trials("digits") == [a_trial()]
        assert store.servings("digits") == {}
    assert version(old) == str(VERSION)
    assert tables(old) >= NEW


@pytest.mark.parametrize("since", range(1, VERSION))
def test_a_store_of_any_older_version_keeps_lessons(tmp_path: Path, since: int) -> None:
    path = written(tmp_path / "store.db", since)
    assert (version(path), "lessons" in tables(path)) == (str(since), since >= 4)
    with closing(SqliteStore(path)) as store:
        assert store.lessons("a machine") == []
        store.save_lesson(a_lesson())
    with closing(SqliteStore(path)) as store:
        assert store.lessons("a machine") == [a_lesson()]
        assert store.studies() == [a_study()]
    assert version(path) == str(VERSION)


@pytest.mark.parametrize("since", range(1, VERSION))
def test_a_store_of_any_older_version_keeps_candidates(tmp_path: Path, since: int) -> None:
    path = written(tmp_path / "store.db", since)
    assert version(path) == str(since)
    assert not tables(path) & ADDED[5]
    with closing(SqliteStore(path)) as store:
        assert (store.operators(), store.candidates(), store.compilations()) == ({}, [], [])
        store.save_operator(an_operator())
        store.save_candidates([a_candidate()])
        store.save_compilation(a_compilation())
    with closing(SqliteStore(path)) as store:
        assert store.operators() == {"conv": an_operator()}
        assert store.candidates() == [a_candidate()]
        assert store.compilations() == [a_compilation()]
        assert store.studies() == [a_study()]
    assert version(path) == str(VERSION)


def test_what_version_4_knew_is_still_there(tmp_path: Path) -> None:
    path = written(tmp_path / "store.db", 4)
    with closing(sqlite3.connect(path)) as database, database:
        lesson = lesson_row(a_lesson())
        database.execute("INSERT INTO lessons (machine, key, content) VALUES (:machine, :key, :content)", lesson)
    with closing(SqliteStore(path)) as store:
        assert store.lessons("a machine") == [a_lesson()]
        assert store.trials("digits") == [a_trial()]
    assert tables(path) >= ADDED[5]


def test_a_new_and_an_upgraded_store_have_the_same_tables_and_indexes(tmp_path: Path) -> None:
    def layout(path: Path) -> list[tuple[str, ...]]:
        with closing(SqliteStore(path)), closing(sqlite3.connect(path)) as database:
            return database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()

    new = layout(tmp_path / "new.db")
    assert ("index", "candidates_by_operator") in [row[:2] for row in new]
    assert layout(written(tmp_path / "old.db", 4)) == new


def test_it_then_remembers_what_serving_costs(old: Path) -> None:
    with closing(SqliteStore(old)) as store:
        store.save_surface("k", a_surface())
        store.save_serving("digits", 0, "pi", "k", recalled=False)
        store.save_rung("digits", a_rung())
        store.save_epoch("digits", an_epoch())
    with closing(SqliteStore(old)) as store:
        assert store.servings("digits") == {(0, "pi"): a_surface()}
        assert store.trials("digits") == [a_trial(0, a_rung())]


def test_several_may_open_it_at_once(old: Path) -> None:
    troubles: list[BaseException] = []

    def look() -> None:
        try:
            with closing(SqliteStore(old)) as store:
                assert store.studies() == [a_study()]
        except BaseException as error:  # noqa: BLE001 - told below, in the test's own thread
            troubles.append(error)

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert troubles == []
    assert version(old) == str(VERSION)
