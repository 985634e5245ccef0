"""Space + told results -> the next configuration and its rung. Knows the vocabulary only."""

from onefold.search.ladder import LADDERS, planned_work
from onefold.search.search import Algorithm, Decision, Search
from onefold.search.searcher import Observation, Searcher, SpaceExhausted

__all__ = ["LADDERS", "Algorithm", "Decision", "Observation", "Search", "Searcher", "SpaceExhausted", "planned_work"]
