"""The command `onefold shift`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from shell import WORKLOAD, onefold

from onefold import datasets
from onefold.baselines import shifted_datasets
from onefold.baselines.corruptions import CORRUPTIONS

SHIFT = ("shift", "digits", "--corruption", "fog", "--severity", "3")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a workload without images."""
    (tmp_path / "mine.py").write_text(WORKLOAD)
    return tmp_path


def test_new_data_is_written_and_overwritten(here: Path) -> None:
    done = onefold(here, *SHIFT, "--save", "new")
    assert done.returncode == 0, done.stderr
    assert "fog, severity 3, images of 8x8 pixels: 1,079 for train, 359 for validation, 359 for test" in done.stdout
    assert "mapped to 0 to 255" in done.stdout
    assert "saved in new" in done.stdout
    data, wanted = datasets.read_data(here / "new"), shifted_datasets.corrupted_digits("fog", 3)
    for part in ("train", "validation", "test"):
        for array, expected in zip(getattr(data, part), getattr(wanted, part)):
            np.testing.assert_array_equal(array[:], expected)

    again = onefold(here, *SHIFT, "--save", "new", "--seed", "1", "--json")
    assert again.returncode == 0, again.stderr
    document = json.loads(again.stdout)
    assert 0 < document.pop("change") < 1
    assert document == {
        "folder": "new", "corruption": "fog", "severity": 3, "seed": 1, "shape": [1, 8, 8],
        "samples": {"train": 1079, "validation": 359, "test": 359},
    }  # fmt: skip
    assert (datasets.read_data(here / "new").train[0][:] != wanted.train[0]).any()


def test_the_corruptions_are_listed(here: Path) -> None:
    listed = onefold(here, "shift", "--list")
    assert listed.returncode == 0, listed.stderr
    assert all(kind in listed.stdout for kind in CORRUPTIONS)
    rows = json.loads(onefold(here, "shift", "--list", "--json").stdout)
    assert [row["corruption"] for row in rows] == list(CORRUPTIONS)
    assert {row["family"] for row in rows} == {"none", "noise", "blur", "weather", "digital"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("shift", "mine.py", "--corruption", "fog", "--save", "new"), "only images can be corrupted"),
        (("shift", "digits", "--corruption", "frog", "--save", "new"), "did you mean 'fog'?"),
        (("shift", "digits", "--corruption", "fog", "--severity", "6", "--save", "new"), "must be from 1 to 5, got 6"),
        (("shift", "digit", "--corruption", "fog", "--save", "new"), "did you mean 'digits'?"),
        (("shift", "digits", "--corruption", "fog"), "are required, for example: onefold shift digits"),
        (("shift",), "onefold shift --list shows the corruptions"),
        ((*SHIFT, "--save", "."), "has other files in it, such as"),
        ((*SHIFT, "--save", "mine.py"), "mine.py is a file; choose another path"),
    ],
)
def test_errors_are_one_sentence(here: Path, words: tuple[str, ...], why: str) -> None:
    done = onefold(here, *words)
    assert done.returncode == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    assert not (here / "new").exists()
