from __future__ import annotations

import json
import math
import os
import pickle
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.vocabulary.errors import SpaceError
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Choice, Float, Int, Space
from random_spaces import parameters, spaces

SPACE = Space(
    model=dict(width=Choice(8, 16, 32), depth=Int(1, 4)),
    training=dict(
        optimizer=Choice("sgd", "adam"),
        lr=Float(1e-4, 1e-1, log=True, default=1e-2),
        momentum=Float(0.0, 0.99, when={"optimizer": "sgd"}),
        nesterov=Choice(True, False, when={"momentum": 0.99}),
        epochs=10,
    ),
)


@given(spaces())
def test_a_space_round_trips_through_json(space):
    back = Space.from_json(json.loads(json.dumps(space.to_json())))
    assert back == space
    assert hash(back) == hash(space)
    assert back.to_json() == space.to_json()
    assert list(back) == list(space)
    assert back.draw(random.Random(1)) == space.draw(random.Random(1))


@given(spaces(), st.integers(0, 1000))
def test_sampled_configurations_are_valid(space, seed):
    space.check(space.draw(random.Random(seed)))
    space.check(space.default())


@given(spaces(max_parameters=4), st.integers(1, 4))
def test_the_grid_holds_every_allowed_configuration_once(space, points):
    grid = list(space.grid(points))
    for config in grid:
        space.check(config)
    assert len({config.digest for config in grid}) == len(grid) <= space.size


@given(spaces(), st.integers(0, 1000))
def test_a_configuration_has_exactly_the_active_parameters(space, seed):
    config = space.draw(random.Random(seed))
    for name, parameter in space.parameters.items():
        holds = all(
            parent in config and any(config[parent] == value for value in (w if isinstance(w, list) else [w]))
            for parent, w in parameter.when.items()
        )
        # 1, 1.0 and True are equal for Python and different options here, so a match is necessary, not sufficient.
        assert name not in config or holds
    assert list(config) == [name for name in space.parameters if name in config]
    assert space.config(config) == config


@given(spaces(), st.integers(0, 1000))
def test_a_changed_configuration_is_refused(space, seed):
    config = space.draw(random.Random(seed))
    for name in config:
        with pytest.raises(SpaceError):
            space.check({**config, name: "no such value"})
        with pytest.raises(SpaceError):
            space.check({other: value for other, value in config.items() if other != name})
    for name in set(space) - set(config):
        with pytest.raises(SpaceError, match="condition"):
            space.check({**config, name: space.parameters[name].at(0.5)})


@given(parameters(), st.floats(0, 1))
def test_every_share_of_a_parameter_is_allowed(parameter, share):
    assert parameter.contains(parameter.at(share))
    assert parameter.contains(parameter.draw(random.Random(3)))


@given(parameters(), st.integers(1, 7))
def test_the_grid_of_a_parameter_is_within_it_and_small_enough(parameter, points):
    values = parameter.grid(points)
    assert all(parameter.contains(value) for value in values)
    assert 1 <= len(values) <= (len(parameter.options) if isinstance(parameter, Choice) else points)
    if not isinstance(parameter, Choice):
        assert list(values) == sorted(set(values))
        if points > 1:
            assert values[0] == parameter.low
            assert values[-1] == parameter.high


@given(spaces(min_groups=2), st.integers(0, 1000))
def test_the_groups_of_a_space_partition_it(space, seed):
    parts = [space.only([group]) for group in space.groups]
    values = {}
    for part in parts:
        drawn = part.draw(random.Random(seed))
        part.check(drawn)
        assert set(part) == {name for name in space if space.group_of(name) in part.groups}
        values.update(drawn)
    space.check(space.config(values))
    assert space.only(list(space.groups)) == space


def test_only_keeps_the_conditions_inside_and_drops_those_outside():
    space = Space(
        model=dict(norm=Choice("none", "group"), groups=Choice(2, 4, when={"norm": "group"})),
        training=dict(warmup=Int(0, 9), clip=Float(0.1, 1.0, when={"norm": "group", "warmup": 0})),
    )
    assert space.only(["model"]).parameters["groups"].when == {"norm": "group"}
    assert space.only(["training"]).parameters["clip"].when == {"warmup": 0}
    assert space.only(["training", "model"]).parameters["clip"].when == {"norm": "group", "warmup": 0}


def test_conditions_reach_through_several_parameters():
    assert "momentum" not in SPACE.config({"optimizer": "adam", "momentum": 0.99, "nesterov": True})
    assert "nesterov" not in SPACE.config({"optimizer": "adam", "momentum": 0.99, "nesterov": True})
    assert SPACE.config({"optimizer": "sgd", "momentum": 0.99, "nesterov": True}).nesterov is True
    assert SPACE.in_order().index("optimizer") < SPACE.in_order().index("momentum") < SPACE.in_order().index("nesterov")


def test_parameters_without_a_group_belong_to_training():
    assert Space(lr=Float(0.0, 1.0), model=dict(width=Int(1, 2))).groups.keys() == {"training", "model"}
    assert Space(lr=0.1).default() == {"lr": 0.1}


def test_none_may_be_a_constant():
    space = Space(model=dict(norm=None, width=Int(1, 2)), clip=None)
    assert space.default() == {"norm": None, "width": 2, "clip": None}
    assert space.draw(random.Random(1)).clip is None
    assert space.parameters["norm"] == Choice(None)
    assert Space.from_json(json.loads(json.dumps(space.to_json()))) == space
    space.check(space.default())
    with pytest.raises(SpaceError, match="clip must be in Choice"):
        space.check({**space.default(), "clip": 1.0})


def test_defaults_are_the_authors_or_the_middle():
    assert SPACE.has_defaults
    assert not Space(a=Int(1, 3)).has_defaults
    assert SPACE.default() == {"width": 16, "depth": 2, "optimizer": "adam", "lr": 1e-2, "epochs": 10}


def test_size_counts_configurations():
    assert Space(a=Int(1, 3), b=Choice("x", "y")).size == 6
    assert SPACE.size == math.inf
    assert Space(a=Float(1.0, 1.0)).size == 1


def test_logarithmic_draws_are_even_over_magnitudes():
    rng = random.Random(0)
    drawn = [Float(1e-4, 1e-2, log=True).draw(rng) for _ in range(2000)]
    assert 0.45 < sum(value < 1e-3 for value in drawn) / 2000 < 0.55
    whole = [Int(1, 100, log=True).draw(rng) for _ in range(2000)]
    assert 0.4 < sum(value < 10 for value in whole) / 2000 < 0.6


def test_equal_spaces_have_the_same_parameters():
    assert Space(a=Float(0, 1)) == Space(a=Float(0.0, 1.0))
    assert hash(Space(a=Float(0, 1))) == hash(Space(a=Float(0.0, 1.0)))
    assert Space(a=Choice(0, 1)) != Space(a=Choice(False, True))
    assert Space(a=Choice(0, 1)) != Space(a=Choice(0.0, 1.0))
    assert pickle.loads(pickle.dumps(SPACE)) == SPACE


def test_a_space_has_the_same_digest_in_every_process():
    code = """
from onefold.vocabulary.space import *
print(Space(a=Choice("x", "y", "z"), b=Int(1, 2, when={"a": {"x", "y", "z"}})).digest)
"""
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Float(2.0, 1.0), "low must not exceed high"),
        (lambda: Float(0.0, math.inf), "both must be finite"),
        (lambda: Float(0.0, 1.0, log=True), "must start above 0, got low=0"),
        (lambda: Float(0.0, 1.0, default=2.0), "default of this Float must lie between 0.0 and 1.0, got 2.0"),
        (lambda: Int(0, 5, default=2.5), "default of this Int must"),
        (lambda: Int(0, 5, default=True), "default of this Int must"),
        (lambda: Float("0", 1.0), "takes numbers, got low='0'"),
        (lambda: Float(0.0, None), "takes numbers, got high=None"),
        (lambda: Int(1.5, 3), "takes integers.*use Float"),
        (lambda: Int(True, 3), "takes integers"),
        (lambda: Choice(), "at least one option"),
        (lambda: Choice(["a", "b"]), "one by one, got a list; write Choice"),
        (lambda: Choice(print), "strings, numbers, booleans or None.*build it in the workload"),
        (lambda: Choice("a", "a"), "must differ"),
        (lambda: Choice("a", "b", default="c"), "must be one of the options, got 'c'"),
        (lambda: Choice(1.0, math.nan), "finite"),
        (lambda: Space(a=[1, 2]), "a must be a Float, an Int, a Choice or a constant"),
        (lambda: Space(model={"learning rate": 1}), "must be a Python identifier, got 'learning rate'"),
        (lambda: Space(model=dict(a=1), training=dict(a=2)), "'a' is in two groups"),
        (lambda: Space(depth=Int(1, 3), b=Int(1, 2, when={"dept": 1})), "did you mean 'depth'"),
        (lambda: Space(a=Int(1, 3), b=Int(1, 2, when={"a": 4})), "is not a value of a"),
        (lambda: Space(a=Int(1, 3, when={"b": 1}), b=Int(1, 2, when={"a": 1})), "form a cycle"),
        (lambda: Space(a=Int(1, 3, when={"a": 1})), "form a cycle"),
        (lambda: Space.from_json({"model": {"a": {"kind": "flaot"}}}), "did you mean 'float'"),
        (lambda: SPACE.check(Config(widht=8)), "did you mean 'width'"),
        (lambda: SPACE.check({**SPACE.default(), "depth": 2.0}), "depth must be in Int"),
        (lambda: SPACE.check({**SPACE.default(), "momentum": 0.5}), "its condition.*'sgd'.*does not hold"),
        (lambda: SPACE.check({"width": 8}), "missing"),
        (lambda: SPACE.only(["modle"]), "did you mean 'model'"),
    ],
)
def test_an_invalid_space_is_rejected_with_the_rule(make, message):
    with pytest.raises(SpaceError, match=message):
        make()
