"""Open a model folder: complete an interrupted replacement, check the digests, and decide whether it is trusted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from onefold.model_folder.generation import LISTED_NAMES, complete_replacement
from onefold.model_folder.manifest import MANIFEST, Manifest, path_inside, read_manifest
from onefold.model_folder.trust import home_path, is_recorded
from onefold.vocabulary.errors import InputError, ModelError, UntrustedFolder


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model folder whose files match their digests."""

    path: Path
    manifest: Manifest | None  # None for a folder of version 0.1 or of another program
    is_trusted: bool

    def file(self, name: str) -> Path:
        """Return the path of a file of the folder. Raises ModelError if it leads out of the folder."""
        return path_inside(self.path, name)

    def code(self, name: str) -> Path:
        """Return the path of a native library of the folder.

        Raises UntrustedFolder if the folder is not trusted, and ModelError if the file is not one of its own.
        """
        path = self.file(name)
        self.require_trust(f"the native library {name}")
        if self.manifest is not None and name not in self.manifest.files:
            raise ModelError(f"{path} is not listed in the manifest of the folder; write or copy the folder again")
        return path

    def require_trust(self, code: str) -> None:
        """Raise UntrustedFolder if the folder is not trusted; `code` says what would run."""
        if not self.is_trusted:
            raise UntrustedFolder(
                f"{self.path} was not written by this home, and {code} would run code from it; "
                "if you know where the folder comes from, open it with trust=True"
            )


def open_folder(folder: str | Path, *, trust: bool = False, home: str | Path | None = None) -> ModelFolder:
    """Open a model folder.

    Args:
        folder: The folder.
        trust: Run code that the folder contains or names.
        home: The folder of studies; one that this home wrote is trusted.

    Raises:
        InputError: There is no such folder.
        ModelError: A file of the folder is missing, was changed or added, or lies outside of it.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise InputError(f"there is no folder {path}; give the folder of a model")
    try:
        complete_replacement(path)
    except OSError as error:
        raise ModelError(f"the replacement of {path} was interrupted and cannot be completed: {error}") from error
    manifest = read_manifest(path)
    if manifest is None:
        return ModelFolder(path, None, trust)
    try:
        _check(manifest, path)
    except ModelError:
        latest = read_manifest(path)
        if latest == manifest or latest is None:
            raise
        _check(latest, path)  # the folder was replaced meanwhile
        manifest = latest
    return ModelFolder(path, manifest, trust or is_recorded(home_path(home), manifest))


def _check(manifest: Manifest, folder: Path) -> None:
    """Raise ModelError unless the folder has the files of its manifest, and no others that Onefold would read."""
    manifest.check(folder)
    added = sorted(name for name in LISTED_NAMES - manifest.files.keys() if os.path.lexists(folder / name))
    if added:
        raise ModelError(
            f"{folder / added[0]} was added after the folder was written: {MANIFEST} does not list it; "
            "remove it, or write or copy the folder again"
        )
