"""Every example runs as its first lines say, as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SAYS = {
    "ask_tell": "best: loss",
    "compile": "served 359 images with",
    "deploy": "served 359 images",
    "digits": "test accuracy",
    "plain_function": "best: {'kernel'",
    "regression": "test rmse",
    "retrain": "accuracy in fog",
    "two_goals": "stopped early",
}
SLOW = ("compile", "deploy")  # docs/kernels.md and docs/serving.md do the same


def run(home: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True, text=True, cwd=home, timeout=120, env={**os.environ, "ONEFOLD_HOME": str(home)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_example_is_forgotten() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SAYS]
)  # fmt: skip
def test_example_runs_and_says_what_it_found(name: str, home: Path) -> None:
    assert SAYS[name] in run(home, str(EXAMPLES / f"{name}.py"))


def test_the_workload_of_an_example_can_be_tuned_from_the_shell(home: Path) -> None:
    options = ("--trials", "2", "--max-epochs", "1", "--parallel", "1")
    said = run(home, "-m", "onefold.cli", "tune", str(EXAMPLES / "digits.py"), *options)
    assert "winner" in said
    assert "dense-digits-1" in said
