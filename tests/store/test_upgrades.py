"""Stores that an older Onefold wrote are migrated when they are opened, and lose nothing."""

from __future__ import annotations

import json
import lzma
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections.abc import Mapping
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from kernel_store_contract import a_candidate, a_compilation, an_operator
from sqlalchemy import create_engine
from store_contract import a_lesson, a_rung, a_study, a_surface, a_trial, an_epoch
from typer.testing import CliRunner

from onefold.serving import deploy
from onefold.store import open_store
from onefold.store.home import Home
from onefold.store.rows import lesson_row, study_row, trial_row
from onefold.store.schema import LEGACY_VERSION, REVISION, metadata
from onefold.store.sql_store import SqlStore
from onefold.vocabulary.errors import StoreError
from onefold.vocabulary.moment import Moment
from onefold.vocabulary.records import StudyState

RECORDINGS = Path(__file__).parent.parent / "recordings"
ADDED_BY = {
    2: {"surfaces", "servings"},
    3: {"steered", "remembered"},
    4: {"lessons"},
    5: {"operators", "candidates", "compilations"},
    9: {"jobs", "attempts", "tenants"},
}

ADDED_LATER = {"alembic_version", *ADDED_BY[9]}  # than 0.1.0


def legacy_store(path: Path, version: int) -> Path:
    """Write a store of a version before migrations, with a study in it."""
    later: set[str] = {"alembic_version"}.union(*(names for since, names in ADDED_BY.items() if since > version))
    tables = [table for table in metadata.sorted_tables if table.name not in later]
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        metadata.create_all(connection, tables=tables)
        for name in ("studies", "trials", "rungs"):
            connection.exec_driver_sql(f"ALTER TABLE {name} DROP COLUMN checksum")
        connection.execute(metadata.tables["meta"].insert(), {"name": "version", "value": str(version)})
        connection.execute(metadata.tables["studies"].insert(), without_checksum(study_row(a_study())))
        connection.execute(metadata.tables["trials"].insert(), without_checksum(trial_row("digits", a_trial())))
        if version >= 4:
            connection.execute(metadata.tables["lessons"].insert(), lesson_row(a_lesson()))
    engine.dispose()
    return path


def without_checksum(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "checksum"}


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(sql).fetchall()


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_a_legacy_store_gets_the_missing_tables_and_keeps_its_records(tmp_path: Path, version: int) -> None:
    path = legacy_store(tmp_path / "store.db", version)
    with closing(open_store(path)) as store:
        assert store.trials("digits") == [a_trial()]
        assert store.trial_surfaces("digits") == {}
        assert store.lessons("a machine") == ([a_lesson()] if version >= 4 else [])
        store.save_rung("digits", a_rung())
        store.save_epoch("digits", an_epoch())
        store.save_surface("k", a_surface())
        store.link_surface("digits", 0, "pi", "k", recalled=False)
        store.save_lesson(a_lesson())
        store.save_operator(an_operator())
        store.save_candidates([a_candidate()])
        store.save_compilation(a_compilation())
    with closing(open_store(path)) as store:
        assert [study.name for study in store.studies()] == ["digits"]
        assert store.trials("digits") == [a_trial(0, a_rung())]
        assert store.trial_surfaces("digits") == {(0, "pi"): a_surface()}
        assert store.lessons("a machine") == [a_lesson()]
        assert store.operators() == {"conv": an_operator()}
        assert store.candidates() == [a_candidate()]
        assert store.compilations() == [a_compilation()]
    assert query(path, "SELECT version_num FROM alembic_version") == [(REVISION,)]
    assert query(path, "SELECT value FROM meta WHERE name = 'version'") == [(LEGACY_VERSION,)]


def test_a_new_and_a_migrated_store_have_the_same_schema(tmp_path: Path) -> None:
    def layout(path: Path) -> dict[str, Any]:
        open_store(path).close()
        names = [name for (name,) in query(path, "SELECT name FROM sqlite_master ORDER BY name")]
        pragmas = ("table_xinfo", "foreign_key_list", "index_list", "index_xinfo")
        # A column that a migration adds comes last, so the places of columns differ.
        return {
            name: {pragma: sorted(row[1:] for row in query(path, f"PRAGMA {pragma}({name})")) for pragma in pragmas}
            for name in names
        }

    new = layout(tmp_path / "new.db")
    assert "candidates_by_operator" in new
    assert "checksum" in [row[0] for row in new["rungs"]["table_xinfo"]]
    assert layout(legacy_store(tmp_path / "old.db", 4)) == new


def test_several_may_open_and_migrate_a_store_at_once(tmp_path: Path) -> None:
    path = legacy_store(tmp_path / "store.db", 1)
    errors: list[BaseException] = []

    def look() -> None:
        try:
            with closing(open_store(path)) as store:
                assert [study.name for study in store.studies()] == ["digits"]
        except BaseException as error:  # noqa: BLE001 - asserted below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("version", [int(LEGACY_VERSION) + 1, 99])
def test_a_legacy_version_that_is_too_new_is_refused(tmp_path: Path, version: int) -> None:
    path = legacy_store(tmp_path / "store.db", version)
    with pytest.raises(StoreError, match="newer Onefold"):
        open_store(path)


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = legacy_store(tmp_path / "store.db", 1)

    def fail(store: SqlStore) -> None:
        store._connection.exec_driver_sql("CREATE TABLE half_done (id)")
        raise StoreError("cannot be migrated")

    monkeypatch.setattr(SqlStore, "_migrate", fail)
    with pytest.raises(StoreError, match="cannot be migrated"):
        open_store(path)
    monkeypatch.undo()
    assert not query(path, "SELECT name FROM sqlite_master WHERE name IN ('half_done', 'alembic_version')")
    open_store(path).close()


def test_a_new_or_current_store_is_opened_without_alembic(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom onefold.store import open_store\n"
        f"for _ in range(2): open_store(Path({str(tmp_path / 'store.db')!r})).close()\n"
        "sys.exit('alembic' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "store.db"
    path.write_bytes(lzma.decompress((RECORDINGS / "store-0.1.0.db.xz").read_bytes()))
    return path


@pytest.fixture
def home(recorded: Path, tmp_path: Path) -> Home:
    shutil.copy(recorded, tmp_path / "store.db")
    return Home(tmp_path)


class TestStoreOf010:
    """What 0.1.0 wrote: `tests/recordings/store-0.1.0.db.xz`, and the checkpoints of its interrupted study."""

    def test_every_record_can_be_read(self, home: Home) -> None:
        tables = {name: "study" in table.c for name, table in metadata.tables.items() if name not in ADDED_LATER}
        tables["submissions"] = True
        of_studies = " WHERE study IN (SELECT name FROM studies)"  # two trials lack theirs, which was deleted by hand
        counts = {
            name: query(home.path / "store.db", f"SELECT count(*) FROM {name}{of_studies if has_study else ''}")[0][0]
            for name, has_study in tables.items()
        }
        with closing(home.store()) as store:
            studies = [study.name for study in store.studies()]
            read = {
                "meta": 1,
                "studies": len(studies),
                "trials": sum(len(store.trials(name)) for name in studies),
                "rungs": sum(len(trial.rungs) for name in studies for trial in store.trials(name)),
                "epochs": sum(len(store.epochs(name)) for name in studies),
                "servings": sum(len(store.trial_surfaces(name)) for name in studies),
                "surfaces": sum(store.surface(key) is not None for key in _keys(home, "surfaces")),
                "steered": sum(len(store.knob_records(name)) for name in studies),
                "remembered": len(store.knob_memories()),
                "lessons": sum(len(store.lessons(machine)) for machine in _keys(home, "lessons", "DISTINCT machine")),
                "operators": len(store.operators()),
                "candidates": len(store.candidates()),
                "compilations": len(store.compilations()),
                "submissions": len(store.jobs()),
            }
        assert read == counts
        assert min(counts.values()) > 0

    def test_its_studies_are_listed_and_shown(self, home: Home) -> None:
        from onefold.cli.app import app

        listed = CliRunner().invoke(app, ["list", "--home", str(home.path)])
        assert listed.exit_code == 0, listed.output
        for name in ("frozen", "trained", "knobs", "compressed", "queued", "cut-off"):
            assert name in listed.output
            shown = CliRunner().invoke(app, ["show", name, "--home", str(home.path)])
            assert shown.exit_code == 0, shown.output

    def test_its_interrupted_study_can_be_resumed(self, home: Home) -> None:
        from onefold.study import Study

        with tarfile.open(RECORDINGS / "study-0.1.0.tar.xz") as archive:
            archive.extractall(home.path / "studies", filter="data")
        with closing(home.store()) as store:
            before = store.epochs("cut-off")
        Study.open("cut-off", home=home).run()
        with closing(home.store()) as store:
            assert store.study("cut-off").state is StudyState.DONE
            assert [epoch for epoch in before if epoch not in store.epochs("cut-off")] == []
            trials = store.trials("cut-off")
        assert len(trials) == 6
        assert max(rung.grant.epochs for trial in trials for rung in trial.rungs) == 8

    def test_revision_2_groups_and_renames_the_options_of_studies(self, recorded: Path) -> None:
        upgraded_spec = import_module("onefold.store.migrations.versions.0002_study_options").upgraded_spec
        specs = {name: json.loads(spec) for name, spec in query(recorded, "SELECT name, spec FROM studies")}
        old, new = specs["frozen"], upgraded_spec(specs["frozen"])
        assert new["trial_batches"] == old["sittings"] == [4]
        assert new["workload_objective"] == old["quality"]
        assert new["serving"] == {
            "optimize_for": "throughput",
            "search": "few",
            "space": None,
            "scenarios": ["single-stream", "offline"],
            "scenario_goal": "mean",
        }
        assert new["parallelism"] == {
            "engine": "processes",
            "accelerator": "cpu",
            "parallel": 2,
            "threads": 1,
            "threads_of_few": [],
            "memory_bytes": None,
            "hang_timeout_s": 600.0,
        }
        assert new["knobs"] == {
            "mode": "on",
            "optimize_for": "time",
            "probing": "few",
            "similarity": "KMeans",
            "reduced": False,
        }
        gone = old.keys() - new.keys()
        assert gone == {
            *("sittings", "quality", "serve_for", "serving_search", "serving_space", "scenarios", "scenario_goal"),
            *("engine", "accelerator", "parallel", "threads", "threads_of_few", "memory_bytes", "patience_s"),
        }
        assert all(new[name] == old[name] for name in old.keys() - gone - {"knobs"})


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(RECORDINGS / "home-0.2.0.dev.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def development_home(unpacked: Path, tmp_path: Path) -> Home:
    shutil.copytree(unpacked, tmp_path / "home")
    return Home(tmp_path / "home")


class TestHomeOf020Development:
    """What revision 0002 wrote: `tests/recordings/home-0.2.0.dev.tar.xz`.

    The study "served" tuned digits for this machine, with knobs on and variants after the study; "recalling" reused its
    knobs; `deploy/` is its deployment folder, retrained.
    """

    def test_scenarios_have_the_names_of_loadgen(self, development_home: Home) -> None:
        with closing(development_home.store()) as store:
            scenarios = store.study("served").spec["serving"]["scenarios"]
        assert scenarios == ["single-stream", "multi-stream:8@20", "server:100", "offline"]

    def test_its_deployment_is_read_with_the_old_meaning(self, development_home: Home) -> None:
        folder = development_home.path / "deploy"
        settings = deploy.read(folder).on("host")
        by_name = {choice.scenario: choice for choice in settings.choices}
        assert list(by_name) == ["single-stream", "multi-stream:8@20", "server:100", "offline"]
        written = {
            choice["scenario"]: choice
            for choice in json.loads((folder / "deployment.json").read_text())["devices"][0]["choices"]
        }
        for old, new in (("server:8@20", "multi-stream:8@20"), ("multi-stream:100", "server:100")):
            assert by_name[new].predicted.mean_s == written[old]["predicted"]["mean_s"]
            assert by_name[new].point.batch_size == written[old]["point"]["batch_size"]
        assert deploy.load(folder, scenario="server:100").choice == by_name["server:100"]
        assert deploy.read(deploy.write(folder, folder / deploy.MODEL, deploy.read(folder))) == deploy.read(folder)

    def test_its_submissions_are_jobs(self, development_home: Home) -> None:
        with closing(sqlite3.connect(development_home.path / "store.db")) as connection, connection:
            connection.execute("INSERT INTO submissions VALUES ('recalling', '/there', 0.5, NULL, NULL)")
            connection.execute("INSERT INTO submissions VALUES ('deleted', '/there', 0.5, NULL, NULL)")
        with closing(development_home.store()) as store:
            waiting, ended = store.jobs()
        assert (waiting.study, waiting.folder, waiting.attempts, waiting.ended) == ("recalling", "/there", (), None)
        assert (ended.study, ended.response_s, ended.waited_s(Moment(0.0)), ended.tenant) == ("served", 4, 1, "default")
        assert ended.attempt is None


def _keys(home: Home, table: str, column: str = "key") -> list[str]:
    return [row[0] for row in query(home.path / "store.db", f"SELECT {column} FROM {table}")]
