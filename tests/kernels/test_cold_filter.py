"""A filter that is taught made-up rules: what it drops was cold, and what is hot passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from onefold.kernels.cold_filter import ENOUGH, TRUSTED, ColdFilter, Example
from onefold.vocabulary.kernels import CandidateFailure, Operator, ScheduleCandidate

CONV = Operator("conv", "fused_conv2d_add_relu", 1, "conv2d", ("1x8x8x16", "3x3x16x32", "1x8x8x32"), 6e5)
WIDER = replace(CONV, key="wider", shapes=("1x16x16x16", "3x3x16x64", "1x16x16x64"), flops=5e6)
DENSE = Operator("dense", "fused_matmul_add", 1, "matmul", ("1x64", "64x10", "1x10"), 1e3)
POOL = Operator("pool", "max_pool2d", 1, "pool", ("1x8x8x16", "1x4x4x16"), 2e3)
SIZES = (1, 2, 4, 8, 16, 32)
Decisions = tuple[int, ...]
Rule = Callable[[Decisions], bool]


def is_narrow(decisions: Decisions) -> bool:
    return decisions[3] < 8


def draws(count: int, seed: int = 0) -> list[Decisions]:
    chance = np.random.default_rng(seed)
    return [tuple(int(one) for one in chance.choice(SIZES, 12)) for _ in range(count)]


def history(
    operator: Operator, count: int, seed: int = 0, is_cold: Rule = is_narrow, *, fails: bool = False
) -> list[ScheduleCandidate]:
    """Candidates of which those that the rule calls cold are ten times slower, or fail."""
    chance = np.random.default_rng(100 + seed)
    found = []
    for at, decisions in enumerate(draws(count, seed)):
        cold = is_cold(decisions)
        usual = operator.flops * (1e-9 if cold else 1e-10)
        latency = None if cold and fails else float(usual * chance.uniform(0.9, 1.1))
        failure = CandidateFailure.INVALID if latency is None else None
        found.append(ScheduleCandidate(operator.key, "llvm", "here", 1, str(at), 0, decisions, "[]", latency, failure))
    return found


def examples(operator: Operator, some: list[Decisions]) -> list[Example]:
    return [Example(operator, "llvm x1", "here", 0, decisions) for decisions in some]


def dropped(cold: ColdFilter, operator: Operator, seed: int = 9, count: int = 200) -> tuple[float, float]:
    """The share of the cold ones and of the hot ones that are dropped, of candidates that it never saw."""
    some = draws(count, seed)
    is_cold = np.array([is_narrow(one) for one in some])
    drops = np.array(cold.drops(examples(operator, some), updates=0))
    return float(drops[is_cold].mean()), float(drops[~is_cold].mean())


@pytest.fixture(scope="module")
def taught() -> ColdFilter:
    found = ColdFilter()
    found.learn({CONV: history(CONV, 400)})
    return found


def test_it_learns_a_rule(taught: ColdFilter) -> None:
    assert taught.is_ready
    assert taught.fitted is not None
    assert taught.fitted.examples == 400
    assert taught.fitted.error < 0.5
    assert taught.fitted.precision is not None
    assert taught.fitted.precision >= 0.8
    assert 0.2 < taught.fitted.dropped < 0.8


def test_it_drops_cold_ones_that_it_never_saw_and_keeps_hot_ones(taught: ColdFilter) -> None:
    cold, hot = dropped(taught, CONV)
    assert cold > 0.6
    assert hot < 0.2


def test_what_it_learned_helps_with_another_operator_of_the_kind(taught: ColdFilter) -> None:
    cold, hot = dropped(taught, WIDER)
    assert cold > 2 * hot
    assert cold > 0.4


def test_nothing_is_known_of_another_kind(taught: ColdFilter) -> None:
    assert dropped(taught, DENSE) == (0.0, 0.0)


def test_of_two_kinds_each_has_a_rule_of_its_own() -> None:
    found = ColdFilter()
    found.learn({
        CONV: history(CONV, 300, is_cold=lambda one: one[3] < 8),
        DENSE: history(DENSE, 300, seed=1, is_cold=lambda one: one[3] >= 8),
    })  # fmt: skip
    assert dropped(found, CONV)[0] > dropped(found, CONV)[1] + 0.3
    assert dropped(found, DENSE)[0] < dropped(found, DENSE)[1] - 0.3


def test_without_history_nothing_is_dropped() -> None:
    found = ColdFilter()
    assert not found.is_ready
    assert found.drops(examples(CONV, draws(5)), updates=0) == [False] * 5
    found.learn({})
    found.learn({CONV: []})
    assert not found.is_ready


def test_what_came_since_it_learned_is_on_its_map_too() -> None:
    cold = ColdFilter()
    before = history(CONV, 200)
    cold.learn({CONV: before})
    fitted = cold.fitted
    cold.learn({CONV: [*before, *history(CONV, 20, seed=1)]})
    assert cold.fitted is fitted, "too little to learn anew"
    assert len(cold._cold) == 220
    cold.learn({CONV: history(CONV, 320)})
    assert cold.fitted is not None
    assert cold.fitted.examples == 320


def test_too_little_is_no_history_and_failures_do_not_count() -> None:
    found = ColdFilter()
    found.learn({CONV: history(CONV, ENOUGH - 1)})
    assert not found.is_ready
    found.learn({CONV: history(CONV, ENOUGH + 20, fails=True)})  # about half of them fail
    assert not found.is_ready


def test_asked_about_nothing_it_drops_nothing(taught: ColdFilter) -> None:
    assert taught.drops([], updates=0) == []


def test_it_drops_less_after_each_update_but_never_nothing(taught: ColdFilter) -> None:
    cold = examples(CONV, [one for one in draws(600, seed=4) if is_narrow(one)])
    shares = [np.mean(taught.drops(cold, updates)) for updates in (0, 4, 8, 100, 1000)]
    assert shares[0] > shares[1] > shares[2] > shares[3]
    assert shares[3] > 0.1
    assert shares[4] == pytest.approx(shares[3], abs=0.1)


def test_what_is_a_little_slower_than_usual_is_not_cold() -> None:
    """Where a search has come to its end, that is what the brothers of the best are."""
    slower = [
        replace(one, latency_s=1e-5 * (1.1 if is_narrow(one.decisions) else 1.0)) for one in history(CONV, 400)
    ]  # fmt: skip
    found = ColdFilter()
    found.learn({CONV: slower})
    assert dropped(found, CONV) == (0.0, 0.0)


def test_those_that_failed_count_as_cold() -> None:
    found = ColdFilter()
    found.learn({
        CONV: history(CONV, 400, fails=True),
        DENSE: history(DENSE, 100),
        POOL: history(POOL, 40, is_cold=lambda _: True, fails=True),  # nothing works there
    })  # fmt: skip
    cold, hot = dropped(found, CONV)
    assert cold > 0.6
    assert cold > hot + 0.3
    assert min(dropped(found, POOL)) > 0.8


def test_what_it_drops_follows_from_its_seed_and_from_no_chance_of_others() -> None:
    told = {CONV: history(CONV, ENOUGH)}  # just enough
    some = examples(CONV, draws(60, seed=2))

    def drops() -> list[bool]:
        found = ColdFilter(1)
        found.learn(told)
        assert found.is_ready
        return found.drops(some, updates=3)

    before = torch.get_rng_state()
    assert drops() == drops()
    assert torch.equal(before, torch.get_rng_state())


def later(candidates: list[ScheduleCandidate], name: str) -> list[ScheduleCandidate]:
    """With names of their own."""
    return [replace(one, implementation=f"{one.implementation} {name}") for one in candidates]


def test_it_drops_nothing_while_what_it_would_drop_is_not_cold_and_again_when_it_is() -> None:
    told = history(CONV, 400)
    found = ColdFilter()
    found.learn({CONV: told})
    assert found.trust > TRUSTED
    told += later(history(CONV, 100, seed=3, is_cold=lambda one: not is_narrow(one)), "the other way round")
    found.learn({CONV: told})
    assert found.trust < TRUSTED
    assert dropped(found, CONV) == (0.0, 0.0)
    told += later(history(CONV, 600, seed=4), "as before")
    found.learn({CONV: told})
    assert found.trust > TRUSTED
    assert max(dropped(found, CONV)) > 0


@pytest.mark.parametrize("decisions", [(), (-2, -1, 0), (10**6,) * 60])
def test_any_decisions_can_be_asked_about(decisions: Decisions, taught: ColdFilter) -> None:
    strange = Example(replace(CONV, shapes=("1",), flops=0.0), "elsewhere x8", "there", 99, decisions)
    assert len(taught.drops([strange], updates=0)) == 1
