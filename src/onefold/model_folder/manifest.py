"""The manifest of a model folder: the size and SHA-256 digest of every file that Onefold reads back."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from onefold.vocabulary.documents import read_json
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.records import to_json
from onefold.vocabulary.typed_json import checked_from_json

MANIFEST = "manifest.json"
VERSION = 1
MAX_MANIFEST_BYTES = 1_000_000
DOCUMENTS = {".md", ".html"}  # for people, who may edit them


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size and content of a file."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a model folder by name. Subfolders have manifests of their own."""

    files: Mapping[str, FileDigest]
    version: int = VERSION

    def to_bytes(self) -> bytes:
        """Return the content of manifest.json."""
        return (json.dumps(to_json(self), indent=1, sort_keys=True) + "\n").encode()

    @property
    def digest(self) -> str:
        """Return the digest of the manifest, and so of all files in it."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def only(self, names: Iterable[str]) -> Manifest:
        """Return the manifest of the files of these names."""
        wanted = set(names)
        return replace(self, files={name: digest for name, digest in self.files.items() if name in wanted})

    def check(self, folder: Path, origin: Path | None = None) -> None:
        """Raise ModelError if a file is missing or differs from its digest.

        `origin` is the folder to name, if the files in `folder` are copies.
        """
        named = origin or folder
        for name, expected in self.files.items():
            path = path_inside(folder, name)
            if not path.is_file():
                raise ModelError(f"{named} has no {name}, which its {MANIFEST} lists; copy the whole folder")
            if path.stat().st_size != expected.size_bytes or _digest(path) != expected:
                raise ModelError(
                    f"{named / name} was changed after it was written: its digest is not the one in {MANIFEST}; "
                    "write or copy the folder again"
                )


def manifest_of(folder: Path) -> Manifest:
    """Return the manifest of the files in a folder as they are now."""
    names = sorted(
        path.name
        for path in folder.iterdir()
        if path.is_file() and not path.is_symlink() and path.suffix not in DOCUMENTS and path.name != MANIFEST
    )
    return Manifest({name: _digest(folder / name) for name in names})


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest in a folder, or None if it has none. Raises ModelError if it cannot be read."""
    path = folder / MANIFEST
    if not path.exists() and not path.is_symlink():
        return None
    path = path_inside(folder, MANIFEST)
    try:
        manifest = checked_from_json(Manifest, read_json(path, MAX_MANIFEST_BYTES))
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}; write or copy the folder again") from error
    if manifest.version > VERSION:
        raise ModelError(f"{path} was written by a later version of Onefold; update Onefold")
    return manifest


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of a file of a model folder.

    Raises ModelError if the name leads out of the folder, also by a symbolic link, or if it names a pipe, a device or
    another special file.
    """
    path = folder / name
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"{folder} is not accepted: {name!r} leads out of the folder")
        if path.exists() and not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - a pipe must not be opened
            raise ModelError(f"{folder} is not accepted: {name!r} is not a regular file")
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links, or a NUL in the name
        raise ModelError(f"{folder} is not accepted: {name!r} cannot be opened ({error})") from error
    return path


def _digest(path: Path) -> FileDigest:
    with path.open("rb") as file:
        return FileDigest(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
