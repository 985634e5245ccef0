"""Locks between processes, with real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from onefold.store.home import Home
from onefold.store.locks import FileLocks, Locks
from onefold.vocabulary.errors import InputError, QueueBusy, StoreError, StudyBusy

HOLDER = """
import sys
from pathlib import Path
from onefold.store.locks import FileLocks

with getattr(FileLocks(Path(sys.argv[1])), sys.argv[2])(*sys.argv[3:]):
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def held(home: Path, *lock: str) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold a lock inside the block."""
    command = [sys.executable, "-c", HOLDER, str(home), *lock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


Lock = Callable[[Locks], AbstractContextManager[None]]


@pytest.mark.parametrize(
    ("lock", "take", "error"),
    [
        (("study", "digits"), lambda locks: locks.study("digits", 0.0), StudyBusy),
        (("queue",), lambda locks: locks.queue(0.0), QueueBusy),
    ],
)
def test_a_lock_is_held_by_one_process_and_ends_with_it(
    tmp_path: Path, lock: tuple[str, ...], take: Lock, error: type[StoreError]
) -> None:
    locks = FileLocks(tmp_path)
    with held(tmp_path, *lock) as holder:
        with pytest.raises(error), take(locks):
            pass
        holder.kill()
        holder.wait()
        with take(locks):
            pass


def test_a_measurement_waits_for_the_one_before(tmp_path: Path) -> None:
    with held(tmp_path, "measurement") as holder:
        other = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path), "measurement"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with other:
            assert other.stdout is not None
            assert holder.stdin is not None
            holder.stdin.write("\n")
            holder.stdin.flush()
            assert other.stdout.readline() == "held\n"
            other.kill()


def test_studies_are_held_independently(tmp_path: Path) -> None:
    locks = FileLocks(tmp_path)
    with locks.study("a"), locks.study("b"), locks.queue(), locks.measurement():
        pass


def test_a_home_lists_the_running_studies(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert not home.is_running("digits")
    with home.study_lock("digits") as lock:
        assert lock.study == "digits"
        assert home.is_running("digits")
    assert not home.is_running("digits")


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "studies").write_text("a file")
    with pytest.raises(StoreError, match="cannot be written"), FileLocks(tmp_path).study("digits"):
        pass


class TestStoreUrl:
    def test_the_store_is_a_file_in_the_home_by_default(self, tmp_path: Path) -> None:
        home = Home(tmp_path / "home")
        assert not home.has_store
        home.store().close()
        assert home.has_store
        assert (tmp_path / "home" / "store.db").is_file()

    def test_a_url_gives_the_location_of_the_store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        Home(tmp_path, store_url=f"sqlite:///{tmp_path / 'a.db'}").store().close()
        monkeypatch.setenv("ONEFOLD_STORE", f"sqlite:///{tmp_path / 'b.db'}")
        assert Home(tmp_path).has_store
        Home(tmp_path).store().close()
        assert {path.name for path in tmp_path.glob("*.db")} == {"a.db", "b.db"}

    @pytest.mark.parametrize("url", ["mysql://host/db", "store.db", "sqlite://", "sqlite:///"])
    def test_another_url_is_refused_with_the_form_that_is_expected(self, tmp_path: Path, url: str) -> None:
        with pytest.raises(InputError, match="sqlite:////"):
            Home(tmp_path, store_url=url).store()
