"""Homes that cannot be written are listed, shown and reported; unreadable studies do not hide the others."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from store_contract import a_study, a_trial
from typer.testing import CliRunner

from onefold import Float, Space
from onefold.cli.app import app
from onefold.store import open_store
from onefold.store.home import Home
from onefold.vocabulary.errors import StoreError
from small_studies import small_study


@contextmanager
def without_rights(home: Path) -> Iterator[None]:
    """Make a home read-only and drop the privileges of root, which may write anywhere."""
    paths = [home, *home.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture
def home() -> Iterator[Path]:
    with TemporaryDirectory() as name:  # the folders of tmp_path are closed to other users
        Path(name).chmod(0o755)
        folder = Path(name) / "home"
        small_study(lambda config: config.x, folder, space=Space(x=Float(0, 1)), name="mine").run()
        yield folder


def command(*words: str) -> str:
    ended = CliRunner().invoke(app, list(words))
    assert ended.exit_code == 0, ended.output
    return ended.output


def check_readable(home: Path) -> None:
    assert "mine" in command("list", "--home", str(home))
    assert "done" in command("show", "mine", "--home", str(home))
    with TemporaryDirectory() as name:
        page = Path(name) / "page.html"
        command("report", "mine", "--home", str(home), "--output", str(page))
        assert page.read_text().startswith("<!")
    ended = CliRunner().invoke(app, ["resume", "mine", "--home", str(home)])
    assert ended.exit_code != 0


class TestReadOnlyHome:
    def test_it_is_listed_shown_and_reported(self, home: Path) -> None:
        with without_rights(home):
            check_readable(home)
        assert not list(home.glob("store.db-*"))

    def test_what_a_killed_writer_left_in_the_log_is_read(self, home: Path) -> None:
        with closing(sqlite3.connect(home / "store.db")) as writer, TemporaryDirectory() as name:
            writer.execute("PRAGMA wal_autocheckpoint = 0")
            writer.execute("UPDATE studies SET elapsed_s = 4321.0")
            writer.commit()
            for file in ("store.db", "store.db-wal"):
                shutil.copy(home / file, Path(name) / file)
            left = [(Path(name) / file).read_bytes() for file in ("store.db", "store.db-wal")]
        for file, content in zip(("store.db", "store.db-wal"), left, strict=True):
            (home / file).write_bytes(content)
        with without_rights(home):
            check_readable(home)
            with closing(Home(home).store()) as store:
                assert store.study("mine").elapsed_s == 4321.0
        assert (home / "store.db-wal").read_bytes() == left[1]

    def test_a_living_writer_is_read_with_its_log(self, home: Path) -> None:
        with closing(sqlite3.connect(home / "store.db")) as writer:
            writer.execute("UPDATE studies SET elapsed_s = 4321.0")
            writer.commit()
            with without_rights(home), closing(Home(home).store()) as store:
                assert store.study("mine").elapsed_s == 4321.0

    def test_writing_is_refused_with_a_sentence(self, home: Path) -> None:
        with (
            without_rights(home),
            closing(Home(home).store()) as store,
            pytest.raises(StoreError, match="cannot be written; make the file and its folder writable"),
        ):
            store.create_study(a_study())


class TestFullDisk:
    LIMITED = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY)); "
        "from onefold.cli import main; main()"
    )

    def without_space(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command that can make no file larger, as on a full disk."""
        return subprocess.run([sys.executable, "-c", self.LIMITED, *words], capture_output=True, text=True, check=False)

    def test_it_is_listed_and_shown(self, home: Path) -> None:
        for words in (["list"], ["show", "mine"]):
            ended = self.without_space(*words, "--home", str(home))
            assert ended.returncode == 0, ended.stderr
            assert "done" in ended.stdout

    def test_writing_is_refused_with_the_reason(self, home: Path) -> None:
        ended = self.without_space("tune", "onefold.testing.toy:Spirals", "--home", str(home))
        assert ended.returncode == StoreError.exit_code
        assert "check the disk and its space" in ended.stderr


def damage(home: Path, sql: str) -> None:
    with closing(open_store(home / "store.db")) as store:
        store.create_study(a_study())
        store.save_trial("digits", a_trial())
    with closing(sqlite3.connect(home / "store.db")) as database, database:
        database.execute(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'the specification of another program'",
        "UPDATE studies SET spec = '{not json' WHERE name = 'digits'",
        "UPDATE studies SET spec = '{\"future\": 1}' WHERE name = 'digits'",
        "UPDATE studies SET spec = '[]' WHERE name = 'digits'",
        "UPDATE studies SET state = 'levitating' WHERE name = 'digits'",
        "UPDATE studies SET spec = x'ff00' WHERE name = 'digits'",
    ],
)
def test_an_unreadable_study_does_not_hide_the_others(home: Path, sql: str) -> None:
    damage(home, sql)
    listed = command("list", "--home", str(home))
    assert "unreadable" in listed
    assert "digits is unreadable: " in listed
    assert "mine" in listed
    records = {record["name"]: record for record in json.loads(command("list", "--home", str(home), "--json"))}
    assert records["mine"]["problem"] == ""
    assert "cannot read" in records["digits"]["problem"] or "changed" in records["digits"]["problem"]
    command("show", "mine", "--home", str(home))
    shown = CliRunner().invoke(app, ["show", "digits", "--home", str(home)])
    assert shown.exit_code == 3
    small_study(lambda config: config.x, home, space=Space(x=Float(0, 1)), name="new").run()
