"""Entry points on a stranger's folder: no code runs, no file outside is read or changed, no memory without bound."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attacks import ATTACKS, EVIL, SECRET, Attack, library

import onefold
from onefold import CompressOptions, Config, Recipe, RetrainingOptions, datasets, deploy
from onefold.device import Device
from onefold.kernels.kernel_library import LibraryFiles, LibraryManifest, write_library
from onefold.kernels.source_models import load_models
from onefold.meter.memory import high_water_bytes, reset_high_water
from onefold.model_folder import new_generation, open_folder
from onefold.retraining.api import plan_retraining
from onefold.serving.export import export
from onefold.training.trained_model import load_network
from onefold.training.weights import write_weights
from onefold.vocabulary.errors import OnefoldError, UntrustedFolder
from onefold.vocabulary.kernels import RuntimeLatency
from onefold.workloads.digits import Digits

MAX_GROWTH_BYTES = 1.5e9
CONFIG = Config(Digits().space.complete({"filters": 4, "depth": 1}))
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="builds a hostile library with cc")


@pytest.fixture(scope="session")
def valid(deployed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid folder with everything that a model folder may hold, written by another home."""
    parent = tmp_path_factory.mktemp("stranger")
    network = Digits().build(CONFIG)
    sample = torch.from_numpy(datasets.digits().train[0][:8])
    latencies = (RuntimeLatency("tvm", 1e-6, 1), RuntimeLatency("onnxruntime", 2e-6, 1))
    manifest = LibraryManifest("host", "this processor", 1, 1, {"input0": "float32"}, latencies, "tvm")
    native = parent / "kernels.so"
    native.write_bytes(b"not a library")
    with new_generation(parent / "model", home=parent / "home") as new:
        write_weights(new, network.state_dict())
        (new / "model.json").write_text(json.dumps({"workload": "digits", "trial": 0, "config": dict(CONFIG)}))
        deploy.write_files(new, export(network, [sample], new / "model.onnx"), deploy.read(deployed))
        write_library(new, LibraryFiles(native), manifest)
    return parent / "model"


@pytest.fixture
def stranger(valid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path / "home"))
    return shutil.copytree(valid, tmp_path / "model")


def check_deployment(folder: Path, host: Device) -> None:
    from onefold.device import QUICK

    deploy.check(folder, host, effort=QUICK)


def compress(folder: Path, _: Device) -> None:
    options = CompressOptions(epochs=1)
    onefold.compress(folder, Recipe(precision="int8-dynamic"), options=options, save=folder.parent / "saved")


def compress_onnx(folder: Path, _: Device) -> None:
    onefold.compress(folder / "model.onnx", Recipe(precision="int8-dynamic"), save=folder.parent / "saved")


def load_to_compile(folder: Path, _: Device) -> None:
    (folder.parent / "temporary").mkdir()
    load_models([folder], None, folder.parent / "temporary", None)


def plan(folder: Path, _: Device) -> None:
    plan_retraining(folder, datasets.digits(), memory="100GB", window="1h", options=RetrainingOptions())


ENTRY_POINTS: dict[str, Callable[[Path, Device], Any]] = {
    "open": lambda folder, _: open_folder(folder),
    "read": lambda folder, _: deploy.read(folder),
    "load": lambda folder, _: deploy.load(folder),
    "load tvm": lambda folder, _: deploy.load(folder, runtime="tvm"),
    "load onnxruntime": lambda folder, _: deploy.load(folder, runtime="onnxruntime"),
    "compile": load_to_compile,
    "plan": plan,
}
SLOW_ENTRY_POINTS = {"check": check_deployment, "compress": compress, "compress ONNX": compress_onnx}
CONCERN_PLANS = ("weights", "workload", "pickle", "torch", "json", "commit", "manifest")


def case(entry: str, change: str) -> Any:
    is_slow = entry in SLOW_ENTRY_POINTS or (entry == "plan" and not any(word in change for word in CONCERN_PLANS))
    act = {**ENTRY_POINTS, **SLOW_ENTRY_POINTS}[entry]
    return pytest.param(act, ATTACKS[change], id=f"{entry}-{change}", marks=[pytest.mark.slow] if is_slow else [])


CASES = [case(entry, change) for entry in (*ENTRY_POINTS, *SLOW_ENTRY_POINTS) for change in ATTACKS]


@pytest.mark.parametrize(("act", "change"), CASES)
def test_nothing_of_a_stranger_runs(
    act: Callable[[Path, Device], Any],
    change: Attack,
    stranger: Path,
    this_host: Device,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    marker = tmp_path / "marker"
    change(stranger, marker)
    record_property("kind", change.kind)
    outside = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    reset_high_water()  # an earlier test may have needed more
    before_bytes = high_water_bytes() or 0
    try:
        act(stranger, this_host)
        record_property("outcome", "without effect")
    except OnefoldError as error:
        record_property("outcome", "refused")
        assert len(str(error)) < 2000  # noqa: PT017 - an attack may also be without effect on this entry point
    assert not marker.exists()
    assert {path: path.read_bytes() for path in outside} == outside
    saved = [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]
    assert not any(SECRET[:64] in path.read_bytes() for path in saved)
    assert (high_water_bytes() or 0) - before_bytes < MAX_GROWTH_BYTES


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 200


def test_what_a_stranger_adds_to_a_folder_of_this_home_does_not_run(
    stranger: Path, tmp_path: Path, this_host: Device
) -> None:
    marker, folder = tmp_path / "marker", tmp_path / "measured"
    with new_generation(folder) as new:  # without a workload, as onefold.measure writes it
        for name in ("model.onnx", "deployment.json"):
            shutil.copy(stranger / name, new)
    assert open_folder(folder).is_trusted
    ATTACKS["workload_in_the_folder"](stranger, marker)
    for name in ("model.json", "weights.safetensors"):
        shutil.copy(stranger / name, folder)
    with pytest.raises(OnefoldError, match="was added after the folder was written"):
        plan(folder, this_host)
    assert not marker.exists()


@pytest.mark.parametrize("values", [{"filters": 10**9}, {"depth": 10**9}, {"hidden": "all"}], ids=str)
def test_a_configuration_outside_of_the_space_is_refused_before_it_is_built(
    stranger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    edit_configuration(stranger, values)
    monkeypatch.setattr(Digits, "build", lambda *_: (tmp_path / "marker").touch())
    folder = open_folder(stranger)
    with pytest.raises(OnefoldError, match=r"which is not in the space of its workload .* trust=True"):
        load_network(folder)
    assert not (tmp_path / "marker").exists()
    with pytest.raises(OnefoldError):
        load_network(open_folder(stranger, trust=True))
    assert (tmp_path / "marker").exists()


def edit_configuration(folder: Path, values: dict[str, Any]) -> None:
    (folder / "manifest.json").unlink()
    card = json.loads((folder / "model.json").read_text())
    card["config"] |= values
    (folder / "model.json").write_text(json.dumps(card))


# The attacks are real: they succeed with a careless reader, and with trust, their code runs.


@pytest.mark.parametrize("change", ATTACKS.values(), ids=ATTACKS)
def test_an_attack_succeeds_with_a_careless_reader(change: Attack, stranger: Path, tmp_path: Path) -> None:
    change(stranger, tmp_path / "marker")
    assert not (tmp_path / "marker").exists()
    assert change.succeeds(stranger, tmp_path / "marker")


def test_a_trusted_library_is_loaded(stranger: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    ATTACKS["native_library"](stranger, marker)
    with pytest.raises(OnefoldError):  # it is no model of TVM
        deploy.load(stranger, runtime="tvm", trust=True)
    assert marker.exists()


def test_a_trusted_workload_is_imported(stranger: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    ATTACKS["workload_in_the_folder"](stranger, marker)
    arguments: dict[str, Any] = {"memory": "100GB", "window": "1h"}
    with pytest.raises(UntrustedFolder, match=r"its workload .*evil\.py:W' would run code"):
        plan_retraining(stranger, datasets.digits(), **arguments)
    assert not marker.exists()
    assert plan_retraining(stranger, datasets.digits(), trust=True, **arguments).plans
    assert marker.exists()


def test_the_workload_may_be_given_instead(stranger: Path, tmp_path: Path) -> None:
    ATTACKS["workload_in_the_folder"](stranger, tmp_path / "marker")
    assert plan_retraining(stranger, datasets.digits(), workload=Digits(), memory="100GB", window="1h").plans
    assert not (tmp_path / "marker").exists()


def test_updating_a_strangers_folder_does_not_make_it_trusted(stranger: Path, tmp_path: Path) -> None:
    shutil.copy(library(stranger, tmp_path / "marker"), stranger / "kernels.so")
    (stranger / "manifest.json").unlink()
    folder = open_folder(stranger)
    with new_generation(stranger, update=True, record=folder.is_trusted) as new:
        (new / "model.json").write_text(EVIL)
    with pytest.raises(UntrustedFolder):
        deploy.load(stranger, runtime="tvm")
    assert not (tmp_path / "marker").exists()
