"""The contract of a searcher, for every algorithm."""

from __future__ import annotations

import pytest
from searcher_contract import Make, SearcherContract

from onefold.search.algorithms import create_searcher
from onefold.search.searcher import Searcher
from onefold.vocabulary.space import Float, Int, Space


def named(algorithm: str) -> Make:
    return lambda space, seed, goals: create_searcher(algorithm, space, seed, goals)


class TestRandom(SearcherContract):
    examples = 8

    @pytest.fixture
    def make(self) -> Make:
        return named("random")


class TestGrid(SearcherContract):
    examples = 8

    @pytest.fixture
    def make(self) -> Make:
        return named("grid")


class TestTpe(SearcherContract):
    @pytest.fixture
    def make(self) -> Make:
        return named("tpe")


class TestGp(SearcherContract):
    examples = 1
    length = 4
    long = 20
    plain = Space(lr=Float(1e-4, 1e-1, log=True), steps=Int(1, 100_000))
    known = 4

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
            return create_searcher(dict(zip(space.groups, ("grid", "tpe", "cmaes"))), space, seed, goals)

        return make
