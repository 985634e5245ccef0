"""Compression of the best trials after a study, and the study options around compression."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onefold import (
    Budget,
    Config,
    Float,
    ParallelismOptions,
    Recipe,
    SearchOptions,
    Space,
    Study,
    at_least,
    at_most,
    deploy,
)
from onefold.compression import after_study, trial_variants, unpack
from onefold.compression.after_study import AfterStudyCompression
from onefold.compression.api import PACKED
from onefold.compression.selection import SelectionOptions
from onefold.device import Device
from onefold.store.home import Home
from onefold.study.result import Result
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Energy, Trial, from_json
from onefold.vocabulary.serving import LatencySource
from onefold.vocabulary.variants import Shortlist, Variant

RECIPES = (Recipe(precision="int8"), Recipe(sparsity=0.8, precision="int8"))


class FinishedStudy:
    """A study of three trials, handed over twice: once with every variant too slow, once with none."""

    def __init__(self, home: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(after_study, "RECIPES", RECIPES)
            patch.setattr(after_study, "EPOCHS", 1)
            patch.setattr(trial_variants, "TIMING_ROUNDS", 1)
            self.study = Study(
                "digits",
                compress="after",
                budget=Budget(trials=3, max_epochs=2),
                knobs="off",
                home=home,
                name="s",
                search=SearchOptions(rungs="none"),
                parallelism=ParallelismOptions(engine="inline"),
            )
            self._select(home, SelectionOptions(max_metric_loss=0.5, allow_slower=-1.0))  # nothing is so fast
            self.slow = self.study.run()
            self.slow_record = self.study.record
            self.slow_folder = self.slow.compressed
            records = sorted((self.slow.folder / "variants").iterdir())
            self.records = {record.name: record.read_text() for record in records}
            self._select(home, SelectionOptions(max_metric_loss=0.5, allow_slower=1000.0))
            self.quick = Study.open("s", home=home).run()

    def _select(self, home: Path, selection: SelectionOptions) -> None:
        spec = replace(self.study.spec, selection=selection)
        with closing(Home(home).store()) as store:
            store.save_study(replace(self.study.record, spec=spec.to_json()))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, calibrated: Path) -> FinishedStudy:
    home = tmp_path_factory.mktemp("after-study")
    shutil.copytree(calibrated, home / "devices")
    return FinishedStudy(home)


def shortlist(result: Result) -> Shortlist:
    assert result.shortlist is not None
    return result.shortlist


def test_the_best_trials_are_built_plain_and_in_every_variant(ran: FinishedStudy) -> None:
    result = shortlist(ran.slow)
    assert result.metric == "accuracy"
    assert result.failures == {}
    trials = list(dict.fromkeys(candidate.trial for candidate in result.candidates))
    assert trials[0] == ran.slow.best.number
    assert sorted(trials) == [0, 1, 2]
    recipes = [candidate.variant.recipe for candidate in result.candidates]
    assert recipes == [Recipe(), *RECIPES] * 3


def test_a_slower_variant_is_refused_with_a_reason(ran: FinishedStudy) -> None:
    result = shortlist(ran.slow)
    assert (result.choice.trial, result.choice.variant.recipe) == (ran.slow.best.number, Recipe())
    assert result.choice.refused == ""
    refused = [candidate.refused for candidate in result.candidates if candidate is not result.choice]
    assert all("x the latency" in reason or "accuracy is worse by" in reason for reason in refused)
    assert result.why == "the plain model: no variant is better for size"
    assert ran.slow_folder is None
    assert result.test == {}


def test_the_smallest_eligible_variant_of_any_trial_is_selected(ran: FinishedStudy) -> None:
    result = shortlist(ran.quick)
    eligible = [candidate for candidate in result.candidates if not candidate.refused]
    assert result.choice in eligible
    assert result.choice.variant.smallest_bytes == min(candidate.variant.smallest_bytes for candidate in eligible)
    assert not result.choice.variant.recipe.is_plain
    assert result.why.startswith(f"{result.choice}: ")
    assert "x smaller, " in result.why
    before = shortlist(ran.slow)  # nothing was built or measured again
    assert [candidate.variant for candidate in before.candidates] == [
        candidate.variant for candidate in result.candidates
    ]
    taken = f"{result.choice.trial:05d}.json"
    for name, text in ran.records.items():
        assert name == taken or (ran.quick.folder / "variants" / name).read_text() == text
    assert sorted(ran.records) == ["00000.json", "00001.json", "00002.json"]


def test_the_shortlist_is_stored_with_the_study(ran: FinishedStudy) -> None:
    for record, result in ((ran.slow_record, ran.slow), (ran.study.record, ran.quick)):
        kept = json.loads(json.dumps(record.result["shortlist"]))
        assert from_json(Shortlist, kept) == result.shortlist


def test_the_selected_variant_can_be_served_and_saved(ran: FinishedStudy, tmp_path: Path) -> None:
    result, choice = ran.quick, shortlist(ran.quick).choice
    assert result.compressed == result.folder / "compressed"
    saved = result.save(tmp_path / "model")
    assert (saved / "weights.safetensors").is_file()
    for folder in (result.compressed, saved / "compressed"):
        assert deploy.load(folder)(np.zeros((3, 1, 8, 8), "float32")).shape == (3, 10)
        assert unpack((folder / PACKED).read_bytes()) == (folder / deploy.MODEL).read_bytes()
    about = deploy.read(saved / "compressed").model
    assert (about["study"], about["trial"], about["variant"]) == ("s", choice.trial, str(choice.variant.recipe))
    assert about["config"] == dict(result.trials[choice.trial].config)
    assert about["test"] == shortlist(result).test
    assert 0 < about["test"]["accuracy"] <= 1


def test_a_study_without_compression_has_no_shortlist(tmp_path: Path) -> None:
    study = Study(
        "digits",
        budget=Budget(trials=1, max_epochs=1),
        knobs="off",
        home=tmp_path,
        parallelism=ParallelismOptions(engine="inline"),
    )
    result = study.run()
    assert (result.shortlist, result.compressed) == (None, None)
    assert "shortlist" not in study.record.result


def variant(recipe: Recipe, accuracy: float, latency_s: float, packed: int) -> Variant:
    return Variant(
        recipe,
        {"accuracy": accuracy},
        latency_s,
        LatencySource.MEASURED,
        Energy(1.0, "modelled"),
        None,
        2 * packed,
        {"zstd": packed},
        1e6,
        1e6,
        100,
        0.0,
    )


def test_every_refusal_belongs_to_its_trial(ran: FinishedStudy, this_host: Device) -> None:
    """The same recipe is selected for one trial, too slow for another and too inaccurate for a third."""
    step = AfterStudyCompression(
        ran.study.spec.objective,
        ran.study.spec.objective,
        None,
        None,
        ran.slow.folder,
        None,
        this_host,
        this_host,
        print,
    )  # type: ignore[arg-type]
    int8 = RECIPES[0]
    result = {
        4: (variant(Recipe(), 0.80, 1.0, 900), variant(int8, 0.80, 1.0, 300)),
        2: (variant(Recipe(), 0.90, 1.0, 1000), variant(int8, 0.90, 1.5, 100)),
        7: (variant(Recipe(), 0.895, 1.0, 700), variant(int8, 0.895, 1.01, 400)),
    }
    made = step._shortlist(result, Trial(2, Config()), {})
    assert {str(candidate): candidate.refused for candidate in made.candidates if candidate.refused} == {
        "trial 4, plain": "accuracy is worse by 0.1, more than the 0.01 allowed",
        "trial 4, int8": "accuracy is worse by 0.1, more than the 0.01 allowed",
        "trial 2, int8": "1.50x the latency, more than the 1.02x allowed",
    }
    assert str(made.choice) == "trial 7, int8"
    assert made.why == "trial 7, int8: 2.5x smaller, 0.99x as fast, accuracy 0.895 instead of 0.9"
    assert [candidate.trial for candidate in made.candidates] == [4, 4, 2, 2, 7, 7]
    made = step._shortlist(result, Trial(2, Config()), {"accuracy": at_least(0.9), "unknown_metric": at_least(1)})
    assert str(made.choice) == "trial 2, plain"
    assert made.candidates[-1].refused == "accuracy 0.895 violates accuracy>=0.9"
    small = {"encoded_bytes": at_most(200)}
    assert str(step._shortlist(result, Trial(2, Config()), small).choice) == "trial 2, int8", "though it is slower"
    broken = replace(result[7][1], metrics={"accuracy": float("nan")})
    made = step._shortlist({**result, 7: (result[7][0], broken)}, Trial(2, Config()), {})
    assert made.candidates[-1].refused == "accuracy is not a number"
    plain = replace(result[2][0], encoded_bytes={"zstd": 10})
    made = step._shortlist({**result, 2: (plain, result[2][1])}, Trial(2, Config()), {})
    assert made.choice.variant is plain


def test_a_study_takes_the_options_of_the_selection(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown variant 'int9'; did you mean 'int8'"):
        Study("digits", compress=SelectionOptions(take="int9"), home=tmp_path)
    study = Study("digits", compress=SelectionOptions(take="int8"), home=tmp_path, name="s")
    assert (study.spec.compress, study.spec.selection.take) == ("after", "int8")


def test_an_unknown_compress_mode_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="in-loop"):
        Study("digits", compress="inloop", home=tmp_path)


def parabola(x: float) -> float:
    return x * x


@pytest.mark.parametrize("way", ["in-loop", "after"])
def test_a_function_cannot_be_compressed(tmp_path: Path, way: str) -> None:
    with pytest.raises(InputError, match="a function has no model to compress"):
        Study(parabola, Space(x=Float(0.0, 1.0)), compress=way, home=tmp_path)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        ([{"x": 0.5}, {"x": 0.5}], "given twice"),
        ([{"x": 0.1}, {"x": 0.2}, {"x": 0.3}], "3 first configurations do not fit into 2 trials"),
        ([{"x": 7.0}], "x must be in"),
    ],
)
def test_invalid_first_configurations_are_rejected(tmp_path: Path, first: list[dict[str, float]], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Study(parabola, Space(x=Float(0, 1)), budget=Budget(trials=2), home=tmp_path, search=SearchOptions(first=first))
