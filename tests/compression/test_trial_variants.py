"""Variants of trained trials are built once, recorded, and built again when something has changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from onefold.compression import trial_variants
from onefold.compression.trial_variants import TrialVariants, VariantRequest
from onefold.device import Device
from onefold.device.host import find_device
from onefold.engine import Call, InlineEngine, Setup
from onefold.store.locks import FileLocks
from onefold.training import calls
from onefold.vocabulary.variants import Recipe, Variant

PLAIN, INT8 = Recipe(), Recipe(precision="int8")


class CountingEngine(InlineEngine):
    """Count the calls that are started."""

    calls = 0

    def start(self, call: Call) -> int:
        self.calls += 1
        return super().start(call)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountingEngine]:
    setup = Setup(calls.open_workload, ("digits", str(tmp_path_factory.mktemp("worker")), "cpu"))
    with pytest.MonkeyPatch.context() as patch, CountingEngine(setup) as counting:
        patch.setattr(trial_variants, "TIMING_ROUNDS", 1)
        yield counting


@pytest.fixture(scope="module")
def requests(trained_trials: list[Any]) -> list[VariantRequest]:
    return [
        VariantRequest(number, trial.config, str(trial.weights), (INT8,)) for number, trial in enumerate(trained_trials)
    ]


def builder_in(folder: Path, engine: CountingEngine, host: Device, **options: Any) -> TrialVariants:
    return TrialVariants(engine, host, host, FileLocks(folder).measurement, folder / "variants", **options)


class Built:
    """The variants of both trials."""

    def __init__(self, folder: Path, engine: CountingEngine, host: Device, requests: list[VariantRequest]) -> None:
        self.folder, self.engine, self.host = folder, engine, host
        self.progress: list[tuple[int, int]] = []
        with self.builder(on_progress=lambda done, total: self.progress.append((done, total))) as builder:
            self.variants = builder.build(requests)
        assert not builder.failures

    def builder(self, **options: Any) -> TrialVariants:
        return builder_in(self.folder, self.engine, self.host, keep_files=True, **options)


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, engine: CountingEngine, this_host: Device, requests: list[VariantRequest]
) -> Built:
    return Built(tmp_path_factory.mktemp("built"), engine, this_host, requests)


def test_each_trial_has_its_plain_model_and_one_variant_per_recipe(built: Built) -> None:
    assert list(built.variants) == [0, 1]
    for plain, int8 in built.variants.values():
        assert (plain.recipe, int8.recipe) == (PLAIN, INT8)
        assert int8.size_bytes < plain.size_bytes
        for variant in (plain, int8):
            assert variant.metrics["accuracy"] > 0.4
            assert variant.latency_s > 0
            assert variant.source.is_from_device
    assert built.variants[0][0].flops < built.variants[1][0].flops
    assert built.progress == [(0, 2), (1, 2), (2, 2)]


def test_a_control_is_trained_as_long_as_the_pruned_variant(
    built: Built, requests: list[VariantRequest], tmp_path: Path
) -> None:
    pruned = Recipe(sparsity=0.95, precision="int8")
    request = replace(requests[0], recipes=(pruned, INT8), epochs=2, control=True)
    with builder_in(tmp_path, built.engine, built.host) as builder:
        plain, sparse, int8 = builder.build([request])[0]
    assert (plain.control, int8.control) == ({}, {})  # neither is trained further
    assert sparse.zeros > 0.9
    assert sparse.control["accuracy"] > plain.metrics["accuracy"]  # more epochs help a model trained for few
    assert sparse.control["accuracy"] > sparse.metrics["accuracy"]
    assert built.variants[0][1].control == {}


def test_plain_models_can_be_measured_on_another_device(
    built: Built, requests: list[VariantRequest], tmp_path: Path
) -> None:
    server = find_device("raspberry-pi-4", tmp_path)
    with builder_in(tmp_path, built.engine, built.host, plain_device=server) as builder:
        plain, int8 = builder.build(requests[:1])[0]
    assert not plain.source.is_from_device
    assert int8.source.is_from_device


def test_recorded_variants_are_not_built_again(built: Built, requests: list[VariantRequest]) -> None:
    records = sorted((built.folder / "variants").glob("*.json"))
    assert [record.name for record in records] == ["00000.json", "00001.json"]
    content, before = [record.read_text() for record in records], built.engine.calls
    with built.builder() as builder:
        assert builder.build(requests[::-1]) == built.variants
        assert list(builder.build(requests[1:])) == [1]
    assert built.engine.calls == before
    assert [record.read_text() for record in records] == content


def test_variants_are_built_again_when_the_request_or_the_weights_change(
    built: Built, requests: list[VariantRequest], tmp_path: Path
) -> None:
    shutil.copytree(built.folder / "variants", tmp_path / "variants")
    moved_weights = tmp_path / "elsewhere.pt"
    shutil.copyfile(requests[0].weights, moved_weights)
    before = built.engine.calls
    with builder_in(tmp_path, built.engine, built.host) as builder:

        def build(request: VariantRequest) -> tuple[int, tuple[Variant, ...]]:
            calls = built.engine.calls
            variants = builder.build([request])[0]
            return built.engine.calls - calls, variants

        moved = replace(requests[0], weights=str(moved_weights))
        assert build(moved) == (0, built.variants[0])  # the same weights in another file
        fewer = replace(moved, recipes=())
        count, (plain,) = build(fewer)
        assert count == 1
        assert plain.metrics == built.variants[0][0].metrics
        assert not (tmp_path / "variants" / "00000").exists()  # keep_files is off
        weights = torch.load(moved_weights, weights_only=True)
        weights["model"]["head.3.bias"] += torch.tensor([100.0] + [0.0] * 9)  # every prediction becomes class 0
        torch.save(weights, moved_weights)
        count, (constant,) = build(fewer)
        assert count == 1
        assert constant.metrics["accuracy"] < 0.2
        assert build(fewer) == (0, (constant,))
    assert built.engine.calls == before + 2


def test_a_trial_whose_weights_do_not_fit_fails_alone(
    built: Built, requests: list[VariantRequest], tmp_path: Path
) -> None:
    shutil.copytree(built.folder / "variants", tmp_path / "variants")
    wrong = replace(requests[1], trial=7, weights=requests[0].weights)
    progress: list[tuple[int, int]] = []
    with builder_in(
        tmp_path, built.engine, built.host, on_progress=lambda done, total: progress.append((done, total))
    ) as builder:
        assert builder.build([wrong, *requests]) == built.variants
        assert list(builder.failures) == [7]
        assert "loading state_dict" in builder.failures[7]
    assert progress[-1] == (3, 3)
    assert not (tmp_path / "variants" / "00007.json").exists()


def test_a_cleared_model_file_is_built_again(built: Built, requests: list[VariantRequest], tmp_path: Path) -> None:
    shutil.copytree(built.folder / "variants", tmp_path / "variants")
    with builder_in(tmp_path, built.engine, built.host, keep_files=True) as builder:
        before = built.engine.calls
        path = builder.file(requests[0], INT8)
        assert built.engine.calls == before + 1
        assert path.stat().st_size == built.variants[0][1].size_bytes
        assert builder.file(requests[0], PLAIN).stat().st_size == built.variants[0][0].size_bytes
        variants = builder.build(requests)
        builder.clear()
        assert not path.exists()
        assert sorted(file.name for file in (tmp_path / "variants").iterdir()) == ["00000.json", "00001.json"]
        assert builder.build(requests) == variants
        assert built.engine.calls == before + 1


@pytest.mark.parametrize("content", ["", "[]", '{"order": "another digest"}'])
def test_an_unusable_record_is_ignored(
    built: Built, requests: list[VariantRequest], tmp_path: Path, content: str
) -> None:
    (tmp_path / "variants").mkdir()
    (tmp_path / "variants" / "00001.json").write_text(content)
    record = json.loads((built.folder / "variants" / "00001.json").read_text())
    assert set(record) == {"order", "variants", "files"}
    wrong = replace(requests[1], weights=requests[0].weights)  # fails at once, which shows that it was attempted
    with builder_in(tmp_path, built.engine, built.host) as builder:
        assert builder.build([wrong]) == {}
        assert list(builder.failures) == [1]
