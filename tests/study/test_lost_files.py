"""Files of a home that disappear while a study runs are noticed before anything is written into them."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onefold import Float, Space, Study
from onefold.store import open_store
from onefold.store.home import Home
from onefold.vocabulary.errors import StoreError
from small_studies import small_study as small

SPACE = Space(x=Float(0, 1))


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.touch()
    other.replace(path)


LOSSES: dict[str, Callable[[Path], Any]] = {
    "deleted": Path.unlink,
    "renamed": lambda path: path.rename(path.with_name("elsewhere")),
    "replaced": replaced,
}


def after_two(action: Callable[[], Any]) -> Callable[[Any], None]:
    def on_event(event: Any) -> None:
        if event.kind == "result" and event.trial == 2:
            action()

    return on_event


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["store.db", "store.db-wal"])
def test_a_lost_store_stops_the_study_and_what_was_recorded_is_rescued(tmp_path: Path, loss: str, name: str) -> None:
    home = tmp_path / "home"
    study = small(
        lambda config: config.x, home, space=SPACE, on_event=after_two(lambda: LOSSES[loss](home / name)), name="s"
    )
    with pytest.raises(StoreError, match=rf"{name} was (deleted or renamed|replaced by another file)") as caught:
        study.run()
    assert "then resume" in str(caught.value)
    copies = list(home.glob("store-rescued-*.db"))
    assert str(copies[0]) in str(caught.value)
    assert len(copies) == 1
    copies[0].replace(home / "store.db")  # as the message says; a log of the lost store may still be beside it
    with closing(open_store(home / "store.db")) as store:
        assert [trial.number for trial in store.trials("s") if trial.metrics] == [0, 1, 2]
    whole = small(lambda config: config.x, tmp_path / "other", space=SPACE, name="s")
    whole.run()
    result = Study.open("s", home=home, workload=lambda config: config.x).run()
    assert [trial.config for trial in result.trials] == [trial.config for trial in whole.trials]


def test_a_log_that_others_read_has_to_be_removed_before_the_rescued_copy_is_used(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def read_and_delete() -> None:
        reader.append(sqlite3.connect(home / "store.db"))
        reader[0].execute("BEGIN")
        reader[0].execute("SELECT * FROM studies").fetchall()
        (home / "store.db").unlink()

    reader: list[sqlite3.Connection] = []
    study = small(lambda config: config.x, home, space=SPACE, on_event=after_two(read_and_delete), name="s")
    with pytest.raises(StoreError, match=r"remove .*store\.db-wal and store\.db-shm and move the copy"):
        study.run()
    reader[0].close()
    for name in ("store.db-wal", "store.db-shm"):
        (home / name).unlink(missing_ok=True)
    next(home.glob("store-rescued-*.db")).replace(home / "store.db")
    with closing(open_store(home / "store.db")) as store:
        assert [trial.number for trial in store.trials("s") if trial.metrics] == [0, 1, 2]


def test_a_home_that_is_deleted_is_rescued_into_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    study = small(lambda config: config.x, home, space=SPACE, on_event=after_two(lambda: shutil.rmtree(home)))
    with pytest.raises(StoreError, match="was deleted") as caught:
        study.run()
    if "rescued" in str(caught.value):
        copy = re.search(r"is in (\S+):", str(caught.value))
        assert copy is not None
        with closing(sqlite3.connect(copy[1])) as database:
            assert database.execute("SELECT count(*) FROM rungs WHERE state = 'done'").fetchone()[0] >= 2


def test_a_lost_lock_stops_the_study_and_loses_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "studies" / "s" / "lock"
    study = small(lambda config: config.x, tmp_path, space=SPACE, on_event=after_two(lock.unlink), name="s")
    with pytest.raises(StoreError, match=r"lock .* was deleted or renamed while study 's' ran.*resume it"):
        study.run()
    result = Study.open("s", home=tmp_path, workload=lambda config: config.x).run()
    assert len(result.trials) == 6


def test_whoever_waits_for_a_lock_that_is_replaced_waits_for_the_new_one(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.study_lock("s") as first:
        first.file.path.unlink()
        with home.study_lock("s") as second:
            assert second.file.change == ""
            with pytest.raises(StoreError, match="replaced by another file"):
                first.check()
