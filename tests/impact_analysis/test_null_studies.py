"""What is claimed of simulated studies, of which it is known what has an effect. `benchmarks/impact.py` has more."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module

import pytest

from onefold.impact_analysis import Findings, advice, bootstrap_interval, findings, importance
from onefold.testing.simulated_impact import has_effect, simulated_impact

NULLS = range(20, 40)
MAX_FALSE = 0.05 * len(NULLS)
IRRELEVANT = ("activation", "dropout", "batch_size", "optimizer", "lr", "momentum")  # to the costs of an architecture


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """Few trees and resamples: both have their own tests."""
    module = import_module("onefold.impact_analysis.findings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "importance", partial(importance, trees=4))
        patch.setattr(module, "bootstrap_interval", partial(bootstrap_interval, resamples=20))
        yield


@cache
def findings_of(seed: int, *, null: bool = False) -> Findings:
    return findings(simulated_impact(seed=seed, null=null))


def claims(given: Findings) -> set[tuple[str, str]]:
    return {(effect.arm, effect.property) for effect in given.effects if effect.is_significant}


def test_null_studies_have_next_to_no_effects() -> None:
    studies = [findings_of(seed, null=True) for seed in NULLS]
    assert sum(bool(claims(given)) for given in studies) <= MAX_FALSE
    assert sum(any(deviation.is_significant for deviation in given.deviations) for given in studies) <= MAX_FALSE


@pytest.mark.parametrize("seed", [0, 1])
def test_known_effects_are_found_for_every_cost(seed: int) -> None:
    given = findings_of(seed)
    found = {(arm, name) for arm, name in claims(given) if has_effect(given.evidence.arm(arm), name)}
    assert {name for _, name in found} == {"accuracy", "latency_s", "size_bytes", "flops"}
    assert {("fix filters", "flops"), ("fix hidden", "size_bytes")} <= found


@pytest.mark.parametrize("seed", [0, 1])
def test_no_effect_is_claimed_for_a_hyperparameter_that_cannot_have_one(seed: int) -> None:
    given = findings_of(seed)
    for name in IRRELEVANT:
        for cost in ("size_bytes", "flops"):
            effect = given.effect(f"fix {name}", cost)
            assert effect is not None
            assert effect.paired.n > 0
            assert (effect.paired.differing, effect.is_significant) == (0, False)


@pytest.mark.parametrize("trials", [3, 4])
def test_small_studies_advise_to_tune_nothing_that_cannot_matter(trials: int) -> None:
    """Momentum is active in a third of the configurations, and every other value is seen once or twice."""
    for seed in range(4):
        given = findings(simulated_impact(trials=trials, best=2, seed=seed, null=False))
        worth = next(part.answers for part in advice(given) if part.question == "What is worth tuning?")
        for line in worth:
            if line.startswith(("For size:", "For FLOPs:")):
                assert not [name for name in IRRELEVANT if f"{name} (" in line or f"{name} adds" in line]
        for name in ("size_bytes", "flops"):
            known = given.importance["plain"][name]
            for arm in given.evidence.arms:
                effect = given.effect(arm.name, name)
                if set(arm.fixed) & set(IRRELEVANT) and len(arm.fixed) == 1 and effect and effect.paired.n > 1:
                    assert known.of(*arm.fixed).share == 0


def test_null_studies_with_a_conditional_hyperparameter_advise_to_tune_nothing() -> None:
    answers = [part for seed in NULLS for part in advice(findings_of(seed, null=True))]
    worth = [line for part in answers if part.question == "What is worth tuning?" for line in part.answers]
    assert sum("(" in line.split(".")[0] for line in worth if line.startswith("For accuracy")) <= MAX_FALSE
