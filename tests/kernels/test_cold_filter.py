"""The cold filter on synthetic rules: it drops cold candidates and keeps hot ones."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from onefold.kernels.cold_filter import MIN_CANDIDATES, MIN_PRECISION, CandidateFeatures, ColdFilter
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
    return [tuple(int(value) for value in chance.choice(SIZES, 12)) for _ in range(count)]


def history(
    operator: Operator, count: int, seed: int = 0, is_cold: Rule = is_narrow, *, fails: bool = False
) -> list[ScheduleCandidate]:
    """Return candidates of which those that the rule calls cold are ten times slower, or fail."""
    chance = np.random.default_rng(100 + seed)
    result = []
    for at, decisions in enumerate(draws(count, seed)):
        cold = is_cold(decisions)
        usual = operator.flops * (1e-9 if cold else 1e-10)
        latency = None if cold and fails else float(usual * chance.uniform(0.9, 1.1))
        failure = CandidateFailure.INVALID if latency is None else None
        result.append(ScheduleCandidate(operator.key, "llvm", "here", 1, str(at), 0, decisions, "[]", latency, failure))
    return result


def examples(operator: Operator, some: list[Decisions]) -> list[CandidateFeatures]:
    return [CandidateFeatures(operator, "llvm x1", "here", 0, decisions) for decisions in some]


def dropped(cold: ColdFilter, operator: Operator, seed: int = 9, count: int = 200) -> tuple[float, float]:
    """Return the dropped shares of unseen cold and hot candidates."""
    some = draws(count, seed)
    is_cold = np.array([is_narrow(proposal) for proposal in some])
    select_dropped = np.array(cold.select_dropped(examples(operator, some), updates=0))
    return float(select_dropped[is_cold].mean()), float(select_dropped[~is_cold].mean())


@pytest.fixture(scope="module")
def taught() -> ColdFilter:
    result = ColdFilter()
    result.learn({CONV: history(CONV, 400)})
    return result


def test_it_learns_a_rule(taught: ColdFilter) -> None:
    assert taught.is_ready
    assert taught.fit is not None
    assert taught.fit.examples == 400
    assert taught.fit.error < 0.5
    assert taught.fit.precision is not None
    assert taught.fit.precision >= 0.8
    assert 0.2 < taught.fit.drop_share < 0.8


def test_it_drops_unseen_cold_candidates_and_keeps_hot_ones(taught: ColdFilter) -> None:
    cold, hot = dropped(taught, CONV)
    assert cold > 0.6
    assert hot < 0.2


def test_it_generalizes_to_another_operator_of_the_same_kind(taught: ColdFilter) -> None:
    cold, hot = dropped(taught, WIDER)
    assert cold > 2 * hot
    assert cold > 0.4


def test_it_drops_nothing_of_an_unknown_kind(taught: ColdFilter) -> None:
    assert dropped(taught, DENSE) == (0.0, 0.0)


def test_it_learns_a_rule_per_kind() -> None:
    result = ColdFilter()
    result.learn({
        CONV: history(CONV, 300, is_cold=lambda one: one[3] < 8),
        DENSE: history(DENSE, 300, seed=1, is_cold=lambda one: one[3] >= 8),
    })  # fmt: skip
    assert dropped(result, CONV)[0] > dropped(result, CONV)[1] + 0.3
    assert dropped(result, DENSE)[0] < dropped(result, DENSE)[1] - 0.3


def test_without_history_nothing_is_dropped() -> None:
    result = ColdFilter()
    assert not result.is_ready
    assert result.select_dropped(examples(CONV, draws(5)), updates=0) == [False] * 5
    result.learn({})
    result.learn({CONV: []})
    assert not result.is_ready


def test_new_candidates_are_embedded_without_training(taught: ColdFilter) -> None:
    cold = deepcopy(taught)
    fit = cold.fit
    cold.learn({CONV: [*history(CONV, 400), *history(CONV, 20, seed=1)]})
    assert cold.fit is fit, "too few new candidates to train again"
    assert len(cold._clearly_cold) == 420


def test_it_needs_enough_candidates_that_did_not_fail() -> None:
    result = ColdFilter()
    result.learn({CONV: history(CONV, MIN_CANDIDATES - 1)})
    assert not result.is_ready
    result.learn({CONV: history(CONV, MIN_CANDIDATES + 20, fails=True)})  # about half of them fail
    assert not result.is_ready


def test_training_ends_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = 0
    step = torch.optim.lr_scheduler.ReduceLROnPlateau.step

    def counted(scheduler: Any, loss: float) -> None:
        nonlocal epochs
        epochs += 1
        step(scheduler, loss)

    monkeypatch.setattr(torch.optim.lr_scheduler.ReduceLROnPlateau, "step", counted)
    result = ColdFilter()
    result.learn({CONV: history(CONV, 400)}, lambda: False)
    assert epochs == 1
    assert result.is_ready


def test_no_proposals_give_no_flags(taught: ColdFilter) -> None:
    assert taught.select_dropped([], updates=0) == []


def test_the_drop_probability_decays_to_a_minimum(taught: ColdFilter) -> None:
    cold = examples(CONV, [decisions for decisions in draws(600, seed=4) if is_narrow(decisions)])
    shares = [np.mean(taught.select_dropped(cold, updates)) for updates in (0, 4, 8, 100, 1000)]
    assert shares[0] > shares[1] > shares[2] > shares[3]
    assert shares[3] > 0.1
    assert shares[4] == pytest.approx(shares[3], abs=0.1)


def test_slightly_slower_than_usual_is_not_cold() -> None:
    """Near the end of a search, candidates close to the best are like that."""
    slower = [
        replace(candidate, latency_s=1e-5 * (1.1 if is_narrow(candidate.decisions) else 1.0))
        for candidate in history(CONV, 400)
    ]
    result = ColdFilter()
    result.learn({CONV: slower})
    assert dropped(result, CONV) == (0.0, 0.0)


def test_failures_count_as_cold() -> None:
    result = ColdFilter()
    result.learn({
        CONV: history(CONV, 400, fails=True),
        DENSE: history(DENSE, 100),
        POOL: history(POOL, 40, is_cold=lambda _: True, fails=True),  # everything fails
    })  # fmt: skip
    cold, hot = dropped(result, CONV)
    assert cold > 0.6
    assert cold > hot + 0.3
    assert min(dropped(result, POOL)) > 0.8


def test_it_is_deterministic_and_leaves_the_global_generator_alone() -> None:
    histories = {CONV: history(CONV, MIN_CANDIDATES)}  # just enough
    some = examples(CONV, draws(60, seed=2))

    def select_dropped() -> list[bool]:
        result = ColdFilter(1)
        result.learn(histories)
        assert result.is_ready
        return result.select_dropped(some, updates=3)

    before = torch.get_rng_state()
    assert select_dropped() == select_dropped()
    assert torch.equal(before, torch.get_rng_state())


def later(candidates: list[ScheduleCandidate], name: str) -> list[ScheduleCandidate]:
    """Return the candidates with other keys."""
    return [replace(candidate, implementation=f"{candidate.implementation} {name}") for candidate in candidates]


def test_it_drops_nothing_while_its_precision_is_low(taught: ColdFilter) -> None:
    known = history(CONV, 400)
    result = deepcopy(taught)
    assert result.precision > MIN_PRECISION
    known += later(history(CONV, 100, seed=3, is_cold=lambda one: not is_narrow(one)), "reversed")
    result.learn({CONV: known})
    assert result.precision < MIN_PRECISION
    assert dropped(result, CONV) == (0.0, 0.0)
    known += later(history(CONV, 600, seed=4), "consistent")
    result.learn({CONV: known})
    assert result.fit is not None
    assert result.fit.examples == 1100, "enough new candidates to train again"
    assert result.precision > MIN_PRECISION
    assert max(dropped(result, CONV)) > 0


@pytest.mark.parametrize("decisions", [(), (-2, -1, 0), (10**6,) * 60])
def test_it_accepts_any_decisions(decisions: Decisions, taught: ColdFilter) -> None:
    strange = CandidateFeatures(replace(CONV, shapes=("1",), flops=0.0), "elsewhere x8", "there", 99, decisions)
    assert len(taught.select_dropped([strange], updates=0)) == 1
