"""Arms: fixed hyperparameters, shared configurations, and validity in their spaces."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onefold.impact_analysis import TUNE_ALL, Arm, ArmPlan, compared_pairs, plan_arms
from onefold.vocabulary.errors import InputError, Rejected
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Choice, Float, Int, Space
from random_spaces import spaces

SPACE = Space(
    model=dict(width=Choice(8, 16, 32, default=16), depth=Int(1, 4)),
    rate=dict(lr=Float(1e-4, 1e-2, log=True)),
    training=dict(
        optimizer=Choice("adam", "sgd", default="sgd"), momentum=Float(0.0, 0.8, when={"optimizer": "sgd"}), epochs=3
    ),
)
HELD = {"width": 16, "depth": 2, "lr": pytest.approx(1e-3), "optimizer": "sgd", "momentum": 0.4}
FLAT = Space(a=Float(0.0, 1.0), b=Float(0.0, 1.0, default=0.25), c=Float(0.0, 4.0))


def tried(plan: ArmPlan, arm: Arm) -> list[Config]:
    return [plan.configs[trial] for trial in arm.members]


def by_arm(plan: ArmPlan) -> dict[str, list[Config]]:
    return {arm.name: tried(plan, arm) for arm in plan.arms}


def test_groups_precede_their_hyperparameters_in_the_order_of_the_space() -> None:
    assert [(arm.name, arm.kind, arm.fixed) for arm in plan_arms(SPACE, 2).arms] == [
        (TUNE_ALL, "all", ()),
        ("fix model", "group", ("width", "depth")),
        ("fix width", "hyperparameter", ("width",)),
        ("fix depth", "hyperparameter", ("depth",)),
        ("fix lr", "hyperparameter", ("lr",)),  # the only one of its group, which is no arm of its own
        ("fix training", "group", ("optimizer", "momentum")),  # epochs have one value only
        ("fix optimizer", "hyperparameter", ("optimizer",)),
        ("fix momentum", "hyperparameter", ("momentum",)),
    ]


def test_a_flat_space_has_no_groups_to_hold_fixed() -> None:
    assert [arm.name for arm in plan_arms(FLAT, 2).arms] == [TUNE_ALL, "fix a", "fix b", "fix c"]


def test_a_group_with_the_name_of_a_hyperparameter_gets_another_arm_name() -> None:
    space = Space(lr=dict(lr=Float(0.0, 1.0), decay=Float(0.0, 1.0)), model=dict(width=Choice(1, 2, 3)))
    assert [arm.name for arm in plan_arms(space, 2).arms] == [
        TUNE_ALL,
        "fix lr (all)",
        "fix lr",
        "fix decay",
        "fix width",
    ]


def test_fixed_hyperparameters_have_their_defaults() -> None:
    plan = plan_arms(SPACE, 12)
    for arm in plan.arms:
        for name in arm.fixed:
            held = [config[name] for config in tried(plan, arm) if name in config]
            assert held
            assert all(value == HELD[name] for value in held), arm.name
        free = [name for name in ("width", "depth", "lr") if name not in arm.fixed]
        assert all(len({config[name] for config in tried(plan, arm)}) > 1 for name in free)


def test_conditions_hold_in_every_arm() -> None:
    plan = plan_arms(SPACE, 12)
    for config in plan.configs:
        SPACE.check(config)
    result = by_arm(plan)
    assert {"momentum" in config for config in result["fix momentum"]} == {True, False}
    assert all("momentum" in config for config in result["fix optimizer"])
    assert len({config["momentum"] for config in result["fix optimizer"]}) == 12


def test_shared_configurations_are_listed_once() -> None:
    plan = plan_arms(SPACE, 12)
    assert plan.total_trials == 12 * len(plan.arms) == sum(len(arm.members) for arm in plan.arms)
    assert len(set(plan.configs)) == len(plan.configs) < plan.total_trials
    assert {trial for arm in plan.arms for trial in arm.members} == set(range(len(plan.configs)))
    everything = plan.arms[0]
    assert everything.members == tuple(range(12))
    for arm in plan.arms[1:]:
        already = {index for index, config in enumerate(tried(plan, everything)) if _is_held(config, arm)}
        assert already <= set(arm.members), arm.name


def _is_held(config: Config, arm: Arm) -> bool:
    return all(config[name] == HELD[name] for name in arm.fixed if name in config)


def test_arms_use_common_random_numbers() -> None:
    result = by_arm(plan_arms(FLAT, 8))
    for name, middle in (("a", 0.5), ("b", 0.25), ("c", 2.0)):
        assert result[f"fix {name}"] == [Config({**config, name: middle}) for config in result[TUNE_ALL]]


def test_an_arm_does_not_depend_on_the_others() -> None:
    """Neither more trials nor other arms change its configurations."""
    few, many = by_arm(plan_arms(SPACE, 4)), by_arm(plan_arms(SPACE, 9))
    assert few == {name: configs[:4] for name, configs in many.items()}
    flat = by_arm(plan_arms(Space(**SPACE.parameters), 9))
    assert flat == {name: configs for name, configs in many.items() if name not in ("fix model", "fix training")}


def test_the_seed_determines_the_draws() -> None:
    first, second = plan_arms(SPACE, 6, seed=1), plan_arms(SPACE, 6, seed=2)
    assert first == plan_arms(SPACE, 6, seed=1)
    assert not set(by_arm(first)[TUNE_ALL]) & set(by_arm(second)[TUNE_ALL])
    assert all(configs != by_arm(second)[name] for name, configs in by_arm(first).items())


def test_rejected_configurations_are_drawn_again() -> None:
    def check(config: Config) -> None:
        if config.width == 32 or config.lr > 3e-3:
            raise Rejected("too much")

    plan = plan_arms(SPACE, 10, check=check)
    assert all(config.width < 32 and config.lr <= 3e-3 for config in plan.configs)
    assert {len(arm.members) for arm in plan.arms} == {10}
    loose = by_arm(plan_arms(SPACE, 10))[TUNE_ALL]
    kept = [(index, config) for index, config in enumerate(loose) if config.width < 32 and config.lr <= 3e-3]
    assert all(by_arm(plan)[TUNE_ALL][index] == config for index, config in kept)  # only the others are drawn again


def test_few_valid_configurations_are_found() -> None:
    def check(config: Config) -> None:
        if config.c > 0.04:
            raise Rejected("one of a hundred is small enough")

    space = Space(a=Float(0.0, 1.0), b=Float(0.0, 1.0), c=Float(0.0, 4.0, default=0.01))
    assert {len(arm.members) for arm in plan_arms(space, 20, check=check).arms} == {20}


def test_counterparts_come_from_the_same_draw() -> None:
    plan = plan_arms(SPACE, 12)
    everything = plan.arms[0]
    assert everything.pairs == everything.counterparts == ()
    for arm in plan.arms[1:]:
        assert all(other in (-1, everything.members[draw]) for draw, other in enumerate(arm.counterparts))
        assert arm.counterparts.count(-1) < 3  # of draws that repeat another one when lr is fixed
        for one, other in ((plan.configs[pair[0]], plan.configs[pair[1]]) for pair in arm.pairs):
            differing = {name for name in {*one, *other} if one.get(name) != other.get(name)}
            # Momentum follows the optimizer: it is active in one of both.
            assert differing <= {*arm.fixed, *(["momentum"] if "optimizer" in arm.fixed else [])}


def test_a_draw_that_one_arm_repeats_has_no_counterpart() -> None:
    def check(config: Config) -> None:
        if config.a == 2 and config.b > 0.5:
            raise Rejected("too much")

    plan = plan_arms(Space(a=Choice(1, 2, default=2), b=Float(0.0, 1.0)), 12, check=check)
    arm = next(arm for arm in plan.arms if arm.name == "fix a")
    assert -1 in arm.counterparts
    known = [(one, other) for one, other in zip(arm.members, arm.counterparts) if other != -1]
    assert known
    assert all(plan.configs[one].b == plan.configs[other].b for one, other in known)


def test_a_configuration_is_checked_once() -> None:
    checked: list[Config] = []
    plan = plan_arms(SPACE, 12, check=checked.append)
    assert len(checked) == len(set(checked))
    assert set(plan.configs) <= set(checked)


def test_the_pairs_with_the_best_models_of_either_side_are_compared() -> None:
    arm = Arm("fix a", "hyperparameter", ("a",), (4, 5, 6, 3), (0, 1, 2, 3))
    assert arm.pairs == ((4, 0), (5, 1), (6, 2))  # the last one is the same configuration
    assert compared_pairs(arm, [3, 1, 6, 0, 2, 4, 5], 1) == ((5, 1), (6, 2))
    assert compared_pairs(arm, [3, 1, 6, 0, 2, 4], 1) == ((4, 0), (6, 2))  # 5 has no result
    assert compared_pairs(arm, range(7), 9) == arm.pairs


def test_a_small_space_has_fewer_trials_instead_of_repetitions() -> None:
    plan = plan_arms(Space(a=Choice(1, 2), b=Choice(1, 2, 3)), 50)
    assert {arm.name: len(arm.members) for arm in plan.arms} == {TUNE_ALL: 6, "fix a": 3, "fix b": 2}
    assert len(plan.configs) == 6
    assert plan.total_trials == 11


def refuse(config: Config) -> None:
    raise Rejected("never")


def refuse_the_default(config: Config) -> None:
    if config.width == 16:
        raise Rejected("too usual")


def test_spaces_without_arms_are_rejected() -> None:
    with pytest.raises(InputError, match="trials must be at least 1, but got 0"):
        plan_arms(SPACE, 0)
    with pytest.raises(InputError, match="but the space has 1"):
        plan_arms(Space(lr=Float(0.0, 1.0), epochs=3, width=Int(4, 4)), 5)
    with pytest.raises(InputError, match=r"tune all: the workload rejects every configuration \(never\)"):
        plan_arms(SPACE, 1, check=refuse)
    with pytest.raises(InputError, match="fix model: the workload rejects every configuration"):
        plan_arms(SPACE, 1, check=refuse_the_default)


@settings(derandomize=True, max_examples=60)
@given(space=spaces(max_parameters=5), trials=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_arm_of_every_space_is_valid_and_without_repetitions(space: Space, trials: int, seed: int) -> None:
    assume(sum(parameter.size > 1 for parameter in space.parameters.values()) > 1)
    plan, default = plan_arms(space, trials, seed=seed), space.default()
    assert len({config.digest for config in plan.configs}) == len(plan.configs)
    for arm in plan.arms:
        assert 1 <= len(arm.members) == len(set(arm.members)) <= trials
        for config in tried(plan, arm):
            space.check(config)
            assert all(config[name] == default[name] for name in arm.fixed if name in config and name in default)
