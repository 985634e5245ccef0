"""The memory limit of the real command, measured from outside over all its processes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import process_tree
import pytest
import torch
from torch import nn

from onefold import Data, datasets
from onefold.model_folder import new_generation
from onefold.serving.export import export
from onefold.training.weights import write_weights

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured in /proc")
WORKLOAD = '''
from torch import nn
from onefold import Space, Workload


class Wide(Workload):
    """A perceptron whose weights take 34 MB."""

    space = Space()

    def build(self, config):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(3072, 2048), nn.ReLU(), nn.Linear(2048, 1000), nn.ReLU(), nn.Linear(1000, 10)
        )
'''
ENOUGH = '[[react]]\nname = "enough"\nwhen = "elapsed_s > 0"\nthen = "finish"\nsay = "enough for the test"\n'
MORE_BYTES = 2_000_000  # above the least memory


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wide network, the same as a served one, new data, and rules that end a retraining early."""
    folder = tmp_path_factory.mktemp("wide")
    (folder / "wide.py").write_text(WORKLOAD)
    (folder / "enough.toml").write_text(ENOUGH)
    rng = np.random.default_rng(0)
    labels = rng.integers(10, size=300)
    patterns = rng.normal(size=(10, 3, 32, 32))
    images = (patterns[labels] + rng.normal(size=(300, 3, 32, 32))).astype(np.float32)
    datasets.write_data(folder / "new", Data((images, labels)))
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 2048), nn.ReLU(), nn.Linear(2048, 1000), nn.ReLU(), nn.Linear(1000, 10)
    )
    for name in ("plain", "served"):
        with new_generation(folder / name, home=folder / "home") as new:
            write_weights(new, network.state_dict())
            (new / "model.json").write_text(json.dumps({"workload": f"{folder}/wide.py:Wide", "config": {}}))
            if name == "served":
                export(network, [images[:8]], new / "model.onnx")
    return folder


def retrain(here: Path, model: str, *words: str) -> process_tree.Ended:
    command = [sys.executable, "-m", "onefold.cli", "retrain", str(here / model), "--data", str(here / "new")]
    command += ["--home", str(here / "home"), "--rules", str(here / "enough.toml"), "--window", "3000s", "--json"]
    return process_tree.run([*command, *words], environment={"OMP_NUM_THREADS": "1"})


def least_bytes(here: Path, model: str) -> int:
    refused = retrain(here, model, "--memory", "1MB", "--plan-only")
    told = re.search(r"Set memory to (\d+)MiB", " ".join(refused.errors.split()))
    assert told is not None, refused.errors
    return int(told[1]) * 2**20


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("plain", ()),
        pytest.param("served", (), marks=pytest.mark.slow),
        pytest.param("plain", ("--alpha", "auto"), marks=pytest.mark.slow),
    ],
)
def test_the_limit_is_kept_until_the_model_is_saved(
    here: Path, tmp_path: Path, model: str, words: tuple[str, ...]
) -> None:
    limit = least_bytes(here, model) + MORE_BYTES
    ended = retrain(here, model, "--memory", str(limit), "--save", str(tmp_path / "better"), *words)
    assert ended.status == 0, ended.errors
    report = json.loads(ended.output)
    assert report["windows"]
    assert report["kept_new"]
    assert ended.peak_bytes <= limit
    assert report["peak_bytes"] == pytest.approx(ended.peak_bytes, rel=0.03)
    if model == "served":
        assert (tmp_path / "better" / "model.onnx").stat().st_mtime > (here / "served" / "model.onnx").stat().st_mtime
