"""The contract of Searcher as a test suite. Subclass SearcherContract with a `make` fixture:

class TestMySearcher(SearcherContract):
    @pytest.fixture
    def make(self):
        return MySearcher          # anything called with (space, seed, goals)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onefold.search.searcher import Observation, Searcher, SpaceExhausted
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Choice, Float, Int, Space
from random_spaces import spaces

Make = Callable[[Space, int, int], Searcher]
PLAIN = Space(
    model=dict(width=Choice(8, 16, 32), gain=Float(0.1, 10, log=True)),
    training=dict(lr=Float(1e-4, 1e-1, log=True), steps=Int(1, 100_000), decay=Float(0.0, 1.0)),
)


CONDITIONAL = Space(
    model=dict(depth=Int(1, 8), norm=Choice("none", "batch", "group"), groups=Choice(2, 4, 8, when={"norm": "group"})),
    training=dict(
        optimizer=Choice("sgd", "adam"),
        lr=Float(1e-4, 1e-1, log=True),
        momentum=Float(0.0, 0.99, when={"optimizer": "sgd", "norm": ("batch", "group")}),
    ),
)


@dataclass(frozen=True)
class ProposedTrial:
    """The searcher was asked up to `attempt` for trial `number`, and the last answer was `config`."""

    number: int
    config: Config
    attempt: int


@dataclass(frozen=True)
class Step:
    """Ask for a new trial, or tell a result of an earlier one."""

    ask: bool
    attempt: int
    pick: int
    level: int
    loss: float | None
    violation: float


SearchEvent = ProposedTrial | Observation
STEPS = st.builds(
    Step,
    ask=st.booleans(),
    attempt=st.sampled_from((0, 0, 0, 1, 2)),
    pick=st.integers(0, 7),
    level=st.sampled_from((1, 1, 3, 9)),
    loss=st.none() | st.floats(-3, 3) | st.floats(),
    violation=st.sampled_from((0.0, 0.0, 0.0, 0.25, 2.0)),
)


def proposals(
    searcher: Searcher, steps: Sequence[Step], past: Sequence[SearchEvent], goals: int
) -> list[ProposedTrial]:
    """Return the proposals when these steps follow the past."""
    return [event for event in run_steps(searcher, steps, past, goals) if isinstance(event, ProposedTrial)]


def run_steps(searcher: Searcher, steps: Sequence[Step], past: Sequence[SearchEvent], goals: int) -> list[SearchEvent]:
    """Return what happens when these steps follow the past."""
    events: list[SearchEvent] = []
    trials = [event for event in past if isinstance(event, ProposedTrial)]
    for step in steps:
        if step.ask or not trials:
            proposal = ask(searcher, trials[-1].number + 1 if trials else 0, step.attempt)
            if proposal is None:
                break
            trials.append(proposal)
            events.append(proposal)
        else:
            trial = trials[-1 - step.pick % len(trials)]
            losses = None if step.loss is None else tuple(step.loss * (1 - 2 * goal) for goal in range(goals))
            seen = Observation(trial.number, step.level, trial.config, losses, step.violation)
            searcher.tell(seen)
            events.append(seen)
    return events


def ask(searcher: Searcher, number: int, attempts: int) -> ProposedTrial | None:
    """Return the last of several attempts; None if the space is exhausted."""
    proposal = None
    for attempt in range(attempts + 1):
        try:
            proposal = ProposedTrial(number, searcher.ask(number, attempt), attempt)
        except SpaceExhausted:
            break
    return proposal


def many_steps(length: int) -> list[Step]:
    """Return steps in which a few trials run at any time and most succeed."""
    rng = random.Random(length)
    return [
        Step(
            ask=rng.random() < 0.55,
            attempt=int(rng.random() < 0.1),
            pick=rng.randrange(3),
            level=rng.choice((1, 1, 3)),
            loss=None if rng.random() < 0.1 else rng.random(),
            violation=0.5 * (rng.random() < 0.1),
        )
        for _ in range(length)
    ]


def warm_start(space: Space, results: int, goals: int) -> list[SearchEvent]:
    """Return results of trials that were never asked for."""
    rng = random.Random(results)
    return [
        Observation(-1 - i, 1, space.draw(rng), tuple(rng.uniform(-1, 1) for _ in range(goals))) for i in range(results)
    ]


def replay(searcher: Searcher, events: Sequence[SearchEvent]) -> Searcher:
    """Return the searcher after `recall` and `tell` of the events."""
    for event in events:
        if isinstance(event, ProposedTrial):
            searcher.recall(event.number, event.config, event.attempt)
        else:
            searcher.tell(event)
    return searcher


class SearcherContract:
    """The specification of Searcher as tests; a subclass may adjust the attributes to what its searcher costs."""

    goals: tuple[int, ...] = (1, 2)  # numbers of goals that the searcher accepts
    examples = 6  # of each property test
    length = 12  # steps before and after the searcher is recalled
    long = 60  # steps of a run with several generations
    plain = PLAIN
    known = 9  # results of a warm start, enough to fit a model of `plain`

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError("override the `make` fixture")

    def test_every_proposal_is_a_configuration_of_the_space(self, make: Make) -> None:
        def check(space: Space, steps: list[Step], known: int, goals: int) -> None:
            searcher = make(space, 0, goals)
            past = warm_start(space, known, goals)
            for proposal in proposals(replay(searcher, past), steps, past, goals):
                space.check(proposal.config)

        self._for_all(check, st.sampled_from((0, self.known)), st.sampled_from(self.goals))

    def test_a_recalled_searcher_continues_like_the_original(self, make: Make) -> None:
        def check(space: Space, steps: list[Step], known: int, goals: int, seed: int, more: list[Step]) -> None:
            original, past = make(space, seed, goals), warm_start(space, known, goals)
            past += run_steps(replay(original, past), steps, past, goals)
            recalled = replay(make(space, seed, goals), past)
            assert proposals(original, more, past, goals) == proposals(recalled, more, past, goals)

        steps = st.lists(STEPS, max_size=self.length)
        self._for_all(
            check, st.sampled_from((0, self.known)), st.sampled_from(self.goals), st.integers(0, 2**31), steps
        )

    def test_a_long_run_can_be_recalled(self, make: Make) -> None:
        steps = many_steps(self.long)
        original, cut = make(CONDITIONAL, 3, 1), 3 * self.long // 4
        past = run_steps(original, steps[:cut], [], 1)
        recalled = replay(make(CONDITIONAL, 3, 1), past)
        assert proposals(original, steps[cut:], past, 1) == proposals(recalled, steps[cut:], past, 1)

    def test_the_same_calls_give_the_same_proposals(self, make: Make) -> None:
        def check(space: Space, steps: list[Step], known: int, goals: int) -> None:
            past = warm_start(space, known, goals)
            first, second = (replay(make(space, 7, goals), past) for _ in range(2))
            assert proposals(first, steps, past, goals) == proposals(second, steps, past, goals)

        self._for_all(check, st.sampled_from((0, self.known)), st.sampled_from(self.goals))

    def test_no_global_generator_is_used(self, make: Make) -> None:
        def state() -> object:
            return random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist()

        before = state()
        searcher = replay(make(self.plain, 0, 1), warm_start(self.plain, self.known, 1))
        for number in range(2):
            searcher.ask(number)
        assert before == state()

    def test_seed_number_and_attempt_each_change_the_proposal(self, make: Make) -> None:
        past = warm_start(self.plain, self.known, 1)
        first, second = (replay(make(self.plain, seed, 1), past) for seed in (1, 2))
        configs = [first.ask(0), first.ask(0, 1), first.ask(1), second.ask(0)]
        assert len({config.digest for config in configs}) == len(configs)

    def test_many_attempts_reach_every_configuration(self, make: Make) -> None:
        space = Space(a=Choice("x", "y"), b=Choice(1, 2, 4))
        searcher = replay(make(space, 0, 1), warm_start(space, 20, 1))
        seen = set()
        for attempt in range(60):
            try:
                seen.add(searcher.ask(0, attempt))
            except SpaceExhausted:
                break
        assert len(seen) == 6

    def test_a_searcher_copes_with_failures_only(self, make: Make) -> None:
        searcher = make(PLAIN, 0, 1)
        for number in range(12):
            config = searcher.ask(number)
            PLAIN.check(config)
            searcher.tell(Observation(number, 1, config, None))

    def _for_all(self, check: Callable[..., None], *more: st.SearchStrategy[object]) -> None:
        limits = settings(max_examples=self.examples, deadline=None, suppress_health_check=list(HealthCheck))
        limits(given(spaces(), st.lists(STEPS, max_size=self.length), *more)(check))()
