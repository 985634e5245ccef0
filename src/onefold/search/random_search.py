"""Random search."""

from __future__ import annotations

from onefold.search.samples import random_config
from onefold.search.searcher import Observation
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space


class RandomSearcher:
    """Sample each trial independently, the same for the same number and attempt."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        self._space = space
        self._seed = seed

    def ask(self, number: int, attempt: int = 0) -> Config:
        return random_config(self._space, self._seed, number, attempt)

    def tell(self, observation: Observation) -> None:
        pass

    def recall(self, number: int, config: Config, attempt: int = 0) -> None:
        pass
