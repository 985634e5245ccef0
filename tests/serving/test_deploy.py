"""Write, read, load and check deployment folders."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from onefold import deploy
from onefold.device import Device, TimingEffort, open_session, runtime
from onefold.model_folder import new_generation
from onefold.serving.deploy import Deployment, DeviceSettings, check, load, read, write
from onefold.serving.export import export
from onefold.serving.model_card import model_card
from onefold.serving.scenario_settings import choose_settings
from onefold.serving.scenarios import parse_scenario
from onefold.serving.space import ServingSpace
from onefold.serving.tuner import ServingTuner
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.records import from_json, to_json
from onefold.vocabulary.serving import LatencySource, ServingPoint

SHORT = TimingEffort(warm_up_runs=1, min_runs=3, max_runs=10, max_seconds=0.01, precision=0.1)
SPACE = ServingSpace((1, 4, 16), (1,), ("all",), ("sequential",))
SCENARIOS = ("single-stream", "offline:40", "multi-stream:6@2")


class Pair(nn.Module):
    """A network with two inputs and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.numbers = nn.Embedding(10, 3), nn.Linear(4, 3)

    def forward(self, words: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.words(words).sum(1), self.numbers(numbers)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).eval()


@pytest.fixture(scope="module")
def slow(this_host: Device) -> Device:
    return replace(this_host, name="slow", title="A slow board", cores=1, gflops=this_host.gflops / 8)


@pytest.fixture(scope="module")
def deployment(
    network: nn.Module, this_host: Device, slow: Device, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Deployment]:
    """A model measured on this machine and emulated on another device."""
    model = export(network, [torch.randn(9, 4)], tmp_path_factory.mktemp("measured") / "some-name.onnx")
    result = []
    for device in (this_host, slow):
        with open_session(device, this_host) as session:
            tuner = ServingTuner(session, SPACE)
            tuner.prepare(model)
            surface = tuner.measure(model, SHORT)
        choices = tuple(choose_settings(parse_scenario(text), surface.served) for text in SCENARIOS)
        result.append(DeviceSettings(device, surface, choices))
    about = {"study": "s-1", "trial": 7, "config": {"width": 16, "lr": 0.0123456789}, "metrics": {"accuracy": 0.91}}
    return model, Deployment(this_host, tuple(result), runtime(), about)


@pytest.fixture(scope="module")
def written(deployment: tuple[Path, Deployment], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("deployed") / "deep" / "deploy", *deployment)


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(written, tmp_path / "deploy"))


class TestWrite:
    def test_folder_is_complete(self, written: Path) -> None:
        listed = {"model.onnx", "model.npz", "deployment.json"}
        assert {path.name for path in written.iterdir()} == {*listed, "README.md", "manifest.json"}
        assert set(json.loads((written / "manifest.json").read_text())["files"]) == listed

    def test_deployment_round_trips(self, written: Path, deployment: tuple[Path, Deployment]) -> None:
        assert read(written) == deployment[1]
        assert from_json(Deployment, json.loads(json.dumps(to_json(deployment[1])))) == deployment[1]

    def test_folder_can_be_overwritten(self, folder: Path, deployment: tuple[Path, Deployment]) -> None:
        before = (folder / "model.onnx").read_bytes()
        write(folder, folder / "model.onnx", replace(deployment[1], model={}))
        assert (folder / "model.onnx").read_bytes() == before
        assert read(folder).model == {}

    def test_model_without_samples(
        self, deployment: tuple[Path, Deployment], tmp_path: Path, this_host: Device
    ) -> None:
        shutil.copyfile(deployment[0], tmp_path / "alone.onnx")
        result = write(tmp_path / "deploy", tmp_path / "alone.onnx", deployment[1])
        assert not (result / "model.npz").exists()
        assert check(result, this_host, "host", SHORT)

    def test_model_card_names_sources(self, deployment: tuple[Path, Deployment]) -> None:
        text = model_card(deployment[1])
        assert "study s-1, trial 7" in text
        assert "| lr | 0.01235 |" in text
        assert "| accuracy | 0.91 |" in text
        for on in deployment[1].devices:
            assert f"(`{on.device.name}`)" in text
            for choice in on.choices:
                row = next(line for line in text.splitlines() if line.startswith(f"| {choice.scenario} |") and
                           line.endswith(f"| {on.expected(choice.point).source_text} |"))  # fmt: skip
                assert f"| {choice.point.batch_size} | {choice.point.threads} |" in row
                assert f"- {choice.scenario}: {choice.why}" in text
        assert "`emulated`" in text

    def test_model_card_without_a_study(self, deployment: tuple[Path, Deployment]) -> None:
        assert "Tuned by Onefold" not in model_card(replace(deployment[1], model={"file": "x.onnx"}))


class TestExpected:
    def test_measured_points_are_returned_unchanged(self, deployment: tuple[Path, Deployment]) -> None:
        on = deployment[1].on("host")
        for served in on.surface.served:
            assert on.expected(served.point) == served

    def test_whole_query_in_one_batch_is_predicted(self, deployment: tuple[Path, Deployment]) -> None:
        on = deployment[1].on("slow")
        result = on.expected(ServingPoint(6))
        assert result.source is LatencySource.PREDICTED
        neighbors = sorted(on.expected(ServingPoint(size)).latency_s for size in (4, 16))
        assert neighbors[0] <= result.latency_s <= neighbors[1]

    def test_unknown_point_is_an_error(self, deployment: tuple[Path, Deployment]) -> None:
        with pytest.raises(ModelError, match="no measurement on host at batch 99"):
            deployment[1].on("host").expected(ServingPoint(99))

    def test_lookup_by_device_and_scenario(self, deployment: tuple[Path, Deployment]) -> None:
        assert deployment[1].on().device.name == "host"
        assert deployment[1].on("slow").choice("offline:40").scenario == "offline:40"
        with pytest.raises(ModelError, match="unknown device 'slwo' of the deployment; did you mean 'slow'"):
            deployment[1].on("slwo")
        with pytest.raises(ModelError, match="unknown scenario 'single' of the deployment"):
            deployment[1].on().choice("single")


class TestServedModel:
    @pytest.mark.parametrize("scenario", [None, *SCENARIOS])
    @pytest.mark.parametrize("count", [1, 5, 37])
    def test_outputs_agree_with_pytorch(
        self, scenario: str | None, count: int, written: Path, network: nn.Module
    ) -> None:
        inputs = np.random.default_rng(count).standard_normal((count, 4)).astype("f4")
        with torch.no_grad():
            wanted = network(torch.as_tensor(inputs)).numpy()
        assert load(written, scenario=scenario)(inputs) == pytest.approx(wanted, abs=1e-5)

    def test_recommended_settings_are_used(self, written: Path) -> None:
        for device in ("host", "slow"):
            for text in SCENARIOS:
                assert load(written, device, text).point == read(written).on(device).choice(text).point
        assert load(written).point == read(written).on("host").choice("single-stream").point

    def test_batches_have_the_recommended_size(self, written: Path) -> None:
        served = deploy.ServedModel(written / "model.onnx", ServingPoint(batch_size=4))
        sizes: list[int] = []
        run = served.model.run

        def noted(arrays: list[np.ndarray]) -> object:
            sizes.append(len(arrays[0]))
            return run(arrays)

        served.model.run = noted
        assert served(np.zeros((10, 4), "f4")).shape == (10, 3)
        assert sizes == [4, 4, 2]

    def test_empty_input_gives_empty_output(self, written: Path) -> None:
        assert load(written)(np.zeros((0, 4), "f4")).shape == (0, 3)

    def test_lists_and_other_precisions_are_converted(self, written: Path) -> None:
        served = load(written)
        rows = [[0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4]]
        wanted = served(np.array(rows, "f4"))
        assert served(rows) == pytest.approx(wanted)
        assert served(np.array(rows)) == pytest.approx(wanted)
        assert served(torch.tensor(rows)) == pytest.approx(wanted)

    def test_several_inputs_and_outputs(self, tmp_path: Path) -> None:
        network = Pair().eval()
        words, numbers = np.arange(21).reshape(7, 3) % 10, np.ones((7, 4), "f4")
        path = export(network, [words, numbers], tmp_path / "pair.onnx")
        served = deploy.ServedModel(path, ServingPoint(batch_size=2))
        with torch.no_grad():
            wanted = [each.numpy() for each in network(torch.as_tensor(words), torch.as_tensor(numbers))]
        result = served(words, numbers)
        assert [each.shape for each in result] == [(7, 3), (7, 3)]
        for candidate, other in zip(result, wanted):
            assert candidate == pytest.approx(other, abs=1e-5)
        with pytest.raises(ModelError, match="takes 2 inputs"):
            served(words)
        with pytest.raises(ModelError, match="different numbers of samples"):
            served(words, numbers[:3])
        with pytest.raises(ModelError, match="input0"):
            served(words + 0.5, numbers)  # word numbers are whole

    def test_wrong_shape_names_the_expected_one(self, written: Path) -> None:
        with pytest.raises(ModelError, match=r"the model takes input0 float32 \[batch, 4\], the batch first"):
            load(written)(np.zeros((2, 5), "f4"))


class TestCheck:
    @pytest.fixture(autouse=True)
    def briefly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deploy, "LOAD_TEST_S", 0.05)

    def test_check_compares_measured_with_expected(self, written: Path, this_host: Device) -> None:
        rows = check(written, this_host, effort=SHORT)
        assert [(row.device, row.scenario) for row in rows] == [(d, s) for d in ("host", "slow") for s in SCENARIOS]
        for row in rows:
            assert row.measured is not None
            assert row.measured.point == row.expected.point
            assert row.ratio == row.measured.latency_s / row.expected.latency_s
        assert {row.measured.source.is_from_device for row in rows if row.measured} == {True, False}

    def test_load_test_runs_on_this_machine_only(self, written: Path, this_host: Device) -> None:
        rows = check(written, this_host, effort=SHORT)
        choices = {(on.device.name, choice.scenario): choice for on in read(written).devices for choice in on.choices}
        for row in rows:
            assert row.predicted == choices[row.device, row.scenario].predicted
            assert (row.response is None) == (row.device == "slow")
            if row.response is not None:
                assert row.response.queries >= 1
                assert 0 < row.response.p50_s <= row.response.p99_s

    def test_check_of_one_device(self, written: Path, this_host: Device) -> None:
        assert {row.device for row in check(written, this_host, "slow", SHORT)} == {"slow"}

    def test_check_says_which_points_have_too_many_threads(
        self, folder: Path, deployment: tuple[Path, Deployment], this_host: Device, slow: Device
    ) -> None:
        on = deployment[1].on("slow")
        wide = replace(on.surface.served[0], point=ServingPoint(1, 4096), source=LatencySource.PREDICTED)
        choice = replace(on.choices[0], point=wide.point)
        surface = replace(on.surface, served=(*on.surface.served, wide))
        large = DeviceSettings(replace(slow, cores=4096), surface, (choice, on.choices[1]))
        write(folder, folder / "model.onnx", replace(deployment[1], devices=(large,)))
        wide_row, other = check(folder, this_host, effort=SHORT)
        assert (wide_row.measured, wide_row.ratio, wide_row.response) == (None, None, None)
        assert re.fullmatch(r"needs 4096 threads, but only \d+ can be measured here", wide_row.unchecked)
        assert (other.scenario, other.unchecked) == ("offline:40", "")


class TestErrors:
    def test_not_a_deployment_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"is not a deployment folder: it has no deployment.json; save the result"):
            load(tmp_path)

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"host": 3}', "null"])
    def test_invalid_deployment_file(self, text: str, folder: Path) -> None:
        with new_generation(folder, update=True) as new:
            (new / "deployment.json").write_text(text)
        with pytest.raises(ModelError, match=r"deployment\.json cannot be read"):
            read(folder)

    @pytest.mark.parametrize(
        ("values", "problem"),
        [
            ({"threads": 10**6}, "1 to 1024 threads"),
            ({"threads": -1}, "1 to 1024 threads"),
            ({"graph_level": "__class__"}, "unknown graph level"),
            ({"batch_size": 0}, "1 to 1,000,000 samples"),
            ({"batch_size": 10**12}, "1 to 1,000,000 samples"),
        ],
    )
    def test_settings_that_no_session_can_have(self, values: dict[str, Any], problem: str, folder: Path) -> None:
        with new_generation(folder, update=True) as new:
            content = json.loads((new / "deployment.json").read_text())
            for choice in content["devices"][0]["choices"]:
                choice["point"].update(values)
            (new / "deployment.json").write_text(json.dumps(content))
        with pytest.raises(ModelError, match=problem):
            load(folder)

    def test_a_device_without_scenarios(self, folder: Path) -> None:
        with new_generation(folder, update=True) as new:
            content = json.loads((new / "deployment.json").read_text())
            content["devices"][0]["choices"] = []
            (new / "deployment.json").write_text(json.dumps(content))
        with pytest.raises(ModelError, match=r"it has no scenario for .*; measure the model again"):
            load(folder)

    def test_deployment_of_a_newer_version(self, folder: Path) -> None:
        content = json.loads((folder / "deployment.json").read_text())
        with new_generation(folder, update=True) as new:
            (new / "deployment.json").write_text(json.dumps({**content, "version": deploy.VERSION + 1}))
        with pytest.raises(ModelError, match=r"newer Onefold.*upgrade onefold"):
            read(folder)

    def test_deployment_of_an_older_version(self, folder: Path) -> None:
        settings = read(folder)
        content = json.loads((folder / "deployment.json").read_text().replace('"utilization"', '"utilisation"'))
        with new_generation(folder, update=True) as new:
            (new / "deployment.json").write_text(json.dumps({**content, "version": 2}))
        assert read(folder) == settings

    def test_missing_or_invalid_model(self, folder: Path) -> None:
        with new_generation(folder, update=True) as new:
            (new / "model.onnx").write_bytes(b"no model")
        with pytest.raises(ModelError, match="cannot be served"):
            load(folder)
        (folder / "model.onnx").unlink()
        with pytest.raises(ModelError, match=r"has no model\.onnx, which its manifest\.json lists"):
            load(folder)

    def test_unknown_devices_and_scenarios(self, written: Path, this_host: Device) -> None:
        with pytest.raises(ModelError, match="did you mean 'host'"):
            load(written, "hots")
        with pytest.raises(ModelError, match="did you mean 'offline:40'"):
            load(written, scenario="offline")
        with pytest.raises(ModelError, match="did you mean 'slow'"):
            check(written, this_host, "slov")
