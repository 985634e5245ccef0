"""Grid search: every configuration once, in order or shuffled."""

from __future__ import annotations

import math
import random

from onefold.search.samples import derive_seed
from onefold.search.searcher import Observation, SpaceExhausted
from onefold.vocabulary.errors import SpaceError
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space


class GridSearcher:
    """Enumerate the grid of a space, with at most `points` values per range.

    Each `ask` takes one step, whatever its number and attempt. After the last configuration it raises SpaceExhausted,
    or with `cycle` starts again. `shuffle` enumerates in random order, so that a search that ends early has covered all
    of the grid; without it the last parameter changes fastest. The grid is never materialized.
    """

    def __init__(
        self, space: Space, seed: int = 0, *, points: int = 5, shuffle: bool = True, cycle: bool = False
    ) -> None:
        if points < 1:
            raise SpaceError(f"a grid needs 1 point or more in each range, but got points={points}")
        self._space = space
        self._seed = seed
        self._shuffle = shuffle
        self._cycle = cycle
        self._values = {name: parameter.grid(points) for name, parameter in space.parameters.items()}
        self._size = math.prod(len(values) for values in self._values.values())
        self._start()

    def ask(self, number: int, attempt: int = 0) -> Config:  # noqa: ARG002 - one step per call
        while True:
            if self._position == self._size:
                if not self._cycle:
                    raise SpaceExhausted
                self._start()
            config = self._at(self._next_index())
            # Points that differ only in inactive parameters are the same configuration.
            if config not in self._seen:
                self._seen.add(config)
                return config

    def tell(self, observation: Observation) -> None:
        pass

    def recall(self, number: int, config: Config, attempt: int = 0) -> None:  # noqa: ARG002 - as in ask
        for step in range(attempt + 1):
            self.ask(number, step)

    def _start(self) -> None:
        self._position = 0
        self._seen: set[Config] = set()
        self._swapped: dict[int, int] = {}
        self._rng = random.Random(derive_seed(self._seed, "grid"))

    def _next_index(self) -> int:
        here = self._position
        self._position += 1
        if not self._shuffle:
            return here
        # One step of the Fisher-Yates shuffle, which stores only the indices that were swapped.
        there = self._rng.randrange(here, self._size)
        index = self._swapped.get(there, there)
        self._swapped[there] = self._swapped.pop(here, here)
        return index

    def _at(self, position: int) -> Config:
        """Return the configuration at a position of the grid, where the last parameter changes fastest."""
        values = {}
        for name in reversed(self._values):
            position, index = divmod(position, len(self._values[name]))
            values[name] = self._values[name][index]
        return self._space.config(values)
