"""What can go wrong, and how a program should end when it does.

    OnefoldError                 exit code 1
    ├── InputError               2   the caller's mistake: says the rule, what came and what to do
    │   ├── ArgumentError            a keyword argument that does not exist
    │   ├── SpaceError               a parameter, a condition or a configuration
    │   ├── WorkloadError            a file without a workload, a workload that cannot run
    │   ├── ObjectiveError           a metric that nobody reports, a wrong bound
    │   ├── BudgetError              limits that make no sense
    │   ├── DeviceError              a device that is not known, or whose figures make no sense
    │   ├── ModelError               a model that cannot be exported, read or served
    │   │   └── TooLarge             … in the memory that the device has
    │   └── MissingExtra             an optional package that is not installed
    ├── DatasetError             2   a data set that is not there, or not what it should be
    ├── StoreError               3   a broken store file, a full disk
    │   ├── StudyNotFound            no study of that name
    │   └── StudyBusy                another process is running it
    ├── StudyFailed              4   the study ended without a model
    └── EngineError              5   worker processes that cannot be started

Two stand apart. `Rejected`: a workload refuses one configuration, and the search draws another. `NotANumber`: a loss
or a metric is no longer finite, and the trial ends.
A candidate that fails while it trains is no exception at all but a value in the record.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class OnefoldError(Exception):
    """Anything that Onefold itself reports; `exit_code` is what a command ends with."""

    exit_code = 1


class InputError(OnefoldError):
    """The caller's mistake."""

    exit_code = 2


class ArgumentError(InputError, TypeError):
    """A keyword argument that a function does not have."""


class SpaceError(InputError):
    """A parameter, a condition or a configuration that breaks the rules of the space."""


class WorkloadError(InputError):
    """A file without a workload, or a workload that cannot run."""


class ObjectiveError(InputError):
    """A metric that nobody reports, or a bound that cannot be read."""


class BudgetError(InputError):
    """Limits that make no sense."""


class DeviceError(InputError):
    """A device that is not known, or whose figures make no sense."""


class ModelError(InputError):
    """A model that cannot be exported, read or served."""


class TooLarge(ModelError):
    """A model, or a batch of it, that needs more memory than the device has."""


class MissingExtra(InputError):
    """An optional package that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(package, extra)
        self.package = package
        self.extra = extra

    def __str__(self) -> str:
        return f"{self.package} is not installed; install it with: pip install 'onefold[{self.extra}]'"


class DatasetError(OnefoldError):
    """A data set that is not there, or not what it should be."""

    exit_code = 2


class StoreError(OnefoldError):
    """What happened cannot be written or read back."""

    exit_code = 3


class StudyNotFound(StoreError):
    """No study of that name in this store."""

    exit_code = 2


class StudyBusy(StoreError):
    """Another process is running that study."""


class QueueBusy(StoreError):
    """Another process is serving the queue."""


class StudyFailed(OnefoldError):
    """The study ended without a single usable trial."""

    exit_code = 4


class EngineError(OnefoldError):
    """Worker processes cannot be started or keep dying."""

    exit_code = 5


class Rejected(Exception):
    """Raised by `Workload.check` to refuse a configuration, with the reason."""


class NotANumber(Exception):
    """A loss or a metric has become NaN or infinite."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" when a known word is near, otherwise the known words themselves."""
    names = sorted(known)
    near = get_close_matches(word, names, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""
