"""Space and results -> the next configuration and its rung. Knows only the vocabulary."""

from onefold.search.forking import ForkPlan
from onefold.search.rung_scheduler import RUNG_SCHEDULES, planned_work, work_of
from onefold.search.search import Algorithm, Decision, ResultsBy, Search
from onefold.search.searcher import Observation, Searcher, SpaceExhausted

__all__ = [
    "RUNG_SCHEDULES", "Algorithm", "Decision", "ForkPlan", "Observation", "ResultsBy", "Search", "Searcher",
    "SpaceExhausted", "planned_work", "work_of",
]  # fmt: skip
