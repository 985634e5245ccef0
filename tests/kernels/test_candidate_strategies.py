"""The contract of every CandidateStrategy, those of onefold.baselines included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onefold.baselines.kernel_strategies  # noqa: F401 - registers the baselines
from onefold.baselines.kernel_strategies.cluster_sampling import _nearest_to_centers
from onefold.kernels.cost_model import CostModel
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies import CandidateStrategy, create_strategy, needs_cost_model, strategy_names
from onefold.kernels.strategies.model_guided_evolution import ModelGuidedEvolution
from onefold.kernels.strategies.strategy import unseen
from onefold.kernels.targets import Target
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.kernels import Operator

COUNT = 4
Operators = dict[str, tuple[Operator, Any]]


def fake_latency(proposal: Proposal) -> float:
    return 1e-5 * (1 + int(proposal.key, 16) % 97)


def new_strategy(name: str, operators: Operators, here: Target, kind: str = "matmul") -> CandidateStrategy:
    model = CostModel() if needs_cost_model(name) else None
    return create_strategy(name, ScheduleSpace(*operators[kind], here, seed=5), model, set())


@dataclass
class Search:
    """A strategy for the matmul that has learned from some schedules, a third of them failures."""

    strategy: CandidateStrategy
    learned: list[Proposal]
    batches: list[list[Proposal]] = field(default_factory=list)

    def tell(self, proposals: list[Proposal], latencies: list[float | None]) -> None:
        self.strategy.seen |= {proposal.key for proposal in proposals}
        self.strategy.tell(proposals, latencies)


def new_search(name: str, operators: Operators, here: Target) -> Search:
    space = ScheduleSpace(*operators["matmul"], here, seed=8)
    expected = unseen(iter([space.sample() for _ in range(16)]), 6, set())
    search = Search(new_strategy(name, operators, here), expected)
    search.tell(expected, [None if at % 3 == 1 else fake_latency(event) for at, event in enumerate(expected)])
    return search


@pytest.fixture(scope="module", autouse=True)
def small_searches() -> Iterator[None]:
    """Let the baselines search less: the contract does not depend on it."""
    package = "onefold.baselines.kernel_strategies"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{package}.simulated_annealing.CHAINS", 10)
        patch.setattr(f"{package}.simulated_annealing.STEPS", 2)
        patch.setattr(f"{package}.grid_search.POINTS", 32)
        yield


@pytest.fixture(scope="module", params=strategy_names())
def search(request: pytest.FixtureRequest, operators: Operators, here: Target) -> Search:
    """Two batches, of which the first fails."""
    search = new_search(request.param, operators, here)
    for fails in (True, False):
        batch = search.strategy.propose(COUNT)
        search.batches.append(batch)
        search.tell(batch, [None if fails else fake_latency(proposal) for proposal in batch])
    return search


class TestEveryStrategy:
    def test_proposes_as_many_as_asked_for(self, search: Search) -> None:
        assert [len(batch) for batch in search.batches] == [COUNT] * 2
        assert search.strategy.propose(0) == []

    def test_proposes_nothing_twice_and_nothing_seen(self, search: Search) -> None:
        keys = [proposal.key for batch in (search.learned, *search.batches) for proposal in batch]
        assert len(set(keys)) == len(keys)

    def test_its_proposals_can_be_replayed(self, search: Search, operators: Operators, here: Target) -> None:
        space = ScheduleSpace(*operators["matmul"], here, seed=77)
        for proposal in (proposal for batch in search.batches for proposal in batch):
            again = space.replay(proposal.trace)
            assert again is not None
            assert (again.key, again.sketch, again.decisions) == (proposal.key, proposal.sketch, proposal.decisions)

    def test_is_deterministic_and_puts_spare_proposals_last(
        self, search: Search, operators: Operators, here: Target, request: pytest.FixtureRequest
    ) -> None:
        again = new_search(request.node.callspec.params["search"], operators, here)
        proposed = again.strategy.propose(COUNT, spare=COUNT)
        assert [proposal.key for proposal in proposed[:COUNT]] == [proposal.key for proposal in search.batches[0]]
        assert COUNT < len(proposed) <= 2 * COUNT
        keys = {proposal.key for proposal in proposed}
        assert len(keys) == len(proposed)
        assert not keys & again.strategy.seen


@pytest.mark.parametrize("name", strategy_names())
def test_an_exhausted_space_gives_fewer_proposals(name: str, operators: Operators, here: Target) -> None:
    strategy = new_strategy(name, operators, here, "transpose")
    for _ in range(2):
        proposals = strategy.propose(COUNT)
        assert len(proposals) <= 1
        assert not {proposal.key for proposal in proposals} & strategy.seen
        strategy.seen |= {proposal.key for proposal in proposals}
        strategy.tell(proposals, [fake_latency(proposal) for proposal in proposals])
    assert 1 <= len(strategy.seen) <= 2


def test_genetic_search_prefers_offspring_of_the_fastest(operators: Operators, here: Target) -> None:
    strategy = new_strategy("genetic", operators, here)
    first = strategy.propose(12)
    sketch = Counter(proposal.sketch for proposal in first).most_common(1)[0][0]
    strategy.tell(first, [1e-6 if proposal.sketch == sketch else None for proposal in first])
    offspring = strategy.propose(20)
    assert sum(proposal.sketch == sketch for proposal in offspring) > 0.6 * len(offspring)


def test_a_quarter_of_the_model_guided_candidates_are_random(
    operators: Operators, here: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost model alone would pick offspring only, which resemble its training data."""
    strategy = new_strategy("model-guided", operators, here)
    assert isinstance(strategy, ModelGuidedEvolution)
    offspring, random = ([Proposal(0, (), None, f"{kind} {at}") for at in range(99)] for kind in ("child", "random"))
    monkeypatch.setattr(strategy.model, "is_ready", True)
    monkeypatch.setattr(strategy.model, "scores", lambda _, proposals: np.arange(len(proposals), 0, -1.0))
    for count, spare, expected in ((8, 0, 2), (8, 8, 4), (4, 4, 2), (1, 0, 0)):
        monkeypatch.setattr(strategy._population, "offspring", iter(offspring).__next__)
        monkeypatch.setattr(strategy.space, "sample", iter(random).__next__)
        proposals = strategy.propose(count, spare)
        assert len(proposals) == count + spare
        assert sum(proposal.key.startswith("random") for proposal in proposals) == expected
        assert sum(proposal.key.startswith("random") for proposal in proposals[:count]) == round(0.25 * count)


def test_the_cost_model_learns_to_rank(operators: Operators, here: Target) -> None:
    space = ScheduleSpace(*operators["conv2d"], here)
    samples = unseen(iter([space.sample() for _ in range(60)]), 48, set())

    def latency(proposal: Proposal) -> float:
        return 1e-4 / proposal.decisions[15]  # the innermost tile of the channels: wide is fast

    model = CostModel()
    assert not model.is_ready
    model.update(space, [], [])
    assert not model.is_ready
    model.update(space, samples[:32], [latency(sample) for sample in samples[:32]])
    assert model.is_ready
    held_out = samples[32:]
    scores = dict(zip((proposal.key for proposal in held_out), model.scores(space, held_out)))
    ranked = sorted(held_out, key=lambda one: -scores[one.key])
    half = len(ranked) // 2
    assert sum(map(latency, ranked[:half])) < sum(map(latency, ranked[half:]))


@given(
    points=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.sampled_from((-1, 1, 2, 16)), max_size=3)), min_size=2, max_size=24
    ),
    share=st.floats(0.1, 1.0),
)
def test_all_others_follow_the_centers_of_clusters(points: list[tuple[int, list[int]]], share: float) -> None:
    proposals = [Proposal(sketch, tuple(values), None, str(at)) for at, (sketch, values) in enumerate(points)]
    ordered = _nearest_to_centers(proposals, max(1, round(share * len(proposals))))
    assert sorted(proposal.key for proposal in ordered) == sorted(proposal.key for proposal in proposals)


def test_each_cluster_is_represented_first() -> None:
    first = [Proposal(0, (1, 1, 2 + at), None, f"a{at}") for at in range(6)]
    second = [Proposal(1, (64, 64, 2 + at), None, f"b{at}") for at in range(6)]
    assert sorted(proposal.key[0] for proposal in _nearest_to_centers([*first, *second], 2)[:2]) == ["a", "b"]


def test_an_unknown_name_gets_a_suggestion(operators: Operators, here: Target) -> None:
    space = ScheduleSpace(*operators["matmul"], here)
    with pytest.raises(InputError, match="'evolutionry'; did you mean 'evolutionary'"):
        create_strategy("evolutionry", space, None, set())


@pytest.mark.parametrize("name", [name for name in strategy_names() if needs_cost_model(name)])
def test_a_missing_cost_model_is_an_error(name: str, operators: Operators, here: Target) -> None:
    with pytest.raises(InputError, match=f"the search strategy '{name}' needs a cost model"):
        create_strategy(name, ScheduleSpace(*operators["matmul"], here), None, set())
