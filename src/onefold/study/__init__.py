"""The composition, resumable; `tune` is one call over `Study`."""

from onefold.store.home import Home
from onefold.study.events import News, Snapshot
from onefold.study.result import Result
from onefold.study.spec import Spec
from onefold.study.study import Study, tune

__all__ = ["Home", "News", "Result", "Snapshot", "Spec", "Study", "tune"]
