"""Trained trials in several forms: made once, remembered, and made again when something is new."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from onefold.compression.trial_variants import TrialVariants, VariantRequest
from onefold.device import Device
from onefold.engine import Call, InlineEngine, Setup
from onefold.store.locks import FileLocks
from onefold.training import calls
from onefold.training.assignment import Assignment
from onefold.training.trial_files import rung_weights_file
from onefold.training.workload_trainer import WorkloadTrainer
from onefold.vocabulary.records import Grant
from onefold.vocabulary.serving import LatencySource
from onefold.vocabulary.variants import Recipe, Variant
from onefold.vocabulary.workload_reference import load

PLAIN, INT8 = Recipe(), Recipe(precision="int8")


class Counting(InlineEngine):
    """Counts the calls that it is given."""

    calls = 0

    def start(self, call: Call) -> int:
        self.calls += 1
        return super().start(call)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counting]:
    counting = Counting(Setup(calls.open_workload, ("digits", str(tmp_path_factory.mktemp("worker")), "cpu")))
    with counting:
        yield counting


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> list[VariantRequest]:
    """Two trials of different sizes, trained a little."""
    workload, folder = load("digits"), tmp_path_factory.mktemp("study")
    trainer, found = WorkloadTrainer(workload, folder), []
    for trial, filters in enumerate((4, 8)):
        config = workload.space.complete({"filters": filters, "depth": 1})
        work = Assignment(
            trial, 0, config, Grant(1, 1, 0.3), seed=1, threads=1, max_epochs=1,
            objective=workload.objective,
        )  # fmt: skip
        assert len(list(trainer.train([work], tick=lambda: None))) == 1
        found.append(VariantRequest(trial, config, str(rung_weights_file(folder, trial, 0)), (INT8,)))
    return found


def forms_in(folder: Path, engine: Counting, host: Device, **options: Any) -> TrialVariants:
    return TrialVariants(engine, host, host, FileLocks(folder).measurement, folder / "forms", **options)


class Made:
    """The forms of both trials, with their files kept."""

    def __init__(self, folder: Path, engine: Counting, host: Device, orders: list[VariantRequest]) -> None:
        self.folder, self.engine, self.host = folder, engine, host
        self.told: list[tuple[int, int]] = []
        with self.forms(tell=lambda done, of: self.told.append((done, of))) as forms:
            self.found = forms.of(orders)
        assert not forms.failures

    def forms(self, **options: Any) -> TrialVariants:
        return forms_in(self.folder, self.engine, self.host, keep=True, **options)


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, engine: Counting, this_host: Device, orders: list[VariantRequest]
) -> Made:
    return Made(tmp_path_factory.mktemp("made"), engine, this_host, orders)


def test_each_trial_has_its_plain_form_and_one_for_each_recipe(made: Made) -> None:
    assert list(made.found) == [0, 1]
    for plain, int8 in made.found.values():
        assert (plain.recipe, int8.recipe) == (PLAIN, INT8)
        assert int8.size_bytes < plain.size_bytes
        for variant in (plain, int8):
            assert variant.metrics["accuracy"] > 0.4
            assert variant.latency_s > 0
            assert variant.source is LatencySource.MEASURED
    assert made.found[0][0].flops < made.found[1][0].flops
    assert made.told == [(0, 2), (1, 2), (2, 2)]


def test_what_is_known_is_recalled_and_nothing_is_made_again(made: Made, orders: list[VariantRequest]) -> None:
    notes = sorted((made.folder / "forms").glob("*.json"))
    assert [note.name for note in notes] == ["00000.json", "00001.json"]
    times, before = [note.stat().st_mtime_ns for note in notes], made.engine.calls
    with made.forms() as forms:
        assert forms.of(orders[::-1]) == made.found
        assert list(forms.of(orders[1:])) == [1]
    assert made.engine.calls == before
    assert [note.stat().st_mtime_ns for note in notes] == times


def test_forms_are_made_again_when_something_is_new(made: Made, orders: list[VariantRequest], tmp_path: Path) -> None:
    shutil.copytree(made.folder / "forms", tmp_path / "forms")
    elsewhere = tmp_path / "elsewhere.pt"
    shutil.copyfile(orders[0].weights, elsewhere)
    before = made.engine.calls
    with forms_in(tmp_path, made.engine, made.host) as forms:

        def asked_for(order: VariantRequest) -> tuple[int, tuple[Variant, ...]]:
            calls = made.engine.calls
            found = forms.of([order])[0]
            return made.engine.calls - calls, found

        moved = replace(orders[0], weights=str(elsewhere))
        assert asked_for(moved) == (0, made.found[0])  # the same weights in another place
        fewer = replace(moved, recipes=())
        count, (plain,) = asked_for(fewer)
        assert count == 1
        assert plain.metrics == made.found[0][0].metrics
        assert not (tmp_path / "forms" / "00000").exists()  # nobody asked for the file
        weights = torch.load(elsewhere, weights_only=True)
        weights["model"]["head.3.bias"] += torch.tensor([100.0] + [0.0] * 9)  # everything is a nought now
        torch.save(weights, elsewhere)
        count, (noughts,) = asked_for(fewer)
        assert count == 1
        assert noughts.metrics["accuracy"] < 0.2
        assert asked_for(fewer) == (0, (noughts,))
    assert made.engine.calls == before + 2


def test_a_trial_whose_weights_do_not_fit_is_a_failure_and_the_others_go_on(
    made: Made, orders: list[VariantRequest], tmp_path: Path
) -> None:
    shutil.copytree(made.folder / "forms", tmp_path / "forms")
    wrong = replace(orders[1], trial=7, weights=orders[0].weights)
    told: list[tuple[int, int]] = []
    with forms_in(tmp_path, made.engine, made.host, tell=lambda done, of: told.append((done, of))) as forms:
        assert forms.of([wrong, *orders]) == made.found
        assert list(forms.failures) == [7]
        assert "loading state_dict" in forms.failures[7]
    assert told[-1] == (3, 3)
    assert not (tmp_path / "forms" / "00007.json").exists()


def test_a_file_that_was_kept_is_made_again_where_it_was_cleared_away(
    made: Made, orders: list[VariantRequest], tmp_path: Path
) -> None:
    shutil.copytree(made.folder / "forms", tmp_path / "forms")
    with forms_in(tmp_path, made.engine, made.host, keep=True) as forms:
        path = forms.file(orders[0], INT8)
        found, before = forms.of(orders), made.engine.calls
        assert path.stat().st_size == made.found[0][1].size_bytes
        assert forms.file(orders[0], PLAIN).stat().st_size == made.found[0][0].size_bytes
        forms.clear()
        assert not path.exists()
        assert sorted(file.name for file in (tmp_path / "forms").iterdir()) == ["00000.json", "00001.json"]
        assert forms.of(orders) == found
        assert made.engine.calls == before
        assert forms.file(orders[0], INT8) == path
        assert path.stat().st_size == made.found[0][1].size_bytes
        assert made.engine.calls == before + 1


@pytest.mark.parametrize("content", ["", "[]", '{"order": "of another time"}'])
def test_a_note_that_says_nothing_is_none(
    made: Made, orders: list[VariantRequest], tmp_path: Path, content: str
) -> None:
    (tmp_path / "forms").mkdir()
    (tmp_path / "forms" / "00001.json").write_text(content)
    known = json.loads((made.folder / "forms" / "00001.json").read_text())
    assert set(known) == {"order", "variants", "files"}
    wrong = replace(orders[1], weights=orders[0].weights)  # which fails at once: it was tried
    with forms_in(tmp_path, made.engine, made.host) as forms:
        assert forms.of([wrong]) == {}
        assert list(forms.failures) == [1]
