"""Run a search to its end with results that arrive in random order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from onefold.search import Decision, Search
from onefold.vocabulary.records import Metrics

Truth = Callable[[Decision], Metrics | None]


def play(search: Search, rng: random.Random, truth: Truth, past: Sequence[Decision] = ()) -> list[Decision]:
    """Run a search to its end after replaying `past`; `truth` is the result of a decision. Return all decisions."""
    made: list[Decision] = []
    pending: list[Decision] = []
    while not search.is_finished:
        known = past[len(made)] if len(made) < len(past) else None
        decision = search.ask(known)
        if decision is not None:
            made.append(decision)
            pending.append(decision)
            if known is None and rng.random() < 0.5:
                continue
        if pending and (decision is None or known is not None or rng.random() < 0.7):
            done = pending.pop(rng.randrange(len(pending)))
            search.tell(done.number, truth(done))
    return made
