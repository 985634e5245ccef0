"""Search folders of the loaders: empty temporary ones, or the real one if this machine has it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder named by $ONEFOLD_DATA."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("ONEFOLD_DATA", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the data folder in the user's cache, which does not exist yet."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    return tmp_path / "cache" / "onefold" / "data"


@pytest.fixture
def real_file(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that gives the path of a real file, or skips the test if this machine lacks it."""

    def path_of(file: str) -> Path:
        folder = Path(os.environ.get("ONEFOLD_DATA") or SHARED_DATA)
        if not (folder / file).is_file():
            pytest.skip(f"{file} is neither in $ONEFOLD_DATA nor in shared/data beside the repository")
        monkeypatch.setenv("ONEFOLD_DATA", str(folder))
        return folder / file

    return path_of
