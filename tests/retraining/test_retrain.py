"""Retraining of model folders and of torch modules: what is changed, kept and written."""

from __future__ import annotations

import copy
import gc
import hashlib
import json
import re
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from onefold import Config, Data, RetrainingOptions, datasets, deploy
from onefold.baselines import shifted_datasets
from onefold.model_folder import PREVIOUS, PROFILE, open_folder
from onefold.retraining import model_update
from onefold.retraining.api import _Request, plan_retraining, retrain
from onefold.retraining.offline_profile import OfflineProfile, write_profile
from onefold.retraining.planning_context import learning_key
from onefold.serving.export import difference, export
from onefold.serving.weight_exchange import WeightExchange
from onefold.store.home import Home
from onefold.training.trained_model import load_network
from onefold.training.weights import read_weights, write_weights
from onefold.vocabulary.errors import InputError, ModelError
from onefold.vocabulary.retraining import MemoryLesson, RetrainingSummary
from onefold.workloads.digits import Digits

CONFIG = Config(
    depth=1, filters=4, kernel=3, hidden=16, activation="relu", dropout=0.0,
    batch_size=32, optimizer="adam", lr=3e-3, weight_decay=1e-5,
)  # fmt: skip
# Long enough for a busy machine; a rule ends the retraining as soon as the model is better.
WINDOW = "150s"
ENOUGH = """
[[react]]
name = "seen enough"
when = "best_score > first_score + 0.03 or stalled >= 2"
then = "finish"
say = "enough for the test"
"""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model trained on clean digits."""
    torch.manual_seed(0)
    network = Digits().build(CONFIG)
    images, labels = (torch.from_numpy(part) for part in datasets.digits().train)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(8):
        for places in torch.randperm(len(labels)).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(network(images[places]), labels[places]).backward()
            optimizer.step()
    folder = tmp_path_factory.mktemp("trained")
    write_weights(folder, network.state_dict())
    (folder / "model.json").write_text(json.dumps({"workload": "digits", "trial": 0, "config": dict(CONFIG)}))
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "deploy")


@pytest.fixture(scope="session")
def fog() -> Data:
    return shifted_datasets.corrupted_digits("fog", 4)


@pytest.fixture(scope="session")
def new(fog: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return datasets.write_data(tmp_path_factory.mktemp("new"), fog)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An empty home."""
    return tmp_path / "home"


@pytest.fixture
def quick(empty: Path, tmp_path: Path) -> dict[str, Any]:
    """Arguments of a retraining that ends early."""
    (tmp_path / "enough.toml").write_text(ENOUGH)
    return {"window": WINDOW, "options": RetrainingOptions(rules=tmp_path / "enough.toml", home=empty)}


def network_of(folder: Path) -> nn.Module:
    network = Digits().build(CONFIG)
    network.load_state_dict(read_weights(folder))
    return network.eval()


def content_of(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_deployment_folder_is_updated_in_place_with_a_backup(
    folder: Path, new: Path, fog: Data, quick: dict[str, Any], this_host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(network_of(folder), [fog.train[0][:8]], folder / "model.onnx")
    (folder / "deployment.json").write_text(
        json.dumps({"model": {"study": "digits-1"}, "devices": [], "version": 1, "runtime": "", "host": this_host.name})
    )
    before = content_of(folder)
    monkeypatch.setattr(model_update, "export", None)  # the file gets new weights, without another export

    def on_event(event: object) -> None:
        raise ValueError("an on_event that raises does not end a retraining")

    result = retrain(folder, new, memory="100GB", on_event=on_event, **quick)

    assert result.summary.kept_new
    assert result.folder == folder
    assert result.summary.limits.window_s == 150
    assert not list(folder.glob("*new*"))
    kept = content_of(folder / PREVIOUS)
    for name in ("weights.safetensors", "model.json", "model.onnx", "deployment.json"):
        assert kept[name] == before[name]
        assert content_of(folder)[name] != before[name]
    for name, value in result.network.state_dict().items():
        assert torch.equal(value, network_of(folder).state_dict()[name])

    import onnxruntime

    images = fog.test[0][:50]
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    answers = session.run(None, {session.get_inputs()[0].name: images})[0]
    with torch.no_grad():
        np.testing.assert_allclose(answers, network_of(folder)(torch.from_numpy(images)), atol=1e-4)

    card = json.loads((folder / "model.json").read_text())
    assert card["retrained"]["after"] == result.summary.after > card["retrained"]["before"] == result.summary.before
    assert card["config"] == dict(CONFIG)
    assert json.loads((folder / deploy.DEPLOYMENT).read_text())["model"] == {
        "study": "digits-1", "retrained": card["retrained"],
    }  # fmt: skip
    assert result.report == folder / "retraining.html"
    assert "<html" in result.report.read_text()
    expected = json.loads((folder / "retraining.json").read_text())
    assert result.summary.metric in json.dumps(expected)


def test_a_model_whose_weights_cannot_be_exchanged_is_exported_again(folder: Path, fog: Data) -> None:
    network = network_of(folder)
    export(network, [fog.train[0][:8]], folder / "model.onnx")
    exchange = WeightExchange.of(network, folder / "model.onnx")
    other = network_of(folder)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.5)
    assert difference(other, folder / "model.onnx") > 0.01
    model_update._write_onnx(folder, other, exchange)  # which is that of another network
    assert difference(other, folder / "model.onnx") < 1e-3


def test_a_refused_window_names_one_that_suffices(folder: Path, fog: Data, quick: dict[str, Any]) -> None:
    export(network_of(folder), [fog.train[0][:8]], folder / "model.onnx")
    window, tries = 0.05, 0
    while tries < 4:  # each of which may be refused later than the one before
        try:
            retrain(folder, fog, window=window, options=quick["options"])
            break
        except InputError as refusal:
            named = re.search(r"set window to (\d+)s or more", str(refusal))
            assert named is not None
            window, tries = float(named[1]), tries + 1
    assert 1 <= tries < 4


class EightDigits(Digits):
    """Digits without 8 and 9."""

    def build(self, config: Config) -> nn.Module:
        network = super().build(config)
        network.head[-1] = nn.Linear(config.hidden, 8)  # type: ignore[operator, index]
        return network


def test_a_folder_learns_new_classes_and_opens_again(
    folder: Path, fog: Data, quick: dict[str, Any], this_host: Any
) -> None:
    config, digits = CONFIG, datasets.digits()
    given = EightDigits().build(config).eval()
    export(given, [fog.train[0][:8]], folder / "model.onnx")
    write_weights(folder, given.state_dict())
    old, new = (digits.train[1] < 8), (digits.train[1] >= 8)
    images, labels = digits.train
    (folder / "model.json").write_text(json.dumps({"workload": "digits", "trial": 0, "config": dict(config)}))
    (folder / "kernels.json").write_text("{}")
    np.savez(folder / "reference.npz", inputs=images[old][:80], targets=labels[old][:80])
    result = retrain(folder, Data((images[new], labels[new])), workload=EightDigits(), **quick)
    assert result.summary.kept_new

    card = json.loads((folder / "model.json").read_text())
    assert card["head"] == {"module": "head.3", "classes": 10}
    assert card["config"] == dict(config)
    assert not (folder / "kernels.json").exists()  # of the model with 8 classes
    assert (folder / PREVIOUS / "kernels.json").exists()
    opened = load_network(open_folder(folder), EightDigits())[0]
    assert all(torch.equal(value, result.network.state_dict()[name]) for name, value in opened.state_dict().items())
    assert load_network(open_folder(folder / PREVIOUS), EightDigits())[0].head[-1].out_features == 8

    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    answers = session.run(None, {session.get_inputs()[0].name: images[:9]})[0]
    with torch.no_grad():
        np.testing.assert_allclose(answers, opened(torch.from_numpy(images[:9])), atol=1e-4)
    with np.load(folder / "reference.npz") as reference:
        counts = np.bincount(reference["targets"], minlength=10)
    assert counts[:8].sum() == 80
    assert all(2 <= count <= 10 for count in counts[8:])

    again = retrain(folder, fog, workload=EightDigits(), **quick)  # ten classes are known now
    assert again.summary.grown is None
    assert again.network.head[-1].out_features == 10  # type: ignore[union-attr, index]


def test_a_model_that_does_not_improve_is_unchanged(folder: Path, fog: Data, quick: dict[str, Any]) -> None:
    before = content_of(folder)
    random = np.random.default_rng(0)
    nonsense = (fog.train[0], random.integers(0, 10, len(fog.train[1])))
    with torch.no_grad():  # on its own predictions the model is perfect
        answers = network_of(folder)(torch.from_numpy(fog.validation[0])).argmax(1).numpy()
    result = retrain(folder, Data(nonsense, (fog.validation[0], answers)), **quick)
    assert result.summary.windows
    assert not result.summary.kept_new
    assert before.items() <= content_of(folder).items()
    assert content_of(folder).keys() - before.keys() == {"retraining.html", "retraining.json", "manifest.json"}


def test_saving_elsewhere_keeps_the_source(folder: Path, new: Path, quick: dict[str, Any], tmp_path: Path) -> None:
    before = content_of(folder)
    result = retrain(folder, new, save=tmp_path / "better", **quick)
    assert result.summary.kept_new
    assert content_of(folder) == before
    assert {path.name for path in (tmp_path / "better").iterdir()} == {
        "weights.safetensors", "model.json", "manifest.json", "retraining.html", "retraining.json",
    }  # fmt: skip
    for name, value in result.network.state_dict().items():
        assert torch.equal(value, network_of(tmp_path / "better").state_dict()[name])


def test_saving_to_another_name_of_the_same_folder_is_in_place(
    folder: Path, new: Path, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert retrain(folder.name, new, save=folder, **quick).summary.kept_new
    assert (folder / PREVIOUS / "weights.safetensors").is_file()


def test_memory_measurements_are_stored_for_the_next_time(
    folder: Path, fog: Data, empty: Path, quick: dict[str, Any]
) -> None:
    first = retrain(folder, fog, save=folder.parent / "better", **quick)
    options = quick["options"]
    request = _Request(folder, fog, None, WINDOW, "host", None, None, False, options)
    controller = request.open()
    lessons = controller.job.lessons
    with closing(Home(empty).store()) as store:
        assert list(lessons) == store.lessons(request.machine) != []
    assert first.summary.chosen in {item.plan for item in lessons}
    controller.plan_only()
    assert first.summary.chosen in {
        item.plan for item in controller.runner.profile.lessons
    }  # which correct predictions
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    another = _Request(other, fog, None, WINDOW, "host", None, None, False, options).open()
    assert another.job.lessons == ()


def test_a_profile_in_the_folder_gives_the_first_plan(folder: Path, fog: Data, empty: Path) -> None:
    def request() -> _Request:
        return _Request(folder, fog, None, WINDOW, "host", None, None, False, RetrainingOptions(home=empty))

    cold = request()
    plans = [estimate.plan for estimate in cold.open().plan_only()]
    elsewhere = [
        MemoryLesson("another machine", cold.signature, plan, 10**6, 2 * 10**6, gain)
        for plan, gain in ((plans[0], 0.1), (plans[2], 1.0))
    ]
    write_profile(OfflineProfile(tuple(elsewhere)), folder / PROFILE)
    controller = request().open()
    assert controller.job.lessons == ()  # memory counts on the machine that it was measured on
    warm = [estimate.plan for estimate in controller.plan_only()]
    assert learning_key(warm[0]) == learning_key(plans[2])
    assert learning_key(warm[-1]) == learning_key(plans[0])
    here = [replace(lesson, machine=cold.machine) for lesson in elsewhere]
    write_profile(OfflineProfile(tuple(here)), folder / PROFILE)
    assert request().open().job.lessons == tuple(here)
    (folder / PROFILE).write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        request().open()


def test_planning_changes_nothing(folder: Path, new: Path, empty: Path) -> None:
    before = content_of(folder)
    feasible = plan_retraining(folder, new, memory="100GB", window=WINDOW, options=RetrainingOptions(home=empty))
    assert 1 <= len(feasible.plans) <= 10
    assert feasible.limits.memory_bytes == 100 * 10**9
    assert content_of(folder) == before
    assert not empty.exists()


def test_a_module_is_retrained_on_arrays(folder: Path, fog: Data, quick: dict[str, Any], tmp_path: Path) -> None:
    network = network_of(folder)
    given = copy.deepcopy(network.state_dict())
    result = retrain(network, fog.train, window=WINDOW, options=replace(quick["options"], alpha="auto"))
    assert result.network is network
    assert result.summary.model == "SmallCnn"
    assert result.summary.kept_new
    assert any(not torch.equal(value, given[name]) for name, value in network.state_dict().items())
    assert result.folder is result.report is None
    assert {path.name for path in result.save(tmp_path / "saved").iterdir()} == {
        "weights.safetensors", "manifest.json", "retraining.html", "retraining.json",
    }  # fmt: skip


def test_collections_leave_out_what_was_there_before(folder: Path, fog: Data, quick: dict[str, Any]) -> None:
    frozen: list[int] = []
    gc.unfreeze()  # what the tests have frozen for themselves
    try:
        retrain(network_of(folder), fog.train, on_event=lambda _: frozen.append(gc.get_freeze_count()), **quick)
        assert min(frozen) > 10_000
        assert gc.get_freeze_count() == 0
    finally:
        gc.freeze()


def test_time_to_create_the_store_is_reserved(folder: Path, fog: Data, empty: Path) -> None:
    def reserved(home: Path) -> float:
        request = _Request(
            network_of(folder), fog, None, WINDOW, "host", None, None, False, RetrainingOptions(home=home)
        )
        return request.open().job.lessons_s

    new = reserved(empty)
    Home(empty).store().close()
    assert 0 < reserved(empty) < new


def test_a_regression_minimizes_its_error(quick: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(400, 3)).astype(np.float32)
    result = retrain(nn.Linear(3, 1), (inputs, inputs @ np.float32([[1], [2], [3]])), **quick)
    assert not result.summary.higher_is_better
    assert isinstance(result.summary, RetrainingSummary)
    assert result.summary.after < result.summary.before
    assert result.summary.gain > 0


class Returning(nn.Module):
    """A small network that returns its logits with other outputs."""

    def __init__(self, *, is_tuple: bool) -> None:
        super().__init__()
        self.body, self.logits, self.other = nn.Linear(4, 16), nn.Linear(16, 2), nn.Linear(16, 3)
        self.is_tuple = is_tuple

    def forward(self, x: torch.Tensor) -> Any:
        x = self.body(x).relu()
        logits, other = self.logits(x), self.other(x)
        return (logits, other) if self.is_tuple else {"other": other, "logits": logits}


@pytest.mark.parametrize("is_tuple", [False, True])
def test_a_network_may_return_several_outputs(is_tuple: bool, quick: dict[str, Any]) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(400, 4)
    result = retrain(Returning(is_tuple=is_tuple), (inputs, (inputs[:, 0] > 0).long()), **quick)
    assert result.summary.metric == "accuracy"
    assert result.summary.after > result.summary.before


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (dict(alpha=1.5), 'alpha must be from 0 .* or "auto", got 1.5'),
        (dict(alpha="much"), "got 'much'"),
        (dict(alpha="nan"), "got 'nan'"),
        (dict(memory="500"), "the memory limit is 500 B"),
        (dict(memory=0), "at least one byte"),
        (dict(memory="plenty"), "such as 500MB"),
        (dict(window=0), "longer than zero"),
        (dict(window=float("nan")), "longer than zero"),
        (dict(window="soon"), "such as .* 10m"),
        (dict(optimizer="adamw"), "unknown optimizer 'adamw'"),
        (dict(strategy="onefeld"), "did you mean 'onefold'"),
        (dict(metric="acuracy"), "did you mean 'accuracy'"),
        (dict(device="nothing-like-it"), "nothing-like-it"),
        (dict(rules="nowhere.toml"), "cannot read the rules in nowhere.toml"),
    ],
)
def test_invalid_arguments_are_rejected(
    folder: Path, fog: Data, empty: Path, options: dict[str, Any], why: str
) -> None:
    before = content_of(folder)
    options = dict(options)
    limits = {name: options.pop(name) for name in ("memory", "window", "device") if name in options}
    with pytest.raises(InputError, match=why) as error:
        retrain(folder, fog, **limits, options=RetrainingOptions(home=empty, **options))
    assert "\n" not in str(error.value)
    assert content_of(folder) == before


def test_what_is_no_module_is_rejected(fog: Data) -> None:
    with pytest.raises(InputError, match="expected a torch module or the folder of a model, got a value of type dict"):
        retrain({"0.weight": torch.zeros(2, 2)}, fog)  # type: ignore[arg-type]


def test_other_folders_are_rejected(folder: Path, fog: Data, empty: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    (folder / "weights.safetensors").unlink()  # as in the folder of a compressed variant, which has its ONNX alone
    missing = r"is not a folder of a trained model: it has no .*weights\.safetensors"
    for index, why in (
        (tmp_path / "nothing", missing),
        (tmp_path / "nowhere", "there is no folder"),
        (folder, missing),
    ):
        with pytest.raises(InputError, match=why) as error_info:
            retrain(index, fog, options=RetrainingOptions(home=empty))
        assert "\n" not in str(error_info.value)
