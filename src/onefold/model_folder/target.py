"""The folder that a user names for a model: checked before the work whose result is written there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onefold.model_folder.generation import check_own_files
from onefold.vocabulary.errors import InputError


def check_target(folder: str | Path, argument: str = "folder", *, is_replaced: bool = True) -> None:
    """Raise InputError if a model cannot be written into a folder, which need not exist.

    Args:
        folder: The folder.
        argument: Its name, for the message.
        is_replaced: Whether the model replaces what is there, which must then be files of Onefold.
    """
    target = Path(folder).expanduser().absolute()
    nearest = next(path for path in (target, *target.parents) if path.exists())
    if not nearest.is_dir():
        raise InputError(f"{argument} must be a folder, but {nearest} is a file; give another folder")
    try:
        Path(tempfile.mkdtemp(prefix=".onefold-", dir=nearest)).rmdir()
    except OSError as error:
        raise InputError(
            f"{argument} must be a writable folder, but nothing can be written in {nearest} ({error.strerror}); "
            "give another folder"
        ) from error
    if is_replaced and nearest == target:
        check_own_files(target)


@contextmanager
def saving(folder: str | Path, otherwise: str = "") -> Iterator[None]:
    """Raise InputError if a model cannot be written into a folder; `otherwise` says where it is."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot save the model in {folder} ({error.strerror or error}){otherwise}") from error
