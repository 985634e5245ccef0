"""Grid search: every configuration once, in order or shuffled."""

from __future__ import annotations

import math
import random

from onefold.search.draws import seed_for
from onefold.search.searcher import Observation, SpaceExhausted
from onefold.vocabulary.errors import SpaceError
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space


class GridSearcher:
    """Walks through the grid of a space, `points` values for each range that has more.

    Each `ask` takes one step, whatever number and attempt it is for. After the last configuration it raises
    SpaceExhausted, or with `cycle` starts again from the first one. `shuffle` visits the grid in a random order, so
    that a walk that ends early has seen every corner; without it the last parameter changes fastest.

    The grid is never laid out in memory: a step costs the same in a grid of ten places and of ten billion.
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
        self._places = math.prod(len(values) for values in self._values.values())
        self._start()

    def ask(self, number: int, attempt: int = 0) -> Config:  # noqa: ARG002 - one step, whoever asks
        while True:
            if self._position == self._places:
                if not self._cycle:
                    raise SpaceExhausted
                self._start()
            config = self._at(self._next_place())
            # Places that differ in inactive parameters only are one configuration.
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
        self._rng = random.Random(seed_for(self._seed, "grid"))

    def _next_place(self) -> int:
        here = self._position
        self._position += 1
        if not self._shuffle:
            return here
        # One step of the Fisher-Yates shuffle, remembering only the places that were swapped.
        there = self._rng.randrange(here, self._places)
        place = self._swapped.get(there, there)
        self._swapped[there] = self._swapped.pop(here, here)
        return place

    def _at(self, place: int) -> Config:
        """The configuration at one place of the grid, counted with the last parameter fastest."""
        values = {}
        for name in reversed(self._values):
            place, index = divmod(place, len(self._values[name]))
            values[name] = self._values[name][index]
        return self._space.config(values)
