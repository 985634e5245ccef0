"""Plan strategies: onefold and the baselines."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from small_networks import Kind, ResidualNet, cross_entropy

from onefold.baselines.retraining import BASELINES, FIXED_BATCH
from onefold.retraining.feasible_plans import LARGEST_BATCH, MAX_PLANS
from onefold.retraining.network_profile import profile_network
from onefold.retraining.planning_context import MEMORY_MARGIN, PlanningContext
from onefold.retraining.rule_file import read_rules
from onefold.retraining.stages import split_into_stages
from onefold.retraining.strategy import EXPLORATION_SHARE, FIRST_WINDOWS, GainStrategy, PlanStrategy, plan_strategy
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.retraining import EFFECTIVE_BATCH, PlanEstimate, RetrainingPlan

RULES = read_rules()
HELD = 50_000_000
STRATEGIES = ("onefold", *BASELINES)
KIND = Kind(lambda: ResidualNet(8, 6), (3, 32, 32))
PLANNING = [name for name in STRATEGIES if name != "oom-retry"]


@cache
def contexts() -> dict[str, PlanningContext]:
    network, few = KIND.network(), KIND.batch(4)
    profile = profile_network(split_into_stages(network, few[:-1]), few, cross_entropy)
    roomy = PlanningContext(profile, HELD, 10**12, 3600.0, 50_000, has_batch_norm=True)
    fixed = plan_strategy("static", RULES).plans(roomy)[0]  # the fixed plan just fits
    return {
        "roomy": roomy,
        "tight": replace(roomy, limit_bytes=round(fixed.memory_bytes / (1 - MEMORY_MARGIN)) + 2),
        "none": replace(roomy, limit_bytes=HELD),
    }


def chosen(name: str, where: str) -> tuple[PlanStrategy, PlanEstimate]:
    result = plan_strategy(name, RULES)
    return result, result.plans(contexts()[where])[0]


@pytest.mark.parametrize("where", ["roomy", "tight"])
@pytest.mark.parametrize("name", PLANNING)
def test_chosen_plans_fit(name: str, where: str) -> None:
    context = contexts()[where]
    result = plan_strategy(name, RULES)
    plans = result.plans(context)
    assert 1 <= len(plans) <= MAX_PLANS
    assert all(context.fits(estimate.plan) and estimate == context.estimate(estimate.plan) for estimate in plans)
    plan: RetrainingPlan | None = None
    for step in range(8):
        plan = result.next_plan(step / 8)
        assert context.fits(plan)
        assert result.tell(plan, 0.1 / (step + 1), 1e-3) >= 0
    assert any(estimate.plan == plan and estimate.gain_per_s is not None for estimate in result.estimates())


@pytest.mark.parametrize("name", PLANNING)
def test_no_plan_if_nothing_fits(name: str) -> None:
    assert plan_strategy(name, RULES).plans(contexts()["none"]) == ()


def test_the_fixed_plan_freezes_no_more_than_it_must() -> None:
    _, roomy = chosen("fixed", "roomy")
    _, tight = chosen("fixed", "tight")
    assert roomy.plan.freeze_rate == 0.0
    assert roomy.plan.segments == 1
    assert roomy.plan.effective_batch == tight.plan.effective_batch == FIXED_BATCH
    assert (tight.plan.freeze_rate, tight.plan.segments) >= (0.0, 1)
    assert plan_strategy("fixed", RULES).is_adaptive  # it has all mechanisms but the search


@pytest.mark.parametrize("where", ["roomy", "tight"])
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in ("onefold", "fixed")])
def test_baselines_have_the_full_effective_batch(name: str, where: str) -> None:
    result, first = chosen(name, where)
    assert first.plan.effective_batch == EFFECTIVE_BATCH
    for _ in range(4):
        assert result.next_plan(0.5).effective_batch == EFFECTIVE_BATCH
    assert not result.is_adaptive
    assert result.best_other_merit(first.plan) == 0.0


def test_each_baseline_chooses_its_plan() -> None:
    roomy = {name: chosen(name, "roomy")[1].plan for name in STRATEGIES}
    tight = {name: chosen(name, "tight")[1].plan for name in STRATEGIES}
    assert roomy["static"] == tight["static"]
    assert (roomy["static"].batch_size, roomy["static"].freeze_rate, roomy["static"].segments) == (8, 0.4, 5)
    assert roomy["dgc"] == replace(roomy["static"], segments=1)
    assert roomy["dgc"].segments < tight["dgc"].segments <= tight["static"].segments
    assert tight["dgc"].batch_size == 8
    assert roomy["dga"].batch_size == LARGEST_BATCH
    assert tight["dga"].batch_size == 8
    assert roomy["dga"].segments == tight["dga"].segments == 5
    assert (roomy["sage"].batch_size, roomy["sage"].segments) == (LARGEST_BATCH, 1)
    assert tight["sage"].batch_size >= tight["dga"].batch_size
    assert roomy["last-layer"].freeze_rate == tight["last-layer"].freeze_rate == 1.0
    assert tight["last-layer"].batch_size < roomy["last-layer"].batch_size == LARGEST_BATCH
    assert {plan.batch_size for plan in (roomy["oom-retry"], tight["oom-retry"])} == {LARGEST_BATCH}


def test_dgc_has_the_fewest_segments() -> None:
    plan = chosen("dgc", "tight")[1].plan
    assert not contexts()["tight"].fits(replace(plan, segments=plan.segments - 1))


def test_dga_sage_and_last_layer_have_the_largest_batch() -> None:
    where = replace(contexts()["tight"], limit_bytes=contexts()["tight"].limit_bytes + 10_000_000)
    for name in ("dga", "sage", "last-layer"):
        plan = plan_strategy(name, RULES).plans(where)[0].plan
        larger = replace(plan, batch_size=2 * plan.batch_size, accumulation=plan.accumulation // 2)
        assert plan.batch_size == LARGEST_BATCH or not where.fits(larger)


def test_oom_retry_halves_the_batch() -> None:
    result = plan_strategy("oom-retry", RULES)
    sizes = []
    while plans := result.plans(contexts()["tight"]):
        sizes.append(plans[0].plan.batch_size)
        assert plans[0].plan.effective_batch == EFFECTIVE_BATCH
        assert result.on_out_of_memory()
    assert sizes == [2**power for power in range(8, -1, -1)]
    assert plan_strategy("oom-retry", RULES).plans(contexts()["tight"])[0].plan.batch_size == LARGEST_BATCH


def test_onefold_tries_plans_in_order_and_continues_with_the_best() -> None:
    result = plan_strategy("onefold", RULES, alpha=1.0)
    plans = [estimate.plan for estimate in result.plans(contexts()["roomy"])]
    assert result.is_adaptive
    best, tried, plan = plans[2], [], None
    for _ in range(len(plans) + FIRST_WINDOWS - 1):
        plan = result.next_plan(0.0)
        tried.append(plan)
        result.tell(plan, 1.0 if plan == best else 0.2, 1e-3)
    assert tried == [plans[0]] * (FIRST_WINDOWS - 1) + plans
    assert result.next_plan(0.5) == best
    assert result.best_other_merit(best) < 1.0
    assert {estimate.plan for estimate in result.estimates()} == set(plans)


def test_onefold_stops_exploring_after_its_share_of_the_window() -> None:
    result = plan_strategy("onefold", RULES)
    first = result.plans(contexts()["roomy"])[0].plan
    for _ in range(FIRST_WINDOWS):
        assert result.next_plan(0.0) == first
        result.tell(first, 0.1, 1e-3)
    assert result.next_plan(EXPLORATION_SHARE + 0.01) == first
    assert result.next_plan(0.0) != first


def test_onefold_keeps_a_plan_until_it_is_switched() -> None:
    result = plan_strategy("onefold", RULES, alpha=1.0)
    one, other, third = (each.plan for each in result.plans(contexts()["roomy"])[:3])
    for plan, gain in ((one, 1.0), (other, 0.5), (third, 0.1)):
        result.tell(plan, gain, 1e-3)
    assert result.next_plan(0.9) == one
    result.tell(one, 0.3, 1e-3)
    assert result.next_plan(0.9) == one
    result.switch_plan()
    assert result.next_plan(0.9) == other
    result.switch_plan()
    assert result.next_plan(0.9) == one


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in ("onefold", "bayesian")])
def test_a_single_plan_has_no_other_to_switch_to(name: str) -> None:
    result, first = chosen(name, "roomy")
    result.switch_plan()
    assert result.next_plan(0.9) == first.plan


def test_onefold_drops_a_plan_that_no_longer_fits() -> None:
    result = plan_strategy("onefold", RULES)
    roomy = result.plans(contexts()["roomy"])[0].plan
    result.tell(roomy, 1.0, 1e-3)
    tight = result.plans(contexts()["tight"])
    assert roomy not in {estimate.plan for estimate in tight}
    assert result.next_plan(0.9) in {estimate.plan for estimate in tight}


def test_alpha_is_searched_for_if_not_given() -> None:
    result = plan_strategy("onefold", RULES, alpha=None)
    assert isinstance(result, GainStrategy)
    plans = [estimate.plan for estimate in result.plans(contexts()["roomy"])]
    weights = []
    for step in range(7):
        result.tell(plans[step % len(plans)], 0.1, 1e-3)
        weights.append(result.search.alpha)
    assert weights[:2] == [0.5, 0.5]
    assert all(0 <= weight <= 1 for weight in weights)
    assert len(set(weights)) > 1


def test_bayesian_is_reproducible() -> None:
    one, other = ([] for _ in range(2))
    for result in (one, other):
        search = plan_strategy("bayesian", RULES, seed=3)
        plan = search.plans(contexts()["roomy"])[0].plan
        for _ in range(4):
            plan = search.next_plan(0.1)
            search.tell(plan, 0.1, 1e-3)
            result.append(plan)
    assert one == other
    assert len(set(one)) > 1


def test_bayesian_needs_a_context() -> None:
    with pytest.raises(InputError, match="call plans"):
        plan_strategy("bayesian", RULES).next_plan(0.0)


@pytest.mark.parametrize(
    ("name", "meant"), [("onefol", "'onefold'"), ("last_layer", "'last-layer'"), ("best", "known")]
)
def test_an_unknown_strategy_is_rejected_with_a_suggestion(name: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"unknown strategy {name!r}.*{meant}"):
        plan_strategy(name, RULES)
