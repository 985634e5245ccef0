"""The ways to implement an operator: outlines (sketches) of the compiler's, and the decisions that fill them in."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onefold.kernels.targets import Target
from onefold.kernels.tile_sizes import divisions, fitting
from onefold.kernels.toolchain import schedules, unheard
from onefold.vocabulary.kernels import Operator

KINDS = ("conv2d", "matmul", "softmax", "layer_norm", "mean", "pool", "transpose")  # by which operators are told apart
FITTING = 0.8  # of the random draws are such that they fit the processor
Decisions = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """An implementation that has not been measured."""

    sketch: int
    decisions: Decisions
    schedule: Any  # TVM's
    key: str  # the same for the same loops, however they came about

    @property
    def trace(self) -> str:
        """How to make it again."""
        return str(json.dumps(_plain(self.schedule.trace.as_json())))

    @property
    def measurable(self) -> Any:
        """As TVM's own searches and cost models take it."""
        tuner = schedules()
        arguments = tuner.arg_info.ArgInfo.from_entry_func(self.schedule.mod, remove_preproc=True)
        return tuner.MeasureCandidate(self.schedule, arguments)


class ScheduleSpace:
    """All implementations of one operator: draws, changes and remakes them. What it draws follows from its seed."""

    def __init__(self, operator: Operator, module: Any, target: Target, seed: int = 0) -> None:
        tuner = schedules()
        self.operator, self.module, self.target = operator, module, target
        self.context = tuner.TuneContext(
            module, target=target.opened(), space_generator="post-order-apply", search_strategy="replay-trace",
            task_name=operator.name, rand_state=seed + 1, num_threads=1,
        )  # fmt: skip
        with unheard():
            self.sketches = list(self.context.generate_design_space())
        generator = self.context.space_generator
        self._steps = list(generator.postprocs)
        mutators = sorted(generator.mutator_probs.items(), key=lambda pair: str(type(pair[0]).__name__))
        self._mutators = [mutator for mutator, _ in mutators]
        chances = np.array([float(chance) for _, chance in mutators])
        self._chances = chances / chances.sum() if len(chances) else chances
        self._lanes = target.lanes
        self._instructions = [_steps(sketch.trace) for sketch in self.sketches]
        self.rng = np.random.default_rng(seed)

    def random(self) -> Proposal | None:
        """One drawn at random, most of them so that they fit the processor; None where the draw is no valid
        implementation."""
        at = int(self.rng.integers(len(self.sketches)))
        trace = self.sketches[at].trace
        fits = self.rng.random() < FITTING
        return self._realised(_trace(trace.insts, fitting(trace, self._lanes, self.rng) if fits else {}), at)

    def redrawn(self, proposal: Proposal) -> Proposal | None:
        """Another one, for which one decision was drawn anew."""
        trace = proposal.schedule.trace
        decisions = dict(trace.decisions)
        steps = [one for one in trace.insts if one in decisions and _is_open(decisions[one])]
        if not steps:
            return None
        chosen = steps[int(self.rng.integers(len(steps)))]
        del decisions[chosen]
        drawn = fitting(trace, self._lanes, self.rng, kept=decisions)
        return self._realised(_trace(trace.insts, decisions | drawn), proposal.sketch)

    def mutated(self, proposal: Proposal) -> Proposal | None:
        """Another one that differs in one decision."""
        if not self._mutators:
            return None
        chosen = self._mutators[int(self.rng.choice(len(self._chances), p=self._chances))]
        apply = importlib.import_module("tvm.s_tir.meta_schedule._ffi_api").MutatorApply
        trace = apply(chosen, proposal.schedule.trace, self.draw())
        return None if trace is None else self._realised(trace, proposal.sketch)

    def crossed(self, one: Proposal, other: Proposal) -> Proposal | None:
        """Each decision from one of two of the same sketch; None where those do not go together."""
        if one.sketch != other.sketch:
            return None
        trace = one.schedule.trace
        decisions = dict(trace.decisions)
        theirs = list(other.schedule.trace.insts)
        for mine, their in zip(list(trace.insts), theirs):
            decision = other.schedule.trace.get_decision(their)
            if decision is not None and self.rng.random() < 0.5 and trace.get_decision(mine) is not None:
                decisions[mine] = decision
        return self._realised(_trace(trace.insts, decisions), one.sketch)

    def remade(self, trace: str) -> Proposal | None:
        """The one that a trace tells of; None where this version of the compiler cannot follow it."""
        module = importlib.import_module("tvm.s_tir.schedule")
        schedule = self._schedule()
        try:
            module.Trace.apply_json_to_schedule(json.loads(trace), schedule)
        except Exception:  # noqa: BLE001 - TVM raises many kinds; such a trace is of no use
            return None
        return self.proposal(schedule)

    def like(self, sketch: int, decisions: Decisions) -> Proposal | None:
        """What another operator's decisions come to here; None where its outline is not one of this operator's.

        The compiler itself makes tiles fit that do not divide a loop of another length.
        """
        if sketch >= len(self.sketches):
            return None
        trace = self.sketches[sketch].trace
        taken: dict[Any, Any] = {}
        left = list(decisions)
        for instruction in trace.insts:
            own = trace.get_decision(instruction)
            if own is None:
                continue
            length = len(own) if hasattr(own, "__len__") else 1
            if len(left) < length:
                return None
            mine, left = left[:length], left[length:]
            taken[instruction] = mine if hasattr(own, "__len__") else mine[0]
        return None if left else self._realised(_trace(trace.insts, taken), sketch)

    def proposal(self, schedule: Any) -> Proposal:
        """A schedule, as one of this space."""
        return self._made(schedule, _nearest(_steps(schedule.trace), self._instructions))

    def _made(self, schedule: Any, sketch: int) -> Proposal:
        return Proposal(sketch, decisions_of(schedule.trace), schedule, _digest(schedule.mod))

    @property
    def size(self) -> float:
        """How many there are, at most, as far as the compiler's outlines tell; on a logarithmic scale by e."""
        return max((_log_size(sketch.trace) for sketch in self.sketches), default=0.0)

    def _realised(self, trace: Any, sketch: int) -> Proposal | None:
        schedule = self._schedule()
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()  # without it, traces that were changed break later steps
            if not all(step.apply(schedule) for step in self._steps):
                return None
        except Exception:  # noqa: BLE001 - TVM raises many kinds; such a draw is invalid
            return None
        return self._made(schedule, sketch)

    def _schedule(self) -> Any:
        module = importlib.import_module("tvm.s_tir")
        return module.Schedule(
            self.module, seed=self.draw(), debug_mask=0, error_render_level="none", enable_check=False
        )

    def draw(self) -> int:
        """A seed for somebody else."""
        return int(self.rng.integers(1, 2**31 - 1))


def _trace(steps: Any, decisions: dict[Any, Any]) -> Any:
    """What is not decided is drawn at random."""
    return importlib.import_module("tvm.s_tir.schedule").Trace(list(steps), decisions)


def _is_open(decision: Any) -> bool:
    """Whether there is another one: a loop that is run once can only be cut in one way."""
    return not hasattr(decision, "__len__") or any(int(part) > 1 for part in decision)


def decisions_of(trace: Any) -> Decisions:
    """All that was decided, as whole numbers in order."""
    found: list[int] = []
    for instruction in trace.insts:
        decision = trace.get_decision(instruction)
        if decision is None:
            continue
        found += [int(one) for one in decision] if hasattr(decision, "__len__") else [int(decision)]
    return tuple(found)


def operators_of(loops: Any, target: Target) -> list[tuple[Operator, Any]]:
    """The operators of an optimised graph with their loops, the ones with the most work first."""
    tasks = schedules().relax_integration.extract_tasks(loops, target.opened(), {})
    found = [
        (_operator(str(task.task_name), task.dispatched[0], int(task.weight)), task.dispatched[0]) for task in tasks
    ]
    return sorted(found, key=lambda pair: (-pair[0].flops * pair[0].weight, pair[0].name))


def _operator(name: str, module: Any, weight: int) -> Operator:
    arguments = schedules().arg_info.ArgInfo.from_entry_func(module, remove_preproc=True)
    shapes = tuple("x".join(str(int(size)) for size in one.shape) or "1" for one in arguments)
    words = re.sub(r"\d+", "", name.removeprefix("fused_"))
    kind = next((kind for kind in KINDS if kind in name), words.split("_")[0])
    return Operator(_digest(module), name, weight, kind, shapes, _flops(module))


def _digest(module: Any) -> str:
    """The same for the same loops."""
    return f"{importlib.import_module('tvm_ffi').structural_hash(module) & (2**64 - 1):016x}"


def _steps(trace: Any) -> list[str]:
    """What a trace does, without what it decides. Outlines may differ in nothing but the loop that a step is for."""
    return [json.dumps(_plain(one)) for one in trace.as_json()[0]]


def _flops(module: Any) -> float:
    try:
        return float(importlib.import_module("tvm.s_tir").analysis.estimate_tir_flops(module))
    except Exception:  # noqa: BLE001 - an operator that only moves numbers
        return 0.0


def _nearest(steps: Sequence[str], sketches: Sequence[Sequence[str]]) -> int:
    """Which outline a trace follows: it begins as that one does."""
    shared = [sum(1 for mine, theirs in zip(steps, sketch) if mine == theirs) for sketch in sketches]
    return max(range(len(sketches)), key=lambda at: (shared[at], -len(sketches[at]))) if sketches else 0


def _log_size(trace: Any) -> float:
    total = 0.0
    for instruction in trace.insts:
        decision = trace.get_decision(instruction)
        if decision is None:
            continue
        if hasattr(decision, "__len__"):  # a loop cut into so many parts
            product, parts = math.prod(int(one) for one in decision), len(decision)
            total += math.log(max(1, divisions(product, parts)))
        else:
            total += math.log(4)
    return total


def _plain(value: Any) -> Any:
    """TVM's arrays and texts as those of Python."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value if not isinstance(value, str) else str(value)
    if hasattr(value, "value"):  # a number of the compiler's
        return value.value
    if hasattr(value, "items"):
        return {str(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value]
