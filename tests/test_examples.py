"""Every example runs, most in this process with the inline engine."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
OUTPUT = {
    "ask_tell": "best: loss",
    "compile": "served 359 images with",
    "deploy": "served 359 images",
    "digits": "test accuracy",
    "plain_function": "best: {'kernel'",
    "regression": "test rmse",
    "retrain": "accuracy in fog",
    "two_goals": "stopped early",
}
OWN_PROCESS = ("retrain",)  # a memory limit is that of the whole process
SLOW = ("compile", "deploy", "retrain")  # the guides on kernels, serving and retraining run the same functions


def run_as_process(home: Path, *words: str) -> str:
    """Return the standard output of a new interpreter."""
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True, text=True, cwd=home, timeout=600, env={**os.environ, "ONEFOLD_HOME": str(home)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(OUTPUT)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in OUTPUT]
)  # fmt: skip
def test_example_prints_its_result(
    name: str,
    home: Path,
    inline_engine: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    path = str(EXAMPLES / f"{name}.py")
    if name in OWN_PROCESS:
        output = run_as_process(home, path)
    else:
        if name not in SLOW:
            request.getfixturevalue("few_digits")
        monkeypatch.setenv("ONEFOLD_HOME", str(home))
        runpy.run_path(path, run_name="__main__")
        output = capsys.readouterr().out
    assert OUTPUT[name] in output


@pytest.mark.slow
def test_workers_import_an_example(home: Path) -> None:
    assert OUTPUT["digits"] in run_as_process(home, str(EXAMPLES / "digits.py"))
