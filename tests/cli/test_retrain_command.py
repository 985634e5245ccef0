"""The command `onefold retrain`."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from shell import alone, begun, has_loaded_torch, onefold, wait_until
from torch.nn import functional

from onefold import Config, datasets
from onefold.training.weights import write_weights
from onefold.workloads.digits import Digits

CONFIG = Config(
    depth=1, filters=4, kernel=3, hidden=16, activation="relu", dropout=0.0,
    batch_size=32, optimizer="adam", lr=3e-3, weight_decay=1e-5,
)  # fmt: skip
# Long enough for a busy machine; a rule ends the retraining as soon as the model is better.
QUICK = ("--window", "3000s", "--rules", "enough.toml")
ENOUGH = """
[[react]]
name = "seen enough"
when = "best_score > first_score + 0.03 or stalled >= 2"
then = "finish"
say = "enough for the test"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model trained on clean digits, and digits in fog by `onefold shift`."""
    here = tmp_path_factory.mktemp("made")
    torch.manual_seed(0)
    network = Digits().build(CONFIG)
    images, labels = (torch.from_numpy(part) for part in datasets.digits().train)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(8):
        for places in torch.randperm(len(labels)).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(network(images[places]), labels[places]).backward()
            optimizer.step()
    (here / "deploy").mkdir()
    write_weights(here / "deploy", network.state_dict())
    (here / "deploy" / "model.json").write_text(json.dumps({"workload": "digits", "config": dict(CONFIG)}))
    (here / "enough.toml").write_text(ENOUGH)
    done = onefold(here, "shift", "digits", "--corruption", "fog", "--severity", "4", "--save", "new")
    assert done.returncode == 0, done.stderr
    assert "onefold retrain FOLDER --data new" in done.stdout
    return here


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "here")


def content_of(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_ctrl_c_prints_a_sentence_and_leaves_the_model_unchanged(here: Path) -> None:
    before = content_of(here / "deploy")
    process = begun(here, "retrain", "deploy", "--data", "new", "--memory", "2GB", "--window", "600s")
    wait_until(lambda: has_loaded_torch(process))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert content_of(here / "deploy") == before


def test_sigterm_ends_the_window(here: Path) -> None:
    process = begun(here, "retrain", "deploy", "--data", "new", "--memory", "2GB", "--window", "3000s", "--json")
    wait_until(lambda: has_loaded_torch(process))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert report["after"] >= report["before"]
    assert report["elapsed_s"] < 300
    assert json.loads((here / "deploy" / "retraining.json").read_text()) == report


def test_a_window_that_ends_before_training_begins_is_refused_then(here: Path) -> None:
    before = content_of(here)
    done = alone(here, "retrain", "deploy", "--data", "new", "--window", "0.3s")  # too short to import torch
    assert done.returncode == 2
    assert done.stderr == (
        "onefold: the window of 0.30 s is over, and loading the model was not done; give --window more time\n"
    )
    assert content_of(here) == before


def test_a_refusal_does_not_wait_for_modules_to_be_unloaded(here: Path) -> None:
    program = """
import runpy, sys, threading
waits = threading.Thread(target=threading.Event().wait)  # which the interpreter would wait for
waits.start()
sys.argv = ["onefold", "retrain", "nowhere", "--data", "new"]
runpy.run_module("onefold.cli", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=here, capture_output=True, timeout=120, check=False)
    assert done.returncode == 2
    assert b"nowhere" in done.stderr


def test_a_deployed_model_is_retrained_on_shifted_data(here: Path) -> None:
    done = alone(here, "retrain", "deploy", "--data", "new", "--memory", "2GB", *QUICK)
    assert done.returncode == 0, done.stderr
    expected = json.loads((here / "deploy" / "model.json").read_text())["retrained"]
    assert expected["after"] > expected["before"]
    assert f"accuracy {expected['before']:.4f} → {expected['after']:.4f}" in done.stdout
    assert "model   deploy" in done.stdout
    assert "report  deploy/retraining.html" in done.stdout
    assert (here / "deploy" / "previous" / "weights.safetensors").is_file()


def test_json_is_the_only_output(here: Path) -> None:
    before = content_of(here / "deploy")
    done = onefold(here, "retrain", "deploy", "--data", "new", *QUICK, "--save", "better", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((here / "better" / "retraining.json").read_text())
    assert content_of(here / "deploy") == before


def test_plan_only_shows_plans_and_changes_nothing(here: Path) -> None:
    before = content_of(here)
    done = onefold(here, "retrain", "deploy", "--data", "new", "--memory", "100GB", "--window", "1h", "--plan-only")
    assert done.returncode == 0, done.stderr
    for word in ("batch", "frozen", "segments", "memory"):
        assert word in done.stdout
    as_json = onefold(here, "retrain", "deploy", "--data", "new", "--memory", "100GB", "--plan-only", "--json")
    assert json.loads(as_json.stdout)
    assert content_of(here) == before


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("nowhere", "--data", "new"), "there is no folder nowhere"),
        (("deploy", "--data", "nothing"), "nothing"),
        (("deploy", "--data", "new", "--memory", "10MB", "--window", "1h"), "retraining this model needs at least"),
        (("deploy", "--data", "new", "--window", "0.01s"), "but the window is 10 ms; set window to"),
        (("deploy", "--data", "new", "--strategy", "best"), "unknown strategy 'best'"),
        (("deploy", "--data", "new", "--rules", "rules.toml"), "rules.toml, line 2: "),
        (("deploy", "--data", "new", "--memory", "plenty"), "got 'plenty'"),
    ],
)
def test_errors_are_one_sentence_and_change_nothing(here: Path, words: tuple[str, ...], why: str) -> None:
    (here / "rules.toml").write_text('[[react]]\nname = 5\nwhen = "loss > 1"\nthen = "finish"\nsay = "so"\n')
    before = content_of(here)
    done = onefold(here, "retrain", *words)
    assert done.returncode == 2, done.stderr
    assert why in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not done.stdout.strip()
    assert content_of(here) == before
