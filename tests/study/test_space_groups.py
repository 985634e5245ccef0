"""The groups `system` and `serving` of a space, which are tuned inside of a trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from onefold import Choice, Float, Int, KnobOptions, ServingOptions, ServingSpace, Space, Study
from onefold.processes import available_cores
from onefold.study import Home
from onefold.study.spec import Spec
from onefold.testing.toy import Spirals
from onefold.training.knobs.catalog import KNOBS, PROCESS_KNOBS
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.errors import InputError, SpaceError, StudyFailed
from onefold.vocabulary.knobs import FUNCTION_KNOBS, KNOB_NAMES
from small_studies import small_study

HYPERPARAMETERS = Spirals.space.groups


class Watched(Spirals):
    """Records the memory format that its training runs with, as a file per format."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def build(self, config: Any) -> torch.nn.Module:
        network = super().build(config)
        network.register_forward_pre_hook(self._record)
        return network

    def _record(self, module: torch.nn.Module, inputs: Any) -> None:
        if module.training:
            (self.folder / f"autocast-{torch.is_autocast_enabled('cpu')}-{torch.get_num_threads()}").touch()


def space(**inner: dict[str, Any]) -> Space:
    return Space(**HYPERPARAMETERS, **inner)


def small(home: Path, inner: Space, **options: Any) -> Study:
    return small_study(Spirals(), home, space=inner, **options)


def test_names_of_knobs_are_those_of_the_catalog() -> None:
    assert {knob.name for knob in KNOBS} == KNOB_NAMES
    assert {knob.name for knob in PROCESS_KNOBS} == FUNCTION_KNOBS


def test_inner_groups_are_no_part_of_a_configuration(home: Path) -> None:
    both = space(system=dict(threads=1), serving=dict(threads=Int(1, 2), batch_size=Choice(8, 1)))
    assert set(both.parameters) == set(Spirals.space.parameters), "names may be used in both"
    assert Space.from_json(both.to_json()) == both != Spirals.space
    study = small(home, both, device="host")
    spec = study.spec
    assert spec.knobs.options == {"threads": (1,)}
    assert spec.serving.space == ServingSpace(batch_sizes=(1, 8), threads=(1, 2))
    assert Spec.from_json(spec.to_json()) == spec


def test_single_values_of_system_act_on_training(tmp_path: Path, home: Path) -> None:
    single = space(system=dict(update="fused", threads=1))
    small_study(Watched(tmp_path), home, space=single, budget=Budget(trials=1, max_epochs=1)).run()
    assert [file.name for file in tmp_path.glob("autocast-*")] == ["autocast-False-1"]


@pytest.mark.skipif(len(available_cores()) < 2, reason="needs two cores")
def test_only_the_values_of_system_are_tuned(home: Path) -> None:
    knobs = space(system=dict(threads=Choice(2, 1), update="fused"))
    budget = Budget(trials=1, max_epochs=60, min_epochs=60)
    study = small(home, knobs, knobs="probe", search={"system": "grid"}, rungs="none", budget=budget)
    assert study.spec.knobs.probing == "grid"
    study.run()
    records = study.knob_records
    windows = [window for record in records for window in record.windows]
    assert {window.knobs["threads"] for window in windows} <= {1, 2}
    assert {window.knobs["update"] for window in windows} == {"fused"}
    assert all(set(window.knobs) == {"threads", "update"} for window in windows)
    assert records[0].missing["cores"] == "it is not in the group 'system' of the space"
    with closing(Home(home).store()) as store:
        assert store.knob_memories() == [], "the best of some knobs is not what a similar job looks for"


def test_trial_fails_if_nothing_of_system_can_be_set(home: Path) -> None:
    study = small(home, space(system=dict(gpus=Choice(1, 2))), knobs="on", budget=Budget(trials=1, max_epochs=1))
    with pytest.raises(StudyFailed, match=r"no parameter of the group 'system' can be set here \(gpus: tr"):
        study.run()


def test_serving_points_are_those_of_the_group(home: Path) -> None:
    group = dict(batch_size=Choice(1, 4), threads=1, graph_level=Choice("all"), execution="sequential")
    one = Budget(trials=1, max_epochs=1)
    study = small(home, space(serving=group), device="host", search={"serving": "grid"}, budget=one)
    assert study.spec.serving.search == "grid"
    assert study.spec.search == "tpe"
    surface = study.run().surfaces["host"]
    assert {(each.point.batch_size, each.point.threads) for each in surface.served} == {(1, 1), (4, 1)}


def yields_nothing(config: Any) -> float:
    return float(config.x)


def yields(config: Any) -> Iterator[float]:
    yield float(config.x)


SEARCHED = dict(training=dict(x=Float(0, 1)))


@pytest.mark.parametrize(
    ("inner", "options", "complaint"),
    [
        (space(system=dict(thread=1)), {}, "unknown parameter 'thread' of the group 'system'; did you mean 'threads'"),
        (space(system=dict(threads=Choice(1, 2))), {}, "threads of the group 'system' would be ignored, since knobs"),
        (space(), {"search": {"system": "grid"}}, "would be ignored, since knobs are off"),
        (space(), {"search": {"system": "tpe"}, "knobs": "on"}, "unknown algorithm of the group 'system' 'tpe'"),
        (space(serving=dict(threads=1)), {}, "the group 'serving' would be ignored: no device"),
        (space(), {"search": {"serving": "grid"}}, "the group 'serving' would be ignored: no device"),
        (space(serving=dict(batch=1)), {"device": "host"}, "did you mean 'batch_size'"),
        (space(serving=dict(batch_size=Choice(8, 0))), {"device": "host"}, "batch_sizes must be integers from 1 in"),
        (
            space(serving=dict(threads=1)),
            {"device": "host", "serving": ServingOptions(space=ServingSpace())},
            "serving points are given twice",
        ),
        (space(compression=dict(sparsity=0.5)), {}, "the group 'compression' would be ignored"),
    ],
)  # fmt: skip
def test_group_that_would_be_ignored_is_refused(
    inner: Space, options: dict[str, Any], complaint: str, home: Path
) -> None:
    with pytest.raises(InputError, match=complaint):
        small(home, inner, **options)
    with closing(Home(home).store()) as store:
        assert store.studies() == []


@pytest.mark.parametrize(
    ("function", "system", "knobs", "complaint"),
    [
        (yields_nothing, dict(threads=1), KnobOptions("on"), "this function yields none"),
        (yields, dict(precision="bfloat16"), KnobOptions("on"), "unknown parameter 'precision' of the group 'system'"),
        (yields, dict(threads=1), KnobOptions("off"), "would be ignored, since knobs are off"),
    ],
)
def test_system_group_of_a_function_that_would_be_ignored_is_refused(
    function: Callable[..., Any], system: dict[str, Any], knobs: KnobOptions, complaint: str, home: Path
) -> None:
    with pytest.raises(SpaceError, match=complaint):
        small_study(function, home, space=Space(**SEARCHED, system=system), knobs=knobs)


@pytest.mark.parametrize(
    ("inner", "complaint"),
    [
        (dict(system=4), "system is a group of parameters; write system=dict"),
        (dict(system=dict(threads=Int(1, 2, when={"x": 1}))), "threads of the group 'system' has a condition"),
        (dict(system=dict(memory_gib=Float(1, 2))), "must have a list of values; use Choice or Int"),
    ],
)
def test_inner_groups_are_lists_of_values(inner: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SpaceError, match=complaint):
        Space(**SEARCHED, **inner)


@pytest.mark.parametrize("search", ["bohb", {"algorithm": "bohb", "rungs": "hyperband"}])
def test_bohb_is_tpe_with_hyperband(search: Any, home: Path) -> None:
    options = {"search": search} if isinstance(search, str) else search
    spec = small(home, space(), **options).spec
    assert (spec.search, spec.rungs) == ("tpe", "hyperband")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"search": "bohb", "rungs": "halving"}, "bohb is tpe with hyperband, and rungs are 'halving'"),
        ({"search": {"model": "bohb"}}, "bohb is tpe with hyperband for the whole space"),
    ],
)
def test_half_of_bohb_is_refused(options: dict[str, Any], complaint: str, home: Path) -> None:
    with pytest.raises(InputError, match=complaint):
        small(home, space(), **options)
