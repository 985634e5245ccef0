"""A searcher for each group of parameters: a grid over the architecture, say, with TPE over how to train it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

from onefold.search.searcher import Observation, Searcher
from onefold.vocabulary.records import Config, Value
from onefold.vocabulary.space import Space


@runtime_checkable
class Assuming(Protocol):
    """A searcher that remembers what is under way, and has to hear when that is not what it proposed."""

    def assume(self, number: int, config: Config) -> None:
        """Trial `number` is under way with `config`."""


class GroupedSearcher:
    """Joins the answers of several searchers, each over groups of its own, into configurations of the whole space.

    Every searcher works on `space.only(its groups)` and is told the same results with its own parameters. A parameter
    whose condition in another group does not hold is left out after all have answered.
    """

    def __init__(self, space: Space, parts: Mapping[tuple[str, ...], Searcher]) -> None:
        self._space = space
        self._parts = [(frozenset(space.only(groups)), searcher) for groups, searcher in parts.items()]

    def ask(self, number: int, attempt: int = 0) -> Config:
        values: dict[str, Value] = {}
        for _, searcher in self._parts:
            values.update(searcher.ask(number, attempt))
        config = self._space.config(values)
        for names, searcher in self._parts:
            if isinstance(searcher, Assuming):
                searcher.assume(number, _share(config, names))
        return config

    def tell(self, observation: Observation) -> None:
        for names, searcher in self._parts:
            searcher.tell(replace(observation, config=_share(observation.config, names)))

    def recall(self, number: int, config: Config, attempt: int = 0) -> None:
        for names, searcher in self._parts:
            searcher.recall(number, _share(config, names), attempt)


def _share(config: Config, names: frozenset[str]) -> Config:
    return Config({name: value for name, value in config.items() if name in names})
