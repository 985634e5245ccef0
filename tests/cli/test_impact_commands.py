"""The commands `onefold impact` and `onefold tune --compress after`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from shell import onefold

from onefold.impact_analysis import importance

WORKLOAD = """
import torch
from onefold import Choice, Data, Space, Workload
from onefold.testing.toy import spirals

class Mine(Workload):
    space = Space(model=dict(width=Choice(4, 8)), training=dict(lr=Choice(0.01, 0.1)))
    def build(self, config):
        return torch.nn.Sequential(torch.nn.Linear(2, config.width), torch.nn.Tanh(), torch.nn.Linear(config.width, 2))
    def data(self):
        return Data(train=spirals(200, 0), test=spirals(50, 1))
"""
WORDS = ("impact", "mine.py", "--trials", "2", "--best", "2", "--max-epochs", "2", "--sparsity", "0", "--name", "mine")
QUICK = ("--parallel", "1", "--knobs", "off")


@pytest.fixture(scope="module", autouse=True)
def _small_forests() -> Iterator[None]:
    """Use few trees: importance has its own tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("onefold.impact_analysis.findings"), "importance", partial(importance, trees=8))
        yield


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, calibrated: Path) -> Path:
    """A folder with a workload, and a home with a calibrated host."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "mine.py").write_text(WORKLOAD)
    broken = WORKLOAD.replace("Mine", "Broken").replace(
        "(self, config):", "(self, config):\n        raise ValueError('no')"
    )
    (folder / "broken.py").write_text(broken)
    shutil.copytree(calibrated, folder / "home" / "devices")
    return folder


@pytest.fixture(scope="module")
def text(here: Path) -> str:
    answer = onefold(here, *WORDS, *QUICK, "--output", "page.html")
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_impact_prints_advice_and_tables(text: str) -> None:
    for line in (
        "6 trials in 3 arms; ",
        "compressing and measuring on host: ",
        "Impact analysis: mine",
        "What is worth tuning?",
        "2 models per arm are too few for a significant difference.",
        "Effects of holding hyperparameters fixed: plain models",
        "Effects of holding hyperparameters fixed: compressed models",
        "Spread of properties",
        "Largest deviation (LARD)",
        "The best models of tune all",
        "compression: int8",
        "report  page.html",
    ):
        assert line in text


def test_a_finished_analysis_is_printed_again_as_json(here: Path, text: str) -> None:
    folder = here / "home" / "studies" / "mine"
    assert (here / "page.html").read_text() == (folder / "impact.html").read_text()
    again = onefold(here, *WORDS, *QUICK, "--json")
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout)
    assert result == json.loads((folder / "impact.json").read_text())
    assert [arm["name"] for arm in result["evidence"]["arms"]] == ["tune all", "fix width", "fix lr"]


@pytest.mark.slow
def test_several_workloads_are_shown_side_by_side(here: Path, text: str) -> None:
    (here / "other.py").write_text(WORKLOAD.replace("Mine", "Other"))
    words = [word for word in WORDS if word not in ("--name", "mine", "mine.py")]
    answer = onefold(here, *words, "mine.py", "other.py", "--name", "both", *QUICK, "--output", "both.html")
    assert answer.returncode == 0, answer.stderr
    assert "Impact analyses side by side" in answer.stdout
    assert (here / "both.html").read_text().count("<h3>Plain models: accuracy</h3>") == 1
    assert {"both-mine", "both-other"} <= {folder.name for folder in (here / "home" / "studies").iterdir()}
    again = onefold(here, *words, "mine.py", "other.py", "--name", "both", *QUICK, "--json")
    assert [subject["evidence"]["workload"] for subject in json.loads(again.stdout)] == ["mine", "other"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("mine.py", "--best", "50", "--trials", "5"), "--best must be at most --trials 5, but got 50"),
        (("mine.py", "--trials", "1"), "--trials must be at least 2 to compare arms, but got 1"),
        (("mine.py", "--sparsity", "0", "--precision", "fp32"), "set a compression method, or pass --plain"),
        (("nowhere.py",), "there is no file 'nowhere.py'"),
        (("mine.py", "mine.py"), "workloads are compared by name"),
        (
            ("paper-lstm", "--max-epochs", "4"),
            "--max-epochs must be at least 10, the largest value",
        ),
        (("mine.py", "--precision", "int9"), "did you mean 'int8'"),
        (("mine.py", "--plain", "--sparsity", "0.8"), "leave out either --plain or --sparsity"),
        (("mine.py", "--plain", "--fine-tuning-epochs", "2"), "leave out either --plain or --fine-tuning-epochs"),
        (
            ("mine.py", "--plain", "--server", "host", "--device", "raspberry-pi-4"),
            "leave --server out, or measure them on --device host",
        ),
        (("mine.py", "broken.py"), "the workload broken cannot be analyzed: tune all: the workload rejects every"),
    ],
)
def test_mistakes_are_answered_with_one_line(here: Path, words: tuple[str, ...], complaint: str) -> None:
    answer = onefold(here, "impact", *words)
    assert complaint in answer.stderr
    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1
    assert "arms; " not in answer.stdout  # nothing has begun


@pytest.mark.slow
def test_tune_compresses_the_best_trials_after_the_study(here: Path) -> None:
    words = ("tune", "digits", "--trials", "1", "--max-epochs", "1", *QUICK)
    tuned = onefold(here, *words, "--compress", "after", "--save", "out")
    assert tuned.returncode == 0, tuned.stderr
    (line,) = [line for line in tuned.stdout.splitlines() if line.startswith("smaller ")]
    taken = (here / "home" / "studies" / "digits-1" / "compressed").is_dir()
    assert ("; in " in line) == taken == (here / "out" / "compressed").is_dir()
    assert ("the plain model: no variant is better for size" in line) != taken
    assert "compressing the best trials and measuring them on host: 1 of 1" in tuned.stdout
