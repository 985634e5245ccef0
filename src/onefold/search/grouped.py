"""One searcher per group of parameters, such as a grid over the architecture and TPE over the training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

from onefold.search.searcher import Observation, Searcher
from onefold.vocabulary.records import Config, Value
from onefold.vocabulary.space import Space


@runtime_checkable
class TracksRunning(Protocol):
    """A searcher that tracks running trials, and must know when one differs from its proposal."""

    def set_running(self, number: int, config: Config) -> None:
        """Record that trial `number` runs with `config`."""


class GroupedSearcher:
    """Join the proposals of several searchers, each over its groups, into configurations of the whole space.

    Every searcher works on `space.only(groups)` and is told the same results with its own parameters. A parameter whose
    condition depends on another group is dropped afterwards if the condition does not hold.
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
            if isinstance(searcher, TracksRunning):
                searcher.set_running(number, _subset(config, names))
        return config

    def tell(self, observation: Observation) -> None:
        for names, searcher in self._parts:
            searcher.tell(replace(observation, config=_subset(observation.config, names)))

    def recall(self, number: int, config: Config, attempt: int = 0) -> None:
        for names, searcher in self._parts:
            searcher.recall(number, _subset(config, names), attempt)


def _subset(config: Config, names: frozenset[str]) -> Config:
    return Config({name: value for name, value in config.items() if name in names})
