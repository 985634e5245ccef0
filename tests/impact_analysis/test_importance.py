"""Importance of hyperparameters: functions with known answers, and uninformative data."""

from __future__ import annotations

import random

import pytest

from onefold.impact_analysis import Importance, importance
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Choice, Float, Int, Space

SPACE = Space(
    model=dict(width=Choice(8, 16, 32, 64), depth=Int(1, 4), act=Choice("relu", "tanh")),
    training=dict(optimizer=Choice("sgd", "adam"), momentum=Float(0.0, 0.9, when={"optimizer": "sgd"})),
)


def drawn(n: int, space: Space = SPACE) -> list[Config]:
    rng = random.Random(0)
    return [space.draw(rng) for _ in range(n)]


def test_the_only_influential_hyperparameter_has_nearly_all_the_variance() -> None:
    configs = drawn(80)
    result = importance(configs, [config.width**2 / 100 for config in configs], SPACE)
    assert result.singles[0].parameters == ("width",)
    assert result.singles[0].share > 0.97
    assert result.explained is not None
    assert result.explained > 0.97
    assert (result.n, result.note) == (80, "")


def test_additive_effects_share_by_their_variance() -> None:
    # Switches of 1 and of 2 have variances of 0.25 and 1: a fifth and four fifths, and nothing in common.
    space = Space(a=Choice(0, 1), b=Choice(0, 1), c=Choice(0, 1))
    configs = drawn(200, space)
    result = importance(configs, [config.a + 2 * config.b for config in configs], space)
    assert result.of("a").share == pytest.approx(0.2, abs=0.01)
    assert result.of("b").share == pytest.approx(0.8, abs=0.01)
    assert result.of("c").share == pytest.approx(0.0, abs=0.001)
    assert result.of("b", "a").share == pytest.approx(0.0, abs=0.001)


def test_an_interaction_is_attributed_to_the_pair() -> None:
    space = Space(a=Choice(0, 1), b=Choice(0, 1), c=Choice(0, 1))
    configs = drawn(200, space)
    result = importance(configs, [float(config.a != config.b) for config in configs], space)
    assert result.pairs[0].parameters == ("a", "b")
    assert result.pairs[0].share > 0.97
    assert result.of("a").share < 0.01
    # With more to split at, trees that look one step ahead see less of it, and still most.
    configs = drawn(200)
    result = importance(configs, [float((config.act == "relu") != (config.depth > 2)) for config in configs], SPACE)
    assert set(result.pairs[0].parameters) == {"act", "depth"}
    assert result.pairs[0].share > 2 * max(result.singles[0].share, result.pairs[1].share)


def test_an_inactive_hyperparameter_is_no_value() -> None:
    configs = drawn(120)
    result = importance(configs, [float(config.optimizer == "sgd") for config in configs], SPACE)
    # Momentum is there with sgd and only then, but explains nothing: what matters is the optimizer.
    assert result.of("optimizer").share > 0.97
    assert result.of("momentum").share < 0.01


def test_the_values_of_a_conditional_hyperparameter_can_matter() -> None:
    configs = drawn(200)
    result = importance(configs, [config.get("momentum", 0.45) for config in configs], SPACE)
    assert result.singles[0].parameters == ("momentum",)
    assert result.of("momentum").share + result.of("momentum", "optimizer").share > 0.8


def test_a_conditional_hyperparameter_that_is_seldom_active_has_no_share() -> None:
    active = [config for config in drawn(200) if "momentum" in config]
    others = [config for config in drawn(200) if "momentum" not in config]
    for count in (1, 4, 9):
        configs = active[:count] + others[:13]
        result = importance(configs, [config.get("momentum", 0.45) for config in configs], SPACE)
        assert result.of("momentum").share == 0
        assert all(share.share == 0 for share in result.pairs if "momentum" in share.parameters)


def test_a_hyperparameter_without_effect_seldom_has_a_share() -> None:
    space = Space(width=Int(1, 64), lr=Float(0, 1), decay=Float(0, 1), rate=Float(0, 1))
    shares = []
    for seed in range(10):
        rng = random.Random(seed)
        configs = [space.draw(rng) for _ in range(17)]
        result = importance(configs, [config.width + rng.gauss(0, 20) for config in configs], space, trees=16)
        shares += [result.of(name).share for name in ("lr", "decay", "rate")]
    assert sum(share > 0 for share in shares) <= 0.2 * len(shares)


def test_what_is_known_to_have_no_effect_has_no_share() -> None:
    configs = drawn(60)
    values = [float(config.width) for config in configs]
    assert importance(configs, values, SPACE).singles[0].parameters == ("width",)
    result = importance(configs, values, SPACE, without_effect=["width"])
    assert result.of("width").share == 0
    assert len(result.singles) == 5


def test_a_range_is_analyzed_on_its_sampling_scale() -> None:
    space = Space(lr=Float(1e-4, 1e-1, log=True), other=Float(0, 1))
    configs = drawn(150, space)
    # Half of all rates lie below the geometric middle: were they spread evenly, that would be 3 % of the variance.
    result = importance(configs, [float(config.lr > 10**-2.5) for config in configs], space)
    assert result.of("lr").share > 0.97
    assert result.of("lr").spread < 0.05


def test_without_a_space_the_observed_values_are_analyzed() -> None:
    configs = drawn(60)
    result = importance(configs, [float(config.depth) for config in configs])
    assert {share.parameters[0] for share in result.singles} == set(SPACE)
    assert result.singles[0].parameters == ("depth",)
    assert result.singles[0].share > 0.9


def test_a_group_can_be_analyzed_alone() -> None:
    configs = drawn(40)
    result = importance(configs, [float(config.width) for config in configs], SPACE.only(["model"]))
    assert {share.parameters[0] for share in result.singles} == {"width", "depth", "act"}
    assert len(result.pairs) == 3


def test_noise_is_not_explained() -> None:
    rng = random.Random(1)
    result = importance(drawn(40), [rng.gauss(0, 1) for _ in range(40)], SPACE)
    assert result.explained is not None
    assert result.explained < 0.2


def shares_of(result: Importance) -> list[float]:
    return [share.share for share in result.singles + result.pairs]


def test_shares_lie_between_0_and_1() -> None:
    rng = random.Random(2)
    for n in (2, 3, 5, 9, 25):
        result = importance(drawn(n), [rng.random() for _ in range(n)], SPACE, trees=16)
        assert all(0 <= share <= 1 for share in shares_of(result))
        assert sum(shares_of(result)) <= 1 + 1e-9
        assert len(result.singles) == 5
        assert len(result.pairs) == 10


def test_importance_is_deterministic_and_dimensionless() -> None:
    configs = drawn(30)
    values = [config.width * config.depth + random.Random(3).random() for config in configs]
    result = importance(configs, values, SPACE, trees=16)
    assert importance(configs, values, SPACE, trees=16) == result
    assert importance(configs, [1024 * value for value in values], SPACE, trees=16) == result
    assert importance(configs, values, SPACE, trees=16, seed=1) != result


def test_constant_values_have_no_importance() -> None:
    result = importance(drawn(20), [0.1 + 0.2, 0.3] * 10, SPACE)
    assert set(shares_of(result)) == {0.0}
    assert result.explained is None
    assert result.note == "nothing varies"
    assert importance([{}, {}], [1.0, 2.0]).singles == ()


def test_identical_configurations_explain_nothing() -> None:
    result = importance([{"width": 8}] * 12, [float(i) for i in range(12)])
    assert shares_of(result) == [0.0]
    assert result.explained is not None
    assert result.explained <= 0


def test_few_configurations_carry_a_note() -> None:
    configs = drawn(6)
    result = importance(configs, [float(config.width) for config in configs], SPACE)
    assert result.note == "only 6 configurations"
    assert importance(drawn(1), [1.0], SPACE).note.endswith("only 1 configurations")


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(InputError, match="expected one value per configuration"):
        importance(drawn(2), [1.0])
    with pytest.raises(InputError, match="trees must be at least 1"):
        importance(drawn(2), [1.0, 2.0], trees=0)
    with pytest.raises(InputError, match="one or two"):
        importance(drawn(2), [1.0, 2.0], SPACE, trees=1).of("heads")
    with pytest.raises(InputError, match="width must be one of"):
        importance([{"width": 9}, {"width": 8}], [1.0, 2.0], SPACE)
