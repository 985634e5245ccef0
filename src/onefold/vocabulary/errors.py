"""The exceptions of Onefold, and the exit code of each.

    OnefoldError                 exit code 1
    ├── InputError               2   a wrong argument: what is wrong, what was given, what to do
    │   ├── ArgumentError            a keyword argument that does not exist
    │   ├── SpaceError               a parameter, a condition or a configuration
    │   ├── WorkloadError            a file without a workload, a workload that cannot run
    │   ├── ObjectiveError           a metric that is not reported, a wrong bound
    │   ├── BudgetError              invalid limits
    │   ├── DeviceError              an unknown device, or one with invalid figures
    │   │   └── DeviceUnavailable    5   … that does not answer now
    │   ├── ModelError               a model that cannot be exported, read or served
    │   │   ├── TooLarge             … for the memory of the device
    │   │   ├── MeasuringFailed      5   … because the process that serves it hangs or keeps dying
    │   │   └── UntrustedFolder      … whose folder contains or names code of unknown origin
    │   └── MissingExtra             an optional package that is not installed
    ├── DatasetError             2   a dataset that is missing or corrupt
    ├── StoreError               3   a broken store file, a full disk
    │   ├── StudyNotFound            no study of that name
    │   └── StudyBusy                another process is running it
    ├── StudyFailed              4   the study ended without a model
    └── EngineError              5   worker processes that cannot be started

Two are not errors of Onefold: a workload raises `Rejected` to refuse a configuration, and the search proposes another;
`NotANumber` ends a trial whose loss or metric is no longer finite. The failure of a trial is not an exception but a
`Failure` in its record.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class OnefoldError(Exception):
    """The base of all errors; `exit_code` is the exit code of the command line."""

    exit_code = 1


class InputError(OnefoldError):
    """An argument, file or option that is wrong."""

    exit_code = 2


class ArgumentError(InputError, TypeError):
    """A keyword argument that a function does not have."""


class SpaceError(InputError):
    """A parameter, a condition or a configuration that breaks the rules of the space."""


class WorkloadError(InputError):
    """A file without a workload, or a workload that cannot run."""


class ObjectiveError(InputError):
    """A metric that is not reported, or an invalid bound."""


class BudgetError(InputError):
    """Invalid limits."""


class DeviceError(InputError):
    """An unknown device, or one with invalid figures."""


class DeviceUnavailable(DeviceError):
    """A device that cannot be measured now: it does not answer, or its agent is another one than was paired."""

    exit_code = 5


class ModelError(InputError):
    """A model that cannot be exported, read or served."""


class TooLarge(ModelError):
    """A model, or a batch of it, that needs more memory than the device has."""


class MeasuringFailed(ModelError):
    """A model that could not be measured: the process that serves it was `kind`, "killed" or "hung"."""

    exit_code = 5

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message, kind)
        self.kind = kind

    def __str__(self) -> str:
        return str(self.args[0])


class UntrustedFolder(ModelError):
    """A model folder that this home did not write, and whose code would have to run."""


class MissingExtra(InputError):
    """An optional package that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(package, extra)
        self.package = package
        self.extra = extra

    def __str__(self) -> str:
        return f"{self.package} is not installed; install it with: pip install 'onefold[{self.extra}]'"


class DatasetError(OnefoldError):
    """A dataset that is missing or corrupt."""

    exit_code = 2


class StoreError(OnefoldError):
    """The store cannot be written or read."""

    exit_code = 3


class StudyNotFound(StoreError):
    """No study of that name in this store."""

    exit_code = 2


class StudyBusy(StoreError):
    """Another process is running that study."""


class QueueBusy(StoreError):
    """Another process is serving the queue."""


class StudyFailed(OnefoldError):
    """The study ended without a usable trial."""

    exit_code = 4


class EngineError(OnefoldError):
    """Worker processes cannot be started, or die repeatedly."""

    exit_code = 5


class Rejected(Exception):
    """Raised by `Workload.check` to refuse a configuration, with the reason."""


class NotANumber(Exception):
    """A loss or a metric has become NaN or infinite."""


def suggestion(word: str, known: Iterable[str], *, with_list: bool = False) -> str:
    """Return "; did you mean 'x'?" if a known word is similar, and otherwise, or `with_list`, list the known words."""
    names = sorted(known)
    folded = {name.casefold(): name for name in reversed(names)}
    near = get_close_matches(str(word).casefold(), folded, n=1)
    if near:
        return f"; did you mean {folded[near[0]]!r}?" + (f" known: {', '.join(names)}" if with_list else "")
    return f"; known: {', '.join(names)}" if names else "; there is none"


def unknown(kind: str, name: object, known: Iterable[str], *, of: object = "", with_list: bool = False) -> str:
    """Return the message about an unknown name: "unknown group 'modell' of the space; did you mean 'model'?"."""
    owner = f" of {of}" if of else ""
    return f"unknown {kind} {name!r}{owner}{suggestion(str(name), known, with_list=with_list)}"
