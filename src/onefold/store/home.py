"""Where studies live: one folder with a store and, for each study, its checkpoints, its best model and its report.

HOME/store.db
HOME/studies/NAME/trials/00007.pt     where a trial stands
HOME/studies/NAME/data/               the data set while the study runs, mapped by all workers
HOME/studies/NAME/best/               the model that the study hands over
HOME/studies/NAME/variants/           what is known of the best trials' variants, where they were compressed afterwards
HOME/studies/NAME/compressed/         the one to take
HOME/studies/NAME/forms/              what is known of the models of an impact study: impact.html, impact.json
HOME/studies/NAME/report.html
HOME/devices/                         devices that the user added, and this machine's calibration
HOME/measuring.lock                   held by whoever times something
HOME/queue.lock, HOME/queue.log       held by whoever serves the queue, and what it says
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_data_dir

from onefold.store import SqliteStore, Store
from onefold.store.locks import PATIENCE_S, locked
from onefold.vocabulary.errors import InputError, StoreError, StudyBusy


class Home:
    """A folder of studies: `given`, or $ONEFOLD_HOME, or the user's data folder."""

    def __init__(self, given: str | Path | None = None) -> None:
        self.path = Path(given or os.environ.get("ONEFOLD_HOME") or user_data_dir("onefold")).expanduser().absolute()

    def store(self) -> Store:
        """Opens the store; whoever opens it closes it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the folder {self.path} cannot be made ({error.strerror}); give another with --home"
            ) from error
        return SqliteStore(self.path / "store.db")

    @property
    def devices(self) -> Path:
        """The folder of the user's own devices."""
        return self.path / "devices"

    @property
    def lease(self) -> Path:
        """The file that whoever times something holds."""
        return self.path / "measuring.lock"

    def folder(self, name: str) -> Path:
        """The folder of a study, whether it exists or not."""
        check_name(name)
        return self.path / "studies" / name

    @contextmanager
    def running(self, name: str, patience_s: float = PATIENCE_S) -> Iterator[Path]:
        """Holds a study for this process, which no other can do meanwhile; the hold ends with the process."""
        folder = self.folder(name)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / "lock").open("w")
        except OSError as error:
            raise StoreError(
                f"the folder {folder} cannot be written ({error.strerror}); give another with --home"
            ) from error
        with lock:
            if not locked(lock, patience_s):
                raise StudyBusy(f"the study {name!r} is being run by another process; wait for it or stop it")
            yield folder

    def is_running(self, name: str) -> bool:
        """Whether some process runs this study now."""
        if not (self.folder(name) / "lock").exists():
            return False
        try:
            with self.running(name, patience_s=0.0):
                return False
        except StudyBusy:
            return True


def check_name(name: str) -> None:
    """Raises InputError unless a study may be called so."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", name):
        raise InputError(f"a study's name is made of letters, digits, '.', '_' and '-', but got {name!r}")


def free_name(wanted: str, taken: set[str]) -> str:
    """`wanted-1`, or with the next number that is free."""
    number = 1
    while f"{wanted}-{number}" in taken:
        number += 1
    return f"{wanted}-{number}"
