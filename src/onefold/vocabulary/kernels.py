"""What is said about compiling kernels: operators, candidates, rounds, what they cost, what was built."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from onefold.vocabulary.errors import BudgetError
from onefold.vocabulary.records import Energy

PHASES = ("search", "build", "run", "update", "whole")  # proposing, compiling, timing, learning, the whole model


@dataclass(frozen=True, slots=True)
class Operator:
    """A part of a model that is compiled by itself: loops over tensors, fused from a few nodes of the graph."""

    key: str  # the same for the same loops, whatever the model
    name: str
    weight: int  # how often the model runs it
    kind: str  # conv2d, matmul, …: what it mostly does
    shapes: tuple[str, ...]  # of its inputs and outputs, such as 1x32x32x16
    flops: float  # of one run


class CandidateFailure(StrEnum):
    """How a candidate failed."""

    INVALID = "invalid"  # the compiler refuses the schedule
    SLOW_BUILD = "slow build"  # compiling took too long
    SLOW_RUN = "slow run"  # running did
    CRASH = "crash"  # the process died
    WRONG = "wrong"  # its answer is not that of the operator


@dataclass(frozen=True, slots=True)
class ScheduleCandidate:
    """One implementation of an operator, and what became of it."""

    operator: str  # its key
    target: str  # what it was compiled for
    machine: str  # that measured it
    threads: int
    implementation: str  # the same for the same loops
    sketch: int  # which of the compiler's outlines
    decisions: tuple[int, ...]  # tile sizes, unrolling, places: what fills the outline in
    trace: str  # how to make it again, as JSON
    latency_s: float | None  # of one run; None where it failed
    failure: CandidateFailure | None = None
    build_s: float = 0.0
    run_s: float = 0.0
    joules: float | None = None  # of building and running it

    @property
    def key(self) -> str:
        """The same for the same implementation under the same conditions."""
        same = [self.operator, self.target, self.machine, self.threads, self.implementation]
        return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class CompileCost:
    """Seconds and joules by phase."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    joules: Mapping[str, float] = field(default_factory=dict)  # empty where nobody can tell
    source: str = "unavailable"  # of the joules

    @property
    def time_s(self) -> float:
        """All phases."""
        return sum(self.seconds.values())

    @property
    def energy(self) -> Energy:
        """All phases."""
        return Energy(sum(self.joules.values()) if self.joules else None, self.source)

    def __add__(self, other: CompileCost) -> CompileCost:
        return CompileCost(_sum(self.seconds, other.seconds), _sum(self.joules, other.joules), other.source)


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in PHASES if name in one or name in other}


@dataclass(frozen=True, slots=True)
class OperatorState:
    """Where an operator of a model stands."""

    operator: Operator
    best_s: float | None  # of one run
    tried: int = 0
    filtered: int = 0  # dropped before they were measured
    failed: int = 0
    suspended: bool = False  # it has stopped improving

    @property
    def time_s(self) -> float:
        """Of all its runs in one pass through the model."""
        return (self.best_s or 0.0) * self.operator.weight


@dataclass(frozen=True, slots=True)
class TuningRound:
    """A batch of candidates for some operators, and the model's latency with the best of all."""

    number: int
    model: str
    latency_s: float  # of the whole model, compiled with the best so far
    ended_s: float  # since the compilation began
    operators: tuple[OperatorState, ...]
    spent: CompileCost  # by all models so far

    @property
    def tried(self) -> int:
        """Candidates so far."""
        return sum(one.tried for one in self.operators)


@dataclass(frozen=True, slots=True)
class CandidateHistory:
    """All candidates of an operator, in the order they were measured, and the line that parts hot from cold."""

    operator: Operator
    candidates: tuple[ScheduleCandidate, ...]
    line: tuple[float | None, ...]  # smoothed latency at each candidate; None where it failed
    recalled: int = 0  # of them: known from earlier compilations

    @property
    def is_cold(self) -> tuple[bool, ...]:
        """Of each candidate: whether it was slower than usual then, and so taught nothing."""
        return tuple(
            one.latency_s is not None and usual is not None and one.latency_s > usual
            for one, usual in zip(self.candidates, self.line)
        )


@dataclass(frozen=True, slots=True)
class GraphLevelResult:
    """A level of graph optimisation: what it costs and what it brings, before any operator is tuned."""

    number: int
    latency_s: float
    compile_s: float
    operators: int
    joules: float | None = None  # of compiling


@dataclass(frozen=True, slots=True)
class CompileBudget:
    """When to stop, whatever the models have come to: when something is used up, or when it no longer pays."""

    minutes: float | None = None
    joules: float | None = None
    candidates: int | None = None
    money: float | None = None
    price_per_kwh: float | None = None
    falls: float | None = -0.25  # the rate rule: by what share the gain per second may fall; None: never stop for it

    def check(self) -> None:
        """Tells the first mistake."""
        for name in ("minutes", "joules", "candidates", "money", "price_per_kwh"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BudgetError(f"{name} of a compilation must be above 0, but got {value:g}")
        if self.money is not None and self.price_per_kwh is None:
            raise BudgetError("--money needs the price of energy: --price 0.30/kWh")
        if self.falls is not None and not self.falls < 0:
            raise BudgetError(f"the gain per second may fall by a share below 0, such as -0.25; got {self.falls:g}")

    def money_for(self, joules: float) -> float:
        """What so much energy costs."""
        return joules / 3.6e6 * (self.price_per_kwh or 0.0)


@dataclass(frozen=True, slots=True)
class RuntimeLatency:
    """A way to serve the model, measured beside the others."""

    name: str  # tvm, tvm untuned, onnxruntime and its forms, torch
    latency_s: float
    threads: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class CompileResult:
    """What compiling a model came to."""

    model: str
    device: str
    target: str
    threads: int
    level: int  # of graph optimisation
    strategy: str
    rounds: tuple[TuningRound, ...]
    histories: tuple[CandidateHistory, ...]  # of its operators, those with the most work first
    runtimes: tuple[RuntimeLatency, ...]  # fastest first
    recommended: str  # the fastest runtime
    why_stopped: str
    error: float  # the largest difference from the answers of the model, as a share of the largest answer
    spent: CompileCost = field(default_factory=CompileCost)  # by all models of the compilation
    levels: tuple[GraphLevelResult, ...] = ()  # where they were compared
    folder: str = ""  # where the library was put
