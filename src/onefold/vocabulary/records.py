"""The records that packages exchange: small, frozen, and equal after a round trip through JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Value = str | int | float | bool | None
OMIT_IF_EMPTY = {"omit if empty": True}  # metadata of a field that `to_json` leaves out while it is empty
Metrics = Mapping[str, float]
Record = TypeVar("Record")


class Config(Mapping[str, Value]):
    """A configuration: the values of the active parameters, as `config.lr` or `config["lr"]`."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Value] | None = None, /, **more: Value) -> None:
        object.__setattr__(self, "_values", MappingProxyType({**(values or {}), **more}))

    def __getitem__(self, name: str) -> Value:
        return self._values[name]  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            known = ", ".join(self) or "none"
            raise AttributeError(f"the configuration has no parameter {name!r}; active: {known}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a configuration is immutable; make a new one: Config(config, lr=0.1)")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __reduce__(self) -> tuple[type[Config], tuple[dict[str, Value]]]:
        return Config, (dict(self),)

    @property
    def digest(self) -> str:
        """Return a short hash of the content, independent of the order of the parameters."""
        text = json.dumps(dict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class StudyState(Enum):
    """The state of a study. A killed study stays RUNNING: only its lock tells whether a process runs it."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    DONE = "done"
    FAILED = "failed"


class TrialState(Enum):
    """The state of a trial after its latest rung."""

    RUNNING = "running"
    WAITING = "waiting"  # may still be promoted, or was paused by a limit of the study
    STOPPED = "stopped"  # was not promoted
    DONE = "done"  # trained with the full budget
    FAILED = "failed"


class RungState(Enum):
    """The state of one rung of a trial: decided, then done or failed."""

    DECIDED = "decided"
    DONE = "done"
    FAILED = "failed"


class FailureKind(Enum):
    """The reason why a trial failed."""

    RAISED = "raised"
    HUNG = "hung"
    KILLED = "killed"
    OUT_OF_MEMORY = "out of memory"
    NOT_A_NUMBER = "not a number"
    NO_SPACE = "no disk space"  # stops the study instead, since no trial is to blame


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a trial, as a value rather than an exception."""

    kind: FailureKind
    reason: str
    traceback: str = ""
    log: str = field(default="", metadata=OMIT_IF_EMPTY)  # the file with all of it, in the study's folder


@dataclass(frozen=True, slots=True)
class Energy:
    """An energy and its source: `rapl`, `nvml`, `rapl+nvml`, `modelled` or `unavailable`."""

    joules: float | None
    source: str

    @property
    def measured(self) -> bool:
        """Return whether the energy comes from a counter rather than a model."""
        return self.source not in ("modelled", "unavailable")


@dataclass(frozen=True, slots=True)
class Measurement:
    """The cost of one window of work."""

    time_s: float
    cpu_s: float
    energy: Energy
    memory_bytes: int | None = None  # peak resident memory of the process in the window

    def __add__(self, other: Measurement) -> Measurement:
        return Measurement(
            time_s=self.time_s + other.time_s,
            cpu_s=self.cpu_s + other.cpu_s,
            energy=_sum_of_energies(self.energy, other.energy),
            memory_bytes=max((m for m in (self.memory_bytes, other.memory_bytes) if m is not None), default=None),
        )

    @classmethod
    def nothing(cls) -> Measurement:
        """Return the empty window, the identity of addition."""
        return cls(0.0, 0.0, Energy(0.0, "nothing"))


def _sum_of_energies(first: Energy, other: Energy) -> Energy:
    if first.source == "nothing":
        return other
    if other.source == "nothing":
        return first
    if first.joules is None or other.joules is None:
        return Energy(None, "unavailable")
    # The source of a sum is its weakest part; two counters are both named.
    if first.measured and other.measured:
        source = "+".join(sorted({*first.source.split("+"), *other.source.split("+")}, reverse=True))
    else:
        source = "modelled"
    return Energy(first.joules + other.joules, source)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a rung may spend: train up to `epochs` in total, on the share `data` of the data, for at most `time_s`."""

    level: int
    epochs: int
    data: float
    time_s: float | None = None
    fresh: bool = False  # train from scratch instead of from the checkpoint


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over the granted data, with its metrics and its cost."""

    trial: int
    number: int  # counted from 1 over the whole trial
    rung: int
    metrics: Metrics
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Rung:
    """One run of a trial at one budget. `decision` numbers the rungs of a study in the order they were decided."""

    decision: int
    trial: int
    rung: int
    bracket: int
    grant: Grant
    threads: int = 1
    state: RungState = RungState.DECIDED
    metrics: Metrics = field(default_factory=dict)
    measurement: Measurement = field(default_factory=Measurement.nothing)
    failure: Failure | None = None
    attempts: int = 0
    started_s: float | None = None  # seconds since the start of the study
    ended_s: float | None = None

    @property
    def undecided(self) -> Rung:
        """Return the rung as it was before it ran."""
        return Rung(self.decision, self.trial, self.rung, self.bracket, self.grant, self.threads)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A proposed configuration that the workload rejected, with its reason."""

    config: Config
    reason: str


@dataclass(frozen=True, slots=True)
class Trial:
    """A configuration and all its rungs."""

    number: int
    config: Config
    state: TrialState = TrialState.RUNNING
    rungs: tuple[Rung, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    redraws: int = 0  # proposals before this one that were rejected or known already

    @property
    def finished_rungs(self) -> tuple[Rung, ...]:
        """Return the rungs that have a result, lowest first."""
        return tuple(rung for rung in self.rungs if rung.state is RungState.DONE)

    @property
    def metrics(self) -> Metrics:
        """Return the metrics of the latest finished rung; empty before that."""
        return self.finished_rungs[-1].metrics if self.finished_rungs else {}

    def with_metrics(self, metrics: Metrics) -> Trial:
        """Return the trial with other metrics of the latest finished rung."""
        latest = self.finished_rungs[-1]
        return replace(self, rungs=tuple(replace(r, metrics=metrics) if r is latest else r for r in self.rungs))

    @property
    def level(self) -> int:
        """Return the level of the latest finished rung; 0 before that."""
        return self.finished_rungs[-1].grant.level if self.finished_rungs else 0

    @property
    def failure(self) -> Failure | None:
        """Return the failure of the trial, if it failed and was not run again since."""
        return self.rungs[-1].failure if self.rungs else None

    @property
    def current_rungs(self) -> tuple[Rung, ...]:
        """Return the rungs without those that failed and were run again."""
        latest = {rung.rung: rung for rung in self.rungs}
        return tuple(rung for rung in self.rungs if latest[rung.rung] is rung)

    @property
    def cost(self) -> Measurement:
        """Return the cost of all rungs together; that of a rung includes the attempts that failed."""
        return sum((rung.measurement for rung in self.current_rungs), Measurement.nothing())


def to_json(record: Any) -> Any:
    """Return a record as plain JSON values; `from_json` restores an equal record."""
    if is_dataclass(record):
        return {
            f.name: to_json(getattr(record, f.name))
            for f in fields(record)
            if f.metadata != OMIT_IF_EMPTY or getattr(record, f.name)
        }
    if isinstance(record, Enum):
        return record.value
    if isinstance(record, Mapping):
        return {str(key): to_json(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [to_json(value) for value in record]
    return record


def from_json(kind: type[Record], data: Any) -> Record:
    """Return the record of class `kind` that `to_json` wrote as `data`."""
    return _revive(kind, data)  # type: ignore[no-any-return]


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _revive(kind: Any, data: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        if data is None:
            return None
        options = [option for option in get_args(kind) if option is not NoneType]
        return _revive(options[0], data) if len(options) == 1 else data
    if origin is tuple:
        return tuple(_revive(get_args(kind)[0], item) for item in data)
    if origin is Mapping or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return {key: _revive(get_args(kind)[1], value) for key, value in data.items()}
    if kind is Config:
        return Config(data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if is_dataclass(kind):
        hints = _hints(kind)  # type: ignore[arg-type]
        known = {f.name for f in fields(kind)}
        return kind(**{name: _revive(hints[name], value) for name, value in data.items() if name in known})  # type: ignore[operator]
    if kind is float and isinstance(data, int):
        return float(data)
    return data
