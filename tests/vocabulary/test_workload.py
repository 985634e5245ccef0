"""Loading of workloads by reference, and errors in them. Every command is a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onefold.vocabulary.errors import WorkloadError
from onefold.vocabulary.workload_reference import load

MODULE = """
from onefold.testing.toy import Spirals
from {package}.parts import WIDTH

class Mine(Spirals):
    width = WIDTH
"""
QUICK = ("--trials", "2", "--max-epochs", "1", "--parallel", "1")


def package(here: Path, name: str) -> None:
    (here / name).mkdir()
    (here / name / "__init__.py").write_text("")
    (here / name / "parts.py").write_text("WIDTH = 8\n")
    (here / name / "shapes.py").write_text(MODULE.format(package=name))


def onefold(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command as it is installed: without -P, `python -m` would put the current folder on the path."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "onefold.cli", *words],
        capture_output=True, text=True, cwd=here, timeout=120,
        env={**os.environ, "ONEFOLD_HOME": str(here / "home"), "COLUMNS": "200"},
    )  # fmt: skip


def test_a_package_of_the_current_folder_is_found_by_the_command_and_its_workers(tmp_path: Path) -> None:
    package(tmp_path, "lately")
    tuned = onefold(tmp_path, "tune", "lately.shapes:Mine", *QUICK)
    assert tuned.returncode == 0, tuned.stderr
    assert "winner" in tuned.stdout


def test_a_bundled_workload_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "onefold").mkdir()  # as in the folder of a stranger's model
    (tmp_path / "sklearn.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()")
    program = "from onefold.vocabulary.workload_reference import load; load('digits').data()"
    subprocess.run([sys.executable, "-P", "-c", program], cwd=tmp_path, check=True)
    assert not (tmp_path / "marker").exists()


def test_the_current_folder_joins_the_path_only_for_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "later")
    (tmp_path / "single.py").write_text("from onefold.testing.toy import Spirals\nclass Mine(Spirals): ...\n")
    (tmp_path / "later" / "__init__.py").write_text("from onefold.testing.toy import Spirals\nclass Mine(Spirals): ...")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    load("digits")
    with pytest.raises(WorkloadError, match="nowhere cannot be imported: ModuleNotFoundError"):
        load("nowhere:Mine")
    assert str(tmp_path) not in sys.path
    for reference in ("later.shapes:Mine", "later:Mine", "single:Mine"):
        assert load(reference).name == "mine"
    assert sys.path.count(str(tmp_path)) == 1
