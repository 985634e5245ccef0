"""Where studies live: one folder with a store and, for each study, its checkpoints, its best model and its report.

HOME/store.db                         unless the store has a URL
HOME/studies/NAME/trials/00007.pt     checkpoint of a trial
HOME/studies/NAME/logs/00007.log     tracebacks of a failed trial
HOME/studies/NAME/data/               the dataset while the study runs, mapped by all workers
HOME/studies/NAME/best/               the model that the study hands over
HOME/studies/NAME/variants/           measurements of the best trials' variants, where they were compressed afterwards
HOME/studies/NAME/compressed/         the selected variant
HOME/studies/NAME/forms/              what an impact analysis measured: impact.html, impact.json
HOME/studies/NAME/report.html
HOME/devices/                         devices that the user added, and this machine's calibration
HOME/written/                         the digests of the model folders that this home wrote
HOME/pairings/NAME.json               how the agent of a device is reached: a secret
HOME/measuring.lock                   held during a measurement
HOME/queue.lock, HOME/queue.log       held by the process that serves the queue, and its log
HOME/queue.server                     the identity of that process
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onefold.model_folder import home_path
from onefold.store import Store, open_store
from onefold.store.errors import OTHER_HOME
from onefold.store.locks import LOCK_TIMEOUT_S, FileLocks, Locks, StudyLock
from onefold.vocabulary.errors import InputError, StoreError


class Home:
    """A folder of studies and the store that remembers them.

    Args:
        path: The folder; by default $ONEFOLD_HOME, or else the user's data folder.
        store_url: Where the store is, such as "sqlite:////data/store.db"; by default $ONEFOLD_STORE, or else the file
            `store.db` in the folder.
    """

    def __init__(self, path: str | Path | None = None, *, store_url: str | None = None) -> None:
        self.path = home_path(path)
        self.store_url = store_url or os.environ.get("ONEFOLD_STORE") or None
        self.locks: Locks = FileLocks(self.path)

    def store(self) -> Store:
        """Open the store, creating it if there is none; the caller closes it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the folder {self.path} cannot be created ({error.strerror}); {OTHER_HOME}") from error
        return open_store(self.store_url or self._file)

    @property
    def has_store(self) -> bool:
        """Return whether there may be something to read: a store that has a URL, or the file."""
        return self.store_url is not None or self._file.is_file()

    @property
    def _file(self) -> Path:
        return self.path / "store.db"

    @property
    def devices(self) -> Path:
        """Return the folder of the user's own devices."""
        return self.path / "devices"

    @property
    def pairings(self) -> Path:
        """Return the folder of the pairings with agents, which are secrets."""
        return self.path / "pairings"

    def folder(self, name: str) -> Path:
        """Return the folder of a study, whether it exists or not."""
        check_name(name)
        return self.path / "studies" / name

    @contextmanager
    def study_lock(self, name: str, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[StudyLock]:
        """Hold a study inside the block; raise StudyBusy if another process holds it."""
        check_name(name)
        with self.locks.study(name, timeout_s) as lock:
            yield lock

    def is_running(self, name: str) -> bool:
        """Return whether a process runs this study now."""
        check_name(name)
        return self.locks.is_study_held(name)


def check_name(name: str) -> None:
    """Raise InputError unless a study may have this name."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", name):
        raise InputError(f"a study's name is made of letters, digits, '.', '_' and '-', but got {name!r}")


def free_name(wanted: str, taken: set[str]) -> str:
    """Return `wanted-1`, or with the next number that is free."""
    number = 1
    while f"{wanted}-{number}" in taken:
        number += 1
    return f"{wanted}-{number}"
