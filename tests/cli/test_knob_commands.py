"""`onefold train`, `onefold knobs`, `onefold submit` and `onefold queue` as a person uses them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from shell import WORKLOAD, alone, onefold

from onefold.vocabulary.quantities import count


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(WORKLOAD.replace("lr=Float", "batch_size=2, lr=Float"))
    (tmp_path / "config.json").write_text(json.dumps({"width": 8, "lr": 0.01}))
    return tmp_path


TRAIN = ("train", "mine.py", "--config", "config.json", "--epochs", "40")


def test_train_says_what_was_gained_and_a_second_job_recalls(here: Path) -> None:
    trained = onefold(here, *TRAIN, "--save", "out")
    assert trained.returncode == 0, trained.stderr
    assert "probed" in trained.stdout
    assert "a step took" in trained.stdout
    assert (here / "out" / "weights.pt").exists()
    card = json.loads((here / "out" / "model.json").read_text())
    assert card["config"] == {"width": 8, "batch_size": 2, "lr": 0.01}

    again = onefold(here, "train", "mine.py", "--config", "out/model.json", "--epochs", "10")
    assert again.returncode == 0, again.stderr
    assert "recalled from a similar job" in again.stdout

    assert "operators" in onefold(here, "knobs").stdout
    known = json.loads(onefold(here, "knobs", "--json").stdout)
    assert {job["aim"] for job in known} == {"time"}  # two, where what was recalled was no faster and was probed anew
    jobs = count(len(known), "job")
    assert f"{jobs} written" in onefold(here, "knobs", "export", "known.json").stdout
    assert f"{jobs} remembered" in onefold(here, "knobs", "import", "known.json", "--home", "elsewhere").stdout
    assert json.loads(onefold(here, "knobs", "--json", "--home", "elsewhere").stdout) == known


def test_knobs_stay_as_they_are_when_they_are_off(here: Path) -> None:
    trained = onefold(here, *TRAIN[:-1], "2", "--knobs", "off")
    assert trained.returncode == 0, trained.stderr
    assert "knobs   left as they were" in trained.stdout
    assert "nothing is remembered" in onefold(here, "knobs").stdout


def test_every_study_tunes_its_knobs(here: Path) -> None:
    tuned = onefold(here, "tune", "mine.py", "--trials", "3", "--max-epochs", "20", "--parallel", "1")
    assert tuned.returncode == 0, tuned.stderr
    assert "knobs, epoch" in tuned.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", "mine.py", "--config", "config.jsn"), "cannot be read"),
        (("train", "mine.py", "--config", "mine.py"), "is not JSON"),
        (("train", "mine.py", "--config", "unknown.json"), "did you mean 'width'"),
        (("train", "mine.py"), "no default for it"),
        ((*TRAIN, "--knobs", "of"), "did you mean 'off'"),
        (("knobs", "import", "config.json"), "is no file that `onefold knobs export` wrote"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(here: Path, words: tuple[str, ...], says: str) -> None:
    (here / "unknown.json").write_text(json.dumps({"widht": 8}))
    answer = onefold(here, *words)
    assert answer.returncode == 2
    assert says in answer.stderr
    assert "Traceback" not in answer.stderr


def test_submitted_studies_are_served_in_the_background(here: Path) -> None:
    quick = ("mine.py", "--trials", "2", "--max-epochs", "1", "--parallel", "1")
    assert "nothing was submitted" in onefold(here, "queue").stdout
    first = alone(here, "submit", *quick)
    assert first.returncode == 0, first.stderr
    assert "submitted mine-1; 0 before it" in first.stdout
    second = json.loads(alone(here, "submit", *quick, "--json").stdout)
    assert second["study"] == "mine-2"
    for _ in range(600):
        queue = json.loads(onefold(here, "queue", "--json").stdout)
        if all(one["ended"] is not None for one in queue):
            break
        time.sleep(0.1)
    assert [one["study"] for one in queue] == ["mine-1", "mine-2"]
    assert all(one["response_s"] > 0 for one in queue)
    assert "done" in onefold(here, "queue").stdout
    assert "the queue is empty" in onefold(here, "queue", "run").stdout


def test_what_is_wrong_with_a_submission_is_told_at_once(here: Path) -> None:
    for words, says in (
        (("submit", "mine.py", "--trials", "0"), "trials must be 1 or more"),
        (("submit", "mine.py", "--trails", "3"), "No such option"),
        (("submit", "mine.py", "--save", "out"), "leave --save out"),
    ):
        answer = onefold(here, *words)
        assert answer.returncode == 2
        assert says in answer.stderr
        assert "Traceback" not in answer.stderr
    assert "--trials" in onefold(here, "submit", "--help").stdout
