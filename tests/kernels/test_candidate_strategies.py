"""What every strategy must do, whatever it is after."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.kernels.cost_model import CostModel
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies import STRATEGIES, CandidateStrategy, needs_model, strategy
from onefold.kernels.strategies.clustering import _middles
from onefold.kernels.strategies.model_guided_evolution import ModelGuidedEvolution
from onefold.kernels.strategies.strategy import unseen
from onefold.kernels.targets import Target
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.kernels import Operator

COUNT = 6
Operators = dict[str, tuple[Operator, Any]]


def latency(proposal: Proposal) -> float:
    """Made up, but always the same."""
    return 1e-5 * (1 + int(proposal.key, 16) % 97)


def made(name: str, operators: Operators, here: Target, kind: str = "matmul") -> CandidateStrategy:
    """A strategy for an operator."""
    model = CostModel() if needs_model(name) else None
    return strategy(name, ScheduleSpace(*operators[kind], here, seed=5), model, set())


@dataclass
class Course:
    """What a strategy proposed for an operator, batch by batch."""

    search: CandidateStrategy
    others: list[Proposal]  # that it was told of first, some of them failures
    batches: list[list[Proposal]] = field(default_factory=list)

    def go_on(self, *, fails: bool) -> None:
        """A batch more, of which all fail or none does."""
        found = self.search.propose(COUNT)
        self.batches.append(found)
        self.told(found, [None if fails else latency(one) for one in found])

    def told(self, proposals: list[Proposal], latencies: list[float | None]) -> None:
        self.search.seen |= {one.key for one in proposals}
        self.search.tell(proposals, latencies)


def course(name: str, operators: Operators, here: Target, batches: int = 2) -> Course:
    space = ScheduleSpace(*operators["matmul"], here, seed=8)
    found = Course(made(name, operators, here), unseen(iter([space.random() for _ in range(20)]), 8, set()))
    found.told(found.others, [None if at % 3 == 1 else latency(one) for at, one in enumerate(found.others)])
    for number in range(batches):
        found.go_on(fails=number == 0)
    return found


@pytest.fixture(scope="module", params=STRATEGIES)
def gone(request: pytest.FixtureRequest, operators: Operators, here: Target) -> Course:
    return course(request.param, operators, here)


class TestEveryStrategy:
    def test_proposes_as_many_as_it_is_asked_for_and_no_more(self, gone: Course) -> None:
        assert [len(batch) for batch in gone.batches] == [COUNT] * 2

    def test_proposes_nothing_twice_and_nothing_that_was_seen(self, gone: Course) -> None:
        keys = [one.key for batch in (gone.others, *gone.batches) for one in batch]
        assert len(set(keys)) == len(keys)

    def test_what_it_proposes_can_be_made_again(self, gone: Course, operators: Operators, here: Target) -> None:
        space = ScheduleSpace(*operators["matmul"], here, seed=77)
        for one in (one for batch in gone.batches for one in batch):
            again = space.remade(one.trace)
            assert again is not None
            assert (again.key, again.sketch, again.decisions) == (one.key, one.sketch, one.decisions)

    def test_follows_from_its_seed_and_what_it_was_told(
        self, gone: Course, operators: Operators, here: Target, request: pytest.FixtureRequest
    ) -> None:
        again = course(request.node.callspec.params["gone"], operators, here, batches=1)
        assert [one.key for one in again.batches[0]] == [one.key for one in gone.batches[0]]


@pytest.mark.parametrize("name", STRATEGIES)
def test_where_there_is_no_more_it_proposes_less(name: str, operators: Operators, here: Target) -> None:
    search = made(name, operators, here, "transpose")
    for _ in range(3):
        found = search.propose(COUNT)
        assert len(found) <= 1
        assert not {one.key for one in found} & search.seen
        search.seen |= {one.key for one in found}
        search.tell(found, [latency(one) for one in found])
    assert 1 <= len(search.seen) <= 2


@pytest.mark.parametrize("name", STRATEGIES)
def test_spare_ones_come_after_those_that_it_would_propose_anyway(
    name: str, operators: Operators, here: Target
) -> None:
    found, again = (course(name, operators, here, batches=0).search for _ in range(2))
    proposed, plain = found.propose(COUNT, spare=COUNT), again.propose(COUNT)
    assert [one.key for one in proposed[:COUNT]] == [one.key for one in plain]
    assert COUNT < len(proposed) <= 2 * COUNT
    keys = {one.key for one in proposed}
    assert len(keys) == len(proposed)
    assert not keys & found.seen


@pytest.mark.parametrize("name", STRATEGIES)
def test_asked_for_nothing_it_proposes_nothing(name: str, operators: Operators, here: Target) -> None:
    assert made(name, operators, here).propose(0) == []


def test_genetic_search_breeds_from_the_fastest(operators: Operators, here: Target) -> None:
    search = made("genetic", operators, here)
    first = search.propose(12)
    sketch = Counter(one.sketch for one in first).most_common(1)[0][0]
    search.tell(first, [1e-6 if one.sketch == sketch else None for one in first])
    children = search.propose(20)
    assert sum(one.sketch == sketch for one in children) > 0.6 * len(children)


def test_breeding_leaves_a_quarter_to_those_without_parents(
    operators: Operators, here: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost model would take children only, which are like what it knows; and so for what is spare."""
    search = made("breeding", operators, here)
    assert isinstance(search, ModelGuidedEvolution)
    children, others = ([Proposal(0, (), None, f"{kind} {at}") for at in range(99)] for kind in ("child", "other"))
    monkeypatch.setattr(search.model, "is_ready", True)
    monkeypatch.setattr(search.model, "scores", lambda _, some: np.arange(len(some), 0, -1.0))
    for count, spare, strangers in ((8, 0, 2), (8, 8, 4), (4, 4, 2), (1, 0, 0)):
        monkeypatch.setattr(search._family, "child", iter(children).__next__)
        monkeypatch.setattr(search.space, "random", iter(others).__next__)
        found = search.propose(count, spare)
        assert len(found) == count + spare
        assert sum(one.key.startswith("other") for one in found) == strangers
        assert sum(one.key.startswith("other") for one in found[:count]) == round(0.25 * count)


def test_the_cost_model_learns_which_are_fast(operators: Operators, here: Target) -> None:
    space = ScheduleSpace(*operators["conv2d"], here)
    some = unseen(iter([space.random() for _ in range(60)]), 48, set())

    def made_up(one: Proposal) -> float:
        return 1e-4 / one.decisions[15]  # what is innermost of the channels: wide is fast

    model = CostModel()
    assert not model.is_ready
    model.learn(space, [], [])
    assert not model.is_ready
    model.learn(space, some[:32], [made_up(one) for one in some[:32]])
    assert model.is_ready
    held_out = some[32:]
    scores = dict(zip((one.key for one in held_out), model.scores(space, held_out)))
    ranked = sorted(held_out, key=lambda one: -scores[one.key])
    half = len(ranked) // 2
    assert sum(map(made_up, ranked[:half])) < sum(map(made_up, ranked[half:]))


@given(
    many=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.sampled_from((-1, 1, 2, 16)), max_size=3)), min_size=2, max_size=24
    ),
    share=st.floats(0.1, 1.0),
)
def test_after_the_middles_of_clusters_come_all_others(many: list[tuple[int, list[int]]], share: float) -> None:
    proposals = [Proposal(sketch, tuple(given), None, str(at)) for at, (sketch, given) in enumerate(many)]
    count = max(1, round(share * len(proposals)))
    found = _middles(proposals, count)
    assert sorted(one.key for one in found) == sorted(one.key for one in proposals)


def test_candidates_of_one_cluster_are_measured_once() -> None:
    alike = [Proposal(0, (1, 1, 2 + place), None, f"a{place}") for place in range(6)]
    others = [Proposal(1, (64, 64, 2 + place), None, f"b{place}") for place in range(6)]
    assert sorted(one.key[0] for one in _middles([*alike, *others], 2)[:2]) == ["a", "b"]


def test_an_unknown_name_is_helped(operators: Operators, here: Target) -> None:
    space = ScheduleSpace(*operators["matmul"], here)
    with pytest.raises(InputError, match="'evolutionry' is not known; did you mean 'evolutionary'"):
        strategy("evolutionry", space, None, set())


@pytest.mark.parametrize("name", [name for name in STRATEGIES if needs_model(name)])
def test_one_that_needs_a_cost_model_says_so(name: str, operators: Operators, here: Target) -> None:
    with pytest.raises(InputError, match=f"the search strategy '{name}' needs a cost model"):
        strategy(name, ScheduleSpace(*operators["matmul"], here), None, set())
