"""The data of a model stay bounded, and keep what TPE learns most from."""

from __future__ import annotations

import random

from onefold.search.searcher import Observation
from onefold.search.surrogate import KEPT, KEPT_BEST, MAX_FINISHED, SurrogateData
from onefold.search.tpe import TpeSearcher
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Float, Space

SPACE = Space(x=Float(0, 1), y=Float(0, 1))


def level_of(searcher: TpeSearcher) -> SurrogateData:
    return searcher._level(1)


def losses_of(data: SurrogateData) -> list[float]:
    return [entry.losses[0] for entry in data._entries if entry.losses is not None]


def test_the_best_and_the_most_recent_results_are_kept() -> None:
    searcher, rng, told = TpeSearcher(SPACE), random.Random(0), []
    for trial in range(5 * MAX_FINISHED):
        told.append(rng.random())
        config = Config(x=rng.random(), y=rng.random())
        searcher.tell(Observation(trial, 1, config, (told[-1],)))
        kept = losses_of(level_of(searcher))
        assert len(kept) <= MAX_FINISHED
    assert set(sorted(told)[:KEPT_BEST]) <= set(kept)
    assert kept[-KEPT + KEPT_BEST :] == told[-KEPT + KEPT_BEST :]


def test_with_several_goals_the_best_front_is_kept() -> None:
    searcher, rng = TpeSearcher(SPACE, goals=2), random.Random(0)
    front = [(i / 9, 1 - i / 9) for i in range(10)]
    for trial in range(3 * MAX_FINISHED):
        losses = front[trial] if trial < len(front) else (1 + rng.random(), 1 + rng.random())
        searcher.tell(Observation(trial, 1, Config(x=rng.random(), y=rng.random()), losses))
    assert {tuple(entry.losses or ()) for entry in level_of(searcher)._entries} >= set(front)


def test_running_trials_are_kept_until_they_end() -> None:
    searcher, rng = TpeSearcher(SPACE), random.Random(0)
    searcher.set_running(0, Config(x=0.5, y=0.5))
    for trial in range(1, 2 * MAX_FINISHED):
        searcher.tell(Observation(trial, 1, Config(x=rng.random(), y=rng.random()), (rng.random(),)))
    data = level_of(searcher)
    assert sum(entry.losses is None for entry in data._entries) == 1
    searcher.ask(2 * MAX_FINISHED)
    searcher.tell(Observation(0, 1, Config(x=0.5, y=0.5), (0.0,)))
    assert sum(entry.losses is None for entry in data._entries) == 1  # the one just asked for


def test_what_is_drawn_does_not_depend_on_when_the_model_was_last_used() -> None:
    rng = random.Random(0)
    results = [(Config(x=rng.random(), y=rng.random()), rng.random()) for _ in range(MAX_FINISHED + 20)]
    often, once = TpeSearcher(SPACE), TpeSearcher(SPACE)
    for trial, (config, loss) in enumerate(results):
        drawn = often.ask(trial) if trial % 40 == 0 else config
        often.set_running(trial, config)
        once.recall(trial, config)
        for searcher in (often, once):
            searcher.tell(Observation(trial, 1, config, (loss,)))
        assert drawn is not None
    assert often.ask(len(results)) == once.ask(len(results))
