"""Records of kernel compilation: operators, schedule candidates, tuning rounds, budgets, costs and results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.errors import BudgetError, InputError
from onefold.vocabulary.quantities import parse_joules, parse_price
from onefold.vocabulary.records import Energy

# Proposing candidates, building them, timing them, updating the models that rank them, timing the whole model.
PHASES = ("search", "build", "run", "update", "whole")
GRAPH_LEVELS = range(5)
DEFAULT_GRAPH_LEVEL = 3
DEFAULT_STRATEGY = "model-guided"
CANDIDATES_PER_ROUND = 8
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Operator:
    """A fused operator of a model, which TVM compiles into one kernel (a TIR function)."""

    key: str  # structural hash of its TIR module: the same in every model
    name: str
    weight: int  # how often one inference runs it
    kind: str  # conv2d, matmul, …
    shapes: tuple[str, ...]  # of its inputs and outputs, such as 1x32x32x16
    flops: float  # of one run


class CandidateFailure(StrEnum):
    """How a candidate failed."""

    INVALID = "invalid"  # the compiler rejected the schedule
    SLOW_BUILD = "slow build"  # the build timed out
    SLOW_RUN = "slow run"  # the run timed out
    CRASH = "crash"  # the process died
    WRONG = "wrong"  # its output differs from the operator's


@dataclass(frozen=True, slots=True)
class ScheduleCandidate:
    """A measured schedule of an operator."""

    operator: str  # the operator's key
    target: str  # the target that it was compiled for
    machine: str  # the machine that measured it
    threads: int
    implementation: str  # structural hash of the scheduled module
    sketch: int  # index of the sketch that it instantiates
    decisions: tuple[int, ...]  # the sampled decisions: tile sizes, unrolling, compute locations
    trace: str  # TVM's schedule trace as JSON, from which the schedule can be replayed
    latency_s: float | None  # of one run; None if it failed
    failure: CandidateFailure | None = None
    build_s: float = 0.0
    run_s: float = 0.0
    joules: float | None = None  # of building and running it

    @property
    def key(self) -> str:
        """Return a digest that identifies this implementation under these conditions."""
        identity = [self.operator, self.target, self.machine, self.threads, self.implementation]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class CompileCost:
    """Time and energy of a compilation by phase."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    joules: Mapping[str, float] = field(default_factory=dict)  # empty if no energy source is available
    source: str = "unavailable"  # of the joules

    @property
    def time_s(self) -> float:
        """Return the time of all phases."""
        return sum(self.seconds.values())

    @property
    def energy(self) -> Energy:
        """Return the energy of all phases."""
        return Energy(sum(self.joules.values()) if self.joules else None, self.source)

    def __add__(self, other: CompileCost) -> CompileCost:
        return CompileCost(
            _add_by_phase(self.seconds, other.seconds), _add_by_phase(self.joules, other.joules), other.source
        )

    def __sub__(self, other: CompileCost) -> CompileCost:
        return self + other.scaled(-1.0)

    def scaled(self, factor: float) -> CompileCost:
        """Return the cost multiplied by a factor."""
        seconds = {name: factor * value for name, value in self.seconds.items()}
        joules = {name: factor * value for name, value in self.joules.items()}
        return CompileCost(seconds, joules, self.source)


def _add_by_phase(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in PHASES if name in first or name in second}


@dataclass(frozen=True, slots=True)
class OperatorState:
    """The tuning state of an operator of a model after a round."""

    operator: Operator
    best_s: float | None  # latency of one run of its best candidate
    tried: int = 0
    filtered: int = 0  # dropped by the cold filter before they were measured
    failed: int = 0
    suspended: bool = False  # no further gain is expected

    @property
    def time_s(self) -> float:
        """Return the time of all its runs in one inference."""
        return (self.best_s or 0.0) * self.operator.weight


@dataclass(frozen=True, slots=True)
class TuningRound:
    """One batch of candidates for some operators, and the model's latency with the best candidates so far."""

    number: int
    model: str
    latency_s: float  # of the whole model, compiled with the best candidates so far
    ended_s: float  # since the compilation began
    operators: tuple[OperatorState, ...]
    spent: CompileCost  # of all models so far
    own: CompileCost = field(default_factory=CompileCost)  # of this model so far, with its share of common operators

    @property
    def tried(self) -> int:
        """Return the number of candidates measured so far."""
        return sum(state.tried for state in self.operators)


@dataclass(frozen=True, slots=True)
class CandidateHistory:
    """All candidates of an operator in measurement order, with the LOESS fit that separates hot from cold ones."""

    operator: Operator
    candidates: tuple[ScheduleCandidate, ...]
    line: tuple[float | None, ...]  # LOESS fit of the latency at each candidate; None if it failed
    recalled: int = 0  # how many of the first ones come from earlier compilations

    @property
    def is_cold(self) -> tuple[bool, ...]:
        """Return for each candidate whether its latency is above the LOESS fit at that point of the search."""
        return tuple(
            candidate.latency_s is not None and usual_s is not None and candidate.latency_s > usual_s
            for candidate, usual_s in zip(self.candidates, self.line)
        )


@dataclass(frozen=True, slots=True)
class GraphLevelResult:
    """What a graph optimization level costs and gains before any operator is tuned."""

    number: int
    latency_s: float
    compile_s: float
    operators: int
    joules: float | None = None  # of compiling


@suggest_fields
@dataclass(frozen=True, slots=True)
class CompileBudget:
    """When tuning stops: as soon as one limit is reached, or when a second of tuning gains less and less.

    Args:
        minutes: Wall-clock time, over all runs of an interrupted compilation.
        energy: Energy in joules, or as text such as "50kJ".
        money: Cost of the energy, in the currency of `price`.
        price: Price of a kilowatt-hour, or as text such as "0.30/kWh".
        candidates: Number of measured candidates, over all models.
        gain_drop: Stop when the latency gain per second of tuning drops by at least this fraction in two consecutive
            rounds; None never stops for this reason.
    """

    minutes: float | None = None
    energy: str | float | None = None
    money: float | None = None
    price: str | float | None = None
    candidates: int | None = None
    gain_drop: float | None = 0.25

    @property
    def energy_j(self) -> float | None:
        """Return the energy limit in joules."""
        return None if self.energy is None else parse_joules(self.energy)

    @property
    def price_per_kwh(self) -> float | None:
        """Return the price of a kilowatt-hour."""
        return None if self.price is None else parse_price(self.price)

    def check(self) -> None:
        """Raise BudgetError for the first invalid limit, and InputError for one that cannot be parsed."""
        limits = {
            "minutes": self.minutes, "energy": self.energy_j, "money": self.money, "price": self.price_per_kwh,
            "candidates": self.candidates, "gain_drop": self.gain_drop,
        }  # fmt: skip
        for name, value in limits.items():
            if value is not None and not value > 0:
                raise BudgetError(f"{name} must be above 0, got {value:g}")
        if self.money is not None and self.price is None:
            raise BudgetError('money needs the price of energy, such as price="0.30/kWh"')

    def money_for(self, joules: float) -> float:
        """Return the cost of this much energy."""
        return joules / JOULES_PER_KWH * (self.price_per_kwh or 0.0)


@suggest_fields
@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How kernels are compiled and searched for. Compilations that differ in these are different compilations.

    Args:
        graph_level: Graph optimization level, 0 to 4.
        compare_levels: Also compile and time the model at every graph optimization level.
        strategy: Name of the search strategy that proposes candidates.
        cold_filter: Drop proposals that the cold filter predicts to be slow before they are built.
        survey: Spend each round on the operators that promise most; otherwise all operators get the same.
        candidates_per_round: Candidates measured for an operator in a round.
        batch_size: Batch size that the model is compiled for.
        threads: Threads that run the model; None uses all cores of the device.
        processor: LLVM name of the processor, such as "cortex-a72"; None uses what is known of the device.
        remote: Address "HOST:PORT" of a TVM RPC server on the device.
        seed: Seed of the search.
    """

    graph_level: int = DEFAULT_GRAPH_LEVEL
    compare_levels: bool = False
    strategy: str = DEFAULT_STRATEGY
    cold_filter: bool = True
    survey: bool = True
    candidates_per_round: int = CANDIDATES_PER_ROUND
    batch_size: int = 1
    threads: int | None = None
    processor: str | None = None
    remote: str | None = None
    seed: int = 0

    def check(self) -> None:
        """Raise InputError for the first option that is out of range."""
        if self.graph_level not in GRAPH_LEVELS:
            raise InputError(
                f"graph_level must be from {GRAPH_LEVELS[0]} to {GRAPH_LEVELS[-1]}, got {self.graph_level}"
            )
        for name in ("candidates_per_round", "batch_size", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be 1 or more, got {value}")


@dataclass(frozen=True, slots=True)
class RuntimeLatency:
    """The latency of the model in one runtime."""

    name: str  # tvm, tvm untuned, onnxruntime and its variants, torch
    latency_s: float
    threads: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class CompileResult:
    """The result of compiling a model: what was measured, which runtime is fastest, and what it cost."""

    model: str
    device: str
    target: str
    threads: int
    level: int  # of graph optimization
    strategy: str
    rounds: tuple[TuningRound, ...]
    histories: tuple[CandidateHistory, ...]  # of its operators, those with the most work first
    runtimes: tuple[RuntimeLatency, ...]  # fastest first
    recommended: str  # the fastest runtime
    why_stopped: str
    error: float  # largest difference from the model's own outputs, relative to the largest output
    spent: CompileCost = field(default_factory=CompileCost)  # of this model, with its share of common operators
    levels: tuple[GraphLevelResult, ...] = ()  # if they were compared
    folder: str = ""  # where the library was written
