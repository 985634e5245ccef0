"""The contract of a searcher, held against every algorithm."""

from __future__ import annotations

import pytest

from onefold.search.algorithms import searcher
from onefold.search.searcher import Searcher
from onefold.testing.searchers import Make, SearcherContract
from onefold.vocabulary.space import Space


def named(algorithm: str) -> Make:
    return lambda space, seed, goals: searcher(algorithm, space, seed, goals)


class TestRandom(SearcherContract):
    examples = 30

    @pytest.fixture
    def make(self) -> Make:
        return named("random")


class TestGrid(SearcherContract):
    examples = 30

    @pytest.fixture
    def make(self) -> Make:
        return named("grid")


class TestTpe(SearcherContract):
    @pytest.fixture
    def make(self) -> Make:
        return named("tpe")


class TestGp(SearcherContract):
    examples = 2
    length = 6
    long = 40

    @pytest.fixture
    def make(self) -> Make:
        return named("gp")


class TestCmaEs(SearcherContract):
    goals = (1,)

    @pytest.fixture
    def make(self) -> Make:
        return named("cmaes")


class TestNsga2(SearcherContract):
    @pytest.fixture
    def make(self) -> Make:
        return named("nsga2")


class TestGrouped(SearcherContract):
    goals = (1,)

    @pytest.fixture
    def make(self) -> Make:
        def make(space: Space, seed: int, goals: int) -> Searcher:
            return searcher(dict(zip(space.groups, ("grid", "tpe", "cmaes"))), space, seed, goals)

        return make
