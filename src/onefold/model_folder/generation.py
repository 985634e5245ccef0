"""Replace the files of a model folder as a whole: a reader or a killed writer never leaves old beside new files.

A new generation is written and synced in a hidden folder beside the model folder, and exchanged with it in one rename.
A folder that cannot be exchanged (a mount point, the current folder, one that also holds files of the user) is replaced
in place: the complete generation is renamed to `.commit` inside it, which decides, and its files are moved from there.
Whoever opens the folder after an interruption completes the move.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from onefold.model_folder.manifest import DOCUMENTS, MANIFEST, Manifest, manifest_of, path_inside, read_manifest
from onefold.model_folder.trust import home_path, is_recorded, record_written
from onefold.vocabulary.documents import read_document
from onefold.vocabulary.errors import ModelError

COMMIT = ".commit"
ENTRIES = "entries"  # the names in a complete generation
MAX_ENTRIES_BYTES = 10_000
# All files and subfolders that Onefold writes into a model folder.
OWN_NAMES = frozenset(
    {
        MANIFEST, "model.json", "weights.safetensors", "weights.pt", "reference.npz", "retraining-profile.json",
        "model.onnx", "model.npz", "deployment.json", "README.md",
        "kernels.so", "kernels.tar", "kernels.json", "kernels.html", "kernels.before.onnx", "kernels.after.onnx",
        "model.runtimes.json", "model.xml", "model.bin", "model.ncnn.param", "model.ncnn.bin", "model.tflite",
        "model.pte", "model.pt", "model.int8.onnx", "model.packed",
        "retraining.html", "retraining.json", "previous", "compressed",
    }
)  # fmt: skip
SUBFOLDERS = {"previous", "compressed"}  # with manifests of their own
MARKS = (MANIFEST, "model.json", "deployment.json")  # one of them is in every model folder
LISTED_NAMES = frozenset(name for name in OWN_NAMES - SUBFOLDERS - {MANIFEST} if Path(name).suffix not in DOCUMENTS)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # renameat2(2)
_CANNOT_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EBUSY, errno.EXDEV, errno.EROFS}


@contextmanager
def new_generation(
    folder: str | Path,
    *,
    home: str | Path | None = None,
    update: bool = False,
    record: bool = True,
    opened: Manifest | None = None,
    omit: Collection[str] = (),
) -> Iterator[Path]:
    """Yield a folder to write the next generation of a model folder into; it replaces the present one at the end.

    Nothing changes if the block raises. Files that Onefold did not write stay as they are.

    Args:
        folder: The model folder; created if needed.
        home: The folder of studies that records the new generation as its own.
        update: Start from a copy of the present files instead of an empty folder.
        record: Whether code in the new generation may run in this home; False if it contains files from elsewhere.
        opened: The manifest of the present files when the caller decided on `record`. If there is another one by now,
            which this home did not write, the new generation is not recorded.
        omit: Names that are not copied.

    Raises:
        OSError: The folder cannot be written.
        ModelError: A file to copy is not that of the manifest beside it, or files of the user would be replaced.
    """
    target = Path(folder).expanduser().resolve()
    complete_replacement(target)
    if not update:
        check_own_files(target)
    is_exchanged = _can_exchange(target)
    staging_parent = target.parent if is_exchanged else target
    staging_parent.mkdir(parents=True, exist_ok=True)
    prefix = _prefix(target)
    _remove_abandoned(staging_parent, prefix)
    staging = Path(tempfile.mkdtemp(prefix=prefix, dir=staging_parent))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, staging, ignore_errors=True)  # the old generation after an exchange
        stack.enter_context(_locked(staging))
        staging.chmod(0o777 & ~_umask())
        if update and target.is_dir():
            present = read_manifest(target)
            _copy_own_files(target, staging, omit)
            if present is not None:
                present.only(path.name for path in staging.iterdir()).check(staging, target)
            record = record and (present == opened or (present is not None and is_recorded(home_path(home), present)))
        yield staging
        manifest = manifest_of(staging)
        (staging / MANIFEST).write_bytes(manifest.to_bytes())
        sync_folder(staging)
        if record:
            record_written(home_path(home), manifest, target)
        _replace(staging, target, is_exchanged)


def check_own_files(folder: Path) -> None:
    """Raise ModelError if a new generation of this folder would replace files that Onefold did not write."""
    entries = [entry for entry in folder.iterdir() if entry.name in OWN_NAMES] if folder.is_dir() else []
    foreign = sorted(entry.name for entry in entries if not _is_own(entry))
    if foreign:
        raise ModelError(
            f"{folder} has {', '.join(foreign)}, which Onefold did not write and would replace; give another folder"
        )


def _is_own(entry: Path) -> bool:
    """Return whether an entry with a name of Onefold is a part of a model, or a subfolder with nothing else in it."""
    if entry.is_symlink() or not entry.is_dir():
        return _is_model(entry.parent)
    names = {inside.name for inside in entry.iterdir()}
    return not names or (names <= OWN_NAMES and _is_model(entry))


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in MARKS)


def complete_replacement(folder: Path) -> None:
    """Complete the replacement in place of a folder that was interrupted after its decision. Harmless otherwise.

    Waits for a process that is replacing the folder right now. Raises ModelError if what is in the place of the
    complete generation is none.
    """
    commit = folder / COMMIT
    while os.path.lexists(commit):
        try:
            names = _entries(commit)
            with _locked(commit, wait=True) as descriptor:
                if os.path.samestat(os.fstat(descriptor), commit.stat()):
                    _complete(folder, names)
        except (FileNotFoundError, ModelError):
            if os.path.lexists(commit):
                raise


def _complete(folder: Path, names: Collection[str]) -> None:
    """Move the files of the complete generation, of which these are the names, to their places."""
    commit = folder / COMMIT
    for name in OWN_NAMES.difference(names):
        _remove(folder / name)
    for name in sorted(OWN_NAMES.intersection(names)):
        if os.path.lexists(commit / name):
            if (commit / name).is_dir() or (folder / name).is_dir():
                _remove(folder / name)  # a folder neither replaces nor is replaced by a file in a rename
            (commit / name).replace(folder / name)
    _sync_entries(folder)
    done = Path(tempfile.mkdtemp(prefix=_prefix(folder), dir=folder))
    commit.rename(done)  # what is in the place of a complete generation is one, also while it is removed
    shutil.rmtree(done)


def _entries(commit: Path) -> set[str]:
    try:
        if commit.is_symlink() or not commit.is_dir():
            raise ValueError("it is not a folder")
        return set(read_document(path_inside(commit, ENTRIES), MAX_ENTRIES_BYTES).split())
    except (OSError, ValueError, ModelError) as error:
        raise ModelError(f"{commit} is not a complete model: {error}; remove it, or copy the folder again") from error


def _replace(staging: Path, target: Path, is_exchanged: bool) -> None:
    if is_exchanged and not target.exists():
        staging.rename(target)
        _sync_entries(target.parent)
    elif is_exchanged and _exchange(staging, target):
        _sync_entries(target.parent)
    else:
        names = [path.name for path in staging.iterdir()]
        (staging / ENTRIES).write_text("\n".join(names), encoding="utf-8")
        sync_folder(staging)
        staging.rename(target / COMMIT)
        _complete(target, names)


def _can_exchange(target: Path) -> bool:
    """Return whether a folder may be exchanged: it is not in use as such, and holds nothing but files of Onefold."""
    if not target.exists():
        return True
    is_current = Path.cwd().is_relative_to(target)
    is_writable = os.access(target.parent, os.W_OK) and not target.is_mount()
    return is_writable and not is_current and all(entry.name in OWN_NAMES for entry in target.iterdir())


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders atomically. Returns False if the file system or the operating system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # not Linux
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(second))


def _copy_own_files(source: Path, target: Path, omit: Collection[str]) -> None:
    for entry in source.iterdir():
        if entry.name not in OWN_NAMES or entry.name in omit or entry.is_symlink():
            continue
        if entry.is_dir():
            shutil.copytree(entry, target / entry.name, symlinks=True)
        elif entry.is_file():
            shutil.copy2(entry, target / entry.name)


def _prefix(target: Path) -> str:
    """Return how the names of hidden folders begin that a writer of `target` leaves if it is killed."""
    return f".{target.resolve().name}.new-"


def _remove_abandoned(staging_parent: Path, prefix: str) -> None:
    """Remove the folders of writers that were killed: their lock is free."""
    for folder in staging_parent.glob(f"{prefix}*"):
        with suppress(OSError), _locked(folder):
            shutil.rmtree(folder)


@contextmanager
def _locked(folder: Path, *, wait: bool = False) -> Iterator[int]:
    """Hold a folder until the block or this process ends; yields its descriptor.

    If another process holds it, wait, or else raise BlockingIOError.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield descriptor
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Write a folder and all files in it to the disk."""
    for path in folder.rglob("*"):
        if path.is_dir():
            _sync_entries(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    _sync_entries(folder)


def _sync_entries(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
