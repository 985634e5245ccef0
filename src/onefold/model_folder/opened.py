"""Open a model folder: complete an interrupted replacement, check the digests, and decide whether it is trusted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onefold.model_folder.generation import complete_replacement
from onefold.model_folder.manifest import Manifest, path_inside, read_manifest
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
        ModelError: A file of the folder is missing, was changed, or lies outside of it.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise InputError(f"there is no folder {path}; give the folder of a model")
    complete_replacement(path)
    manifest = read_manifest(path)
    if manifest is None:
        return ModelFolder(path, None, trust)
    try:
        manifest.check(path)
    except ModelError:
        latest = read_manifest(path)
        if latest == manifest or latest is None:
            raise
        latest.check(path)  # the folder was replaced meanwhile
        manifest = latest
    return ModelFolder(path, manifest, trust or is_recorded(home_path(home), manifest))
