"""SQLite stores with other processes, other versions, damaged files and full disks."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent
from threading import Barrier

import pytest
from kernel_store_contract import a_candidate, a_compilation
from store_contract import a_rung, a_study, a_trial, an_epoch

from onefold.store import Store, open_store
from onefold.store.schema import REVISION
from onefold.store.sql_store import SqlStore
from onefold.store.sqlite import SqliteBackend
from onefold.vocabulary.errors import StoreError
from onefold.vocabulary.records import TrialState


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "studies.db"


def filled(path: Path, trials: int = 3) -> None:
    with closing(open_store(path)) as store, store.transaction():
        store.create_study(a_study())
        for number in range(trials):
            store.save_trial("digits", a_trial(number))


def refusal(path: Path) -> str:
    """Return the message with which this file is refused."""
    with pytest.raises(StoreError) as caught:
        open_store(path)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    return sentence


@contextmanager
def without_privileges() -> Iterator[None]:
    """Drop the privileges of root, which may write anywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


class TestOpening:
    def test_the_file_and_its_folders_are_created(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b c?" / "studies.db"
        filled(path)
        assert path.exists()

    def test_records_persist(self, path: Path) -> None:
        filled(path)
        with closing(open_store(path)) as store:
            assert store.studies() == [a_study()]
            assert store.trials("digits") == [a_trial(0), a_trial(1), a_trial(2)]

    def test_commits_wait_for_the_disk(self, path: Path) -> None:
        with closing(open_store(path)) as store:
            assert isinstance(store, SqlStore)
            pragma = store._connection.exec_driver_sql
            assert pragma("PRAGMA journal_mode").scalar() == "wal"
            assert pragma("PRAGMA synchronous").scalar() == 2
            assert pragma("PRAGMA foreign_keys").scalar() == 1

    def test_a_closed_store_is_an_error(self, path: Path) -> None:
        store = open_store(path)
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.studies()

    def test_a_newer_revision_is_refused(self, path: Path) -> None:
        filled(path)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE alembic_version SET version_num = ?", (f"{int(REVISION) + 1:04}",))
        assert "upgrade onefold" in refusal(path)

    def test_a_file_that_is_not_a_database_is_refused(self, path: Path) -> None:
        path.write_text("accuracy,loss\n0.9,0.1\n" * 1000)
        assert "move it away, or use another home folder" in refusal(path)
        assert path.read_text().startswith("accuracy")

    def test_a_database_of_another_program_is_refused(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE songs (title)")
        assert "another program" in refusal(path)
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("songs",)]

    def test_a_damaged_file_is_refused(self, path: Path) -> None:
        filled(path, trials=200)
        content = bytearray(path.read_bytes())
        content[4096:] = b"\xff" * (len(content) - 4096)
        path.write_bytes(content)
        assert "is damaged; move it away" in refusal(path)

    def test_damage_is_reported_when_it_is_read(self, path: Path) -> None:
        filled(path, trials=200)
        with closing(sqlite3.connect(path)) as database:
            (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'trials'").fetchone()
        content = bytearray(path.read_bytes())
        content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
        path.write_bytes(content)
        with closing(open_store(path)) as store:
            assert store.studies() == [a_study()]
            with pytest.raises(StoreError, match="is damaged; move it away"):
                store.trials("digits")

    def test_an_unreadable_document_is_an_error(self, path: Path) -> None:
        filled(path)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE trials SET state = 'levitating' WHERE number = 1")
        with closing(open_store(path)) as store, pytest.raises(StoreError, match="trial 1 of study 'digits'"):
            store.trials("digits")

    def test_an_unreadable_candidate_is_an_error(self, path: Path) -> None:
        with closing(open_store(path)) as store:
            store.save_candidates([a_candidate("a"), a_candidate("b")])
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE candidates SET content = '{}' WHERE id = 2")
        sentence = f"the candidate {a_candidate('b').key} of operator conv is stored in a form"
        with closing(open_store(path)) as store, pytest.raises(StoreError, match=sentence):
            store.candidates()

    def test_a_folder_in_place_of_the_file_is_refused(self, path: Path) -> None:
        path.mkdir()
        assert "cannot be opened" in refusal(path)

    def test_a_file_in_place_of_the_folder_is_refused(self, path: Path) -> None:
        path.write_text("")
        assert "cannot be opened" in refusal(path / "studies.db")

    def test_a_read_only_folder_is_refused(self) -> None:
        with TemporaryDirectory() as name:
            folder = Path(name)
            folder.chmod(0o555)
            with without_privileges():
                assert "may be written" in refusal(folder / "studies.db")
            folder.chmod(0o755)

    def test_writing_to_a_read_only_file_is_an_error(self) -> None:
        with TemporaryDirectory() as name:
            folder = Path(name)
            filled(folder / "studies.db")
            (folder / "studies.db").chmod(0o444)
            folder.chmod(0o777)
            with (
                without_privileges(),
                closing(open_store(folder / "studies.db")) as store,
                pytest.raises(StoreError, match="writable, or use another home folder"),
            ):
                store.save_trial("digits", a_trial(9))


def read_all(store: Store) -> None:
    store.study("digits")
    store.trials("digits")


class TestChecksums:
    @pytest.mark.parametrize(
        ("sql", "record"),
        [
            ("UPDATE studies SET spec = replace(spec, '1', '2')", "study 'digits'"),
            ("UPDATE trials SET config = replace(config, '0', '1') WHERE number = 1", "trial 1 of study 'digits'"),
            ("UPDATE trials SET redraws = redraws + 1 WHERE number = 1", "trial 1 of study 'digits'"),
            ("UPDATE rungs SET metrics = '{\"loss\": 0.0}'", "decision 0 of study 'digits'"),
            ("UPDATE rungs SET state = 'failed'", "decision 0 of study 'digits'"),
            ("UPDATE rungs SET checksum = NULL", "decision 0 of study 'digits'"),
        ],
    )
    def test_a_change_of_what_decides_is_told_instead_of_used(self, path: Path, sql: str, record: str) -> None:
        filled(path)
        with closing(open_store(path)) as store:
            store.save_rung("digits", a_rung())
            store.trials("digits")
        with closing(sqlite3.connect(path)) as database, database:
            assert database.execute(sql).rowcount == 1
        with (
            closing(open_store(path)) as store,
            pytest.raises(StoreError, match=f"{record} was changed outside of Onefold, or the disk is damaged"),
        ):
            read_all(store)


class TestFullDisk:
    def test_a_full_disk_rolls_back_and_loses_nothing(self, path: Path) -> None:
        with closing(open_store(path)) as store:
            store.create_study(a_study())
            store.save_trial("digits", a_trial(0))
            pragma = store._connection.exec_driver_sql
            pages = pragma("PRAGMA page_count").scalar()
            pragma(f"PRAGMA max_page_count = {pages}")

            def fill() -> None:
                with store.transaction():
                    for number in range(1, 1000):
                        store.save_trial("digits", a_trial(number))

            with pytest.raises(StoreError, match="free some space, nothing saved so far is lost"):
                fill()
            assert store.trials("digits") == [a_trial(0)]
            pragma("PRAGMA max_page_count = 1000000")
            store.save_trial("digits", a_trial(1))
        with closing(open_store(path)) as store:
            assert store.trials("digits") == [a_trial(0), a_trial(1)]

    def test_a_file_size_limit_loses_nothing(self, path: Path) -> None:
        filled(path, trials=1)
        program = """
            import resource
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
            try:
                for number in range(1, 10_000):
                    store.save_trial("digits", a_trial(number))
                    say(number)
            except StoreError as error:
                say(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            say(len(store.trials("digits")))
            store.save_trial("digits", a_trial(10_000))
        """
        *saved, complaint, readable = run(program, path).splitlines()
        assert "free some space, nothing saved so far is lost" in complaint
        numbers = [0, *map(int, saved)]
        assert int(readable) == len(numbers) > 1
        with closing(open_store(path)) as store:
            assert [trial.number for trial in store.trials("digits")] == [*numbers, 10_000]


class TestSeveralProcesses:
    def test_others_read_while_one_writes(self, path: Path) -> None:
        filled(path, trials=1)
        program = """
            with store.transaction():
                store.save_trial("digits", a_trial(1))
                store.save_rung("digits", a_rung(1, 1))
                say("written")
                input()
            say("durable")
            input()
        """
        with started(program, path) as writer, closing(open_store(path)) as store:
            assert read_line(writer) == "written"
            assert store.trials("digits") == [a_trial(0)]
            proceed(writer)
            assert read_line(writer) == "durable"
            assert store.trials("digits") == [a_trial(0), a_trial(1, a_rung(1, 1))]
            store.set_trial_states("digits", {0: TrialState.DONE})
            proceed(writer)

    def test_several_may_create_a_store_at_once(self, tmp_path: Path) -> None:
        """SQLite refuses the switch to WAL without waiting if another one makes it: every tenth time or so."""

        def create(path: Path) -> None:
            together.wait()
            SqliteBackend(path).connect().close()

        together = Barrier(6)
        with ThreadPoolExecutor(6) as pool:
            for number in range(50):
                list(pool.map(create, [tmp_path / f"{number}.db"] * 6))

    def test_a_lock_timeout_is_an_error_from_which_a_store_recovers(self, path: Path) -> None:
        filled(path, trials=0)
        with closing(SqlStore(SqliteBackend(path, busy_timeout_s=0.05))) as store:
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                with pytest.raises(StoreError, match="stayed locked by another process"):
                    store.save_trial("digits", a_trial())
            store.save_trial("digits", a_trial())
            assert store.trials("digits") == [a_trial()]

    @pytest.mark.parametrize("lines", [1, 60])
    def test_sigkill_loses_nothing_that_was_saved(self, path: Path, lines: int) -> None:
        filled(path, trials=0)
        program = """
            for number in range(1_000_000):
                with store.transaction():
                    store.save_trial("digits", a_trial(number))
                    store.save_rung("digits", a_rung(number, number))
                for epoch in (1, 2, 3):
                    store.save_epoch("digits", an_epoch(epoch, number))
                    say(number, epoch)
        """
        with started(program, path) as writer:
            lines_written = [read_line(writer) for _ in range(lines)]
            time.sleep(random.uniform(0, 0.01))  # so that any step may be hit
            lines_written += kill(writer)
        complete = [line for line in lines_written if len(line.split()) == 2]
        with closing(open_store(path)) as store:
            known = {f"{epoch.trial} {epoch.number}": epoch for epoch in store.epochs("digits")}
            assert set(complete) <= set(known)
            assert len(known) <= len(complete) + 2  # one saved but not yet printed, one torn while being printed
            assert all(epoch == an_epoch(epoch.number, epoch.trial) for epoch in known.values())
            for number, trial in enumerate(store.trials("digits")):
                assert trial == a_trial(number, a_rung(number, number))
            store.save_trial("digits", a_trial(1_000_001))
            assert store._connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"

    @pytest.mark.parametrize("lines", [20])
    def test_sigkill_leaves_whole_batches_of_candidates(self, path: Path, lines: int) -> None:
        program = """
            for batch in range(1_000_000):
                store.save_candidates([a_candidate(f"{batch} {number}") for number in range(64)])
                say(batch)
        """
        with started(program, path) as writer:
            lines_written = [read_line(writer) for _ in range(lines)]
            time.sleep(random.uniform(0, 0.01))  # so that any step may be hit
            lines_written += kill(writer)
        with closing(open_store(path)) as store:
            result = store.candidates()
        batches = len(result) // 64
        assert (
            len(lines_written) - 1 <= batches <= len(lines_written) + 1
        )  # one torn while being printed, one saved but not yet printed
        assert result == [a_candidate(f"{batch} {number}") for batch in range(batches) for number in range(64)]

    def test_others_read_a_compilation_after_each_round(self, path: Path) -> None:
        program = """
            for rounds in (1, 2):
                with store.transaction():
                    store.save_candidates([a_candidate(f"{rounds}")])
                    store.save_compilation(a_compilation(rounds=rounds))
                say(rounds)
                input()
        """
        with started(program, path) as writer, closing(open_store(path)) as store:
            for rounds in (1, 2):
                assert read_line(writer) == str(rounds)
                assert store.compilations() == [a_compilation(rounds=rounds)]
                assert len(store.candidates()) == rounds
                proceed(writer)


PRELUDE = f"""
import sys
from pathlib import Path
sys.path.append({str(Path(__file__).parent)!r})
from onefold.vocabulary.errors import StoreError
from onefold.store import open_store
from kernel_store_contract import a_candidate, a_compilation
from store_contract import a_rung, a_trial, an_epoch

def say(*words):
    print(*words, flush=True)

store = open_store(Path(sys.argv[1]))
"""


def command(program: str, path: Path) -> list[str]:
    return [sys.executable, "-c", PRELUDE + dedent(program) + "\nstore.close()", str(path)]


def run(program: str, path: Path) -> str:
    return subprocess.run(command(program, path), capture_output=True, text=True, check=True).stdout


@contextmanager
def started(program: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command(program, path), stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> list[str]:
    """Kill a process and return the lines that were not read yet."""
    process.kill()
    assert process.stdout is not None
    return process.stdout.read().splitlines()  # communicate() would lose what readline() has buffered


def proceed(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()
