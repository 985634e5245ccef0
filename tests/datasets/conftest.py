"""Folders that the loaders look in: empty ones of the test's own, or the real ones where this machine has them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

BESIDE_THE_REPOSITORY = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that $ONEFOLD_DATA names."""
    folder = tmp_path / "chosen"
    folder.mkdir()
    monkeypatch.setenv("ONEFOLD_DATA", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of data in the user's cache; it does not exist yet."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    return tmp_path / "cache" / "onefold" / "data"


@pytest.fixture
def needs(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Skips a test unless this machine has the real file of that name."""

    def path_of(file: str) -> Path:
        folder = Path(os.environ.get("ONEFOLD_DATA") or BESIDE_THE_REPOSITORY)
        if not (folder / file).is_file():
            pytest.skip(f"{file} is neither in $ONEFOLD_DATA nor in shared/data beside the repository")
        monkeypatch.setenv("ONEFOLD_DATA", str(folder))
        return folder / file

    return path_of
