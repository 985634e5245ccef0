"""Studies: the composition of search, training, serving and compression; durable, parallel, resumable."""

from onefold.store.home import Home
from onefold.study.events import StudyEvent, StudyProgress
from onefold.study.options import ParallelismOptions, SearchOptions
from onefold.study.result import Result
from onefold.study.spec import Spec
from onefold.study.study import Study

__all__ = ["Home", "ParallelismOptions", "Result", "SearchOptions", "Spec", "Study", "StudyEvent", "StudyProgress"]
