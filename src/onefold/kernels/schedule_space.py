"""The search space of an operator: MetaSchedule's sketches, and the sampled decisions that instantiate them."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onefold.kernels.targets import Target
from onefold.kernels.tile_sizes import sample_decisions
from onefold.kernels.toolchain import meta_schedule, silent_stderr
from onefold.vocabulary.kernels import Operator

KINDS = ("conv2d", "matmul", "softmax", "layer_norm", "mean", "pool", "transpose")  # found in the names of operators
PROCESSOR_AWARE_SHARE = 0.8  # of random samples; the others are TVM's uniform ones
Decisions = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A schedule that has not been measured."""

    sketch: int
    decisions: Decisions
    schedule: Any  # tvm.s_tir.Schedule
    key: str  # structural hash of the scheduled module

    @property
    def trace(self) -> str:
        """Return the schedule's trace as JSON."""
        return str(json.dumps(_to_python(self.schedule.trace.as_json())))

    @property
    def measure_candidate(self) -> Any:
        """Return the `MeasureCandidate` that MetaSchedule's searches and cost models take."""
        tuner = meta_schedule()
        arguments = tuner.arg_info.ArgInfo.from_entry_func(self.schedule.mod, remove_preproc=True)
        return tuner.MeasureCandidate(self.schedule, arguments)


class ScheduleSpace:
    """Samples, mutates, crosses over and replays the schedules of one operator, deterministically from its seed."""

    def __init__(self, operator: Operator, module: Any, target: Target, seed: int = 0) -> None:
        tuner = meta_schedule()
        self.operator, self.module, self.target = operator, module, target
        self.context = tuner.TuneContext(
            module, target=target.tvm_target(), space_generator="post-order-apply", search_strategy="replay-trace",
            task_name=operator.name, rand_state=seed + 1, num_threads=1,
        )  # fmt: skip
        with silent_stderr():
            self.sketches = list(self.context.generate_design_space())
        generator = self.context.space_generator
        self._postprocessors = list(generator.postprocs)
        mutators = sorted(generator.mutator_probs.items(), key=lambda pair: str(type(pair[0]).__name__))
        self._mutators = [mutator for mutator, _ in mutators]
        weights = np.array([float(weight) for _, weight in mutators])
        self._mutator_probabilities = weights / weights.sum() if len(weights) else weights
        self._lanes = target.vector_lanes
        self._sketch_instructions = [_instructions(sketch.trace) for sketch in self.sketches]
        self.rng = np.random.default_rng(seed)

    def sample(self) -> Proposal | None:
        """Return a random schedule, in most cases with processor-aware tile sizes; None if the sample is invalid."""
        at = int(self.rng.integers(len(self.sketches)))
        trace = self.sketches[at].trace
        is_aware = self.rng.random() < PROCESSOR_AWARE_SHARE
        return self._realize(
            _trace(trace.insts, sample_decisions(trace, self._lanes, self.rng) if is_aware else {}), at
        )

    def resample_one(self, proposal: Proposal) -> Proposal | None:
        """Return the schedule with one decision sampled anew; None if it has none or the sample is invalid."""
        trace = proposal.schedule.trace
        decisions = dict(trace.decisions)
        instructions = [
            instruction
            for instruction in trace.insts
            if instruction in decisions and _has_alternatives(decisions[instruction])
        ]
        if not instructions:
            return None
        del decisions[instructions[int(self.rng.integers(len(instructions)))]]
        sampled = sample_decisions(trace, self._lanes, self.rng, kept=decisions)
        return self._realize(_trace(trace.insts, decisions | sampled), proposal.sketch)

    def mutate(self, proposal: Proposal) -> Proposal | None:
        """Return the schedule changed by one of MetaSchedule's mutators; None if that is not possible."""
        if not self._mutators:
            return None
        at = int(self.rng.choice(len(self._mutators), p=self._mutator_probabilities))
        apply = importlib.import_module("tvm.s_tir.meta_schedule._ffi_api").MutatorApply
        trace = apply(self._mutators[at], proposal.schedule.trace, self.draw_seed())
        return None if trace is None else self._realize(trace, proposal.sketch)

    def cross_over(self, first: Proposal, second: Proposal) -> Proposal | None:
        """Return a schedule with each decision from either parent; None if they are of different sketches."""
        if first.sketch != second.sketch:
            return None
        trace = first.schedule.trace
        decisions = dict(trace.decisions)
        for instruction, counterpart in zip(list(trace.insts), list(second.schedule.trace.insts)):
            decision = second.schedule.trace.get_decision(counterpart)
            if decision is not None and self.rng.random() < 0.5 and trace.get_decision(instruction) is not None:
                decisions[instruction] = decision
        return self._realize(_trace(trace.insts, decisions), first.sketch)

    def replay(self, trace: str) -> Proposal | None:
        """Return the schedule of a JSON trace; None if this version of TVM cannot replay it."""
        module = importlib.import_module("tvm.s_tir.schedule")
        schedule = self._new_schedule()
        try:
            module.Trace.apply_json_to_schedule(json.loads(trace), schedule)
        except Exception:  # noqa: BLE001 - TVM raises many types
            return None
        return self.proposal(schedule)

    def apply_decisions(self, sketch: int, decisions: Decisions) -> Proposal | None:
        """Return the schedule with another operator's decisions; None if this operator has no such sketch.

        TVM adapts tile sizes that do not divide a loop of another length.
        """
        if sketch >= len(self.sketches):
            return None
        trace = self.sketches[sketch].trace
        transferred: dict[Any, Any] = {}
        left = list(decisions)
        for instruction in trace.insts:
            own = trace.get_decision(instruction)
            if own is None:
                continue
            length = len(own) if hasattr(own, "__len__") else 1
            if len(left) < length:
                return None
            values, left = left[:length], left[length:]
            transferred[instruction] = values if hasattr(own, "__len__") else values[0]
        return None if left else self._realize(_trace(trace.insts, transferred), sketch)

    def proposal(self, schedule: Any) -> Proposal:
        """Return a proposal for a schedule that TVM created."""
        return _proposal(schedule, _closest_sketch(_instructions(schedule.trace), self._sketch_instructions))

    def draw_seed(self) -> int:
        """Return a seed for TVM, derived from this space's seed."""
        return int(self.rng.integers(1, 2**31 - 1))

    def _realize(self, trace: Any, sketch: int) -> Proposal | None:
        schedule = self._new_schedule()
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()  # mutated traces break later postprocessors without it
            if not all(postprocessor.apply(schedule) for postprocessor in self._postprocessors):
                return None
        except Exception:  # noqa: BLE001 - TVM raises many types for an invalid sample
            return None
        return _proposal(schedule, sketch)

    def _new_schedule(self) -> Any:
        module = importlib.import_module("tvm.s_tir")
        return module.Schedule(
            self.module, seed=self.draw_seed(), debug_mask=0, error_render_level="none", enable_check=False
        )


def _proposal(schedule: Any, sketch: int) -> Proposal:
    return Proposal(sketch, decisions_of(schedule.trace), schedule, structural_hash(schedule.mod))


def _trace(instructions: Any, decisions: dict[Any, Any]) -> Any:
    """Return a trace; TVM samples instructions without a decision."""
    return importlib.import_module("tvm.s_tir.schedule").Trace(list(instructions), decisions)


def _has_alternatives(decision: Any) -> bool:
    """Return whether there is another decision: a loop of one iteration has a single tiling."""
    return not hasattr(decision, "__len__") or any(int(tile) > 1 for tile in decision)


def decisions_of(trace: Any) -> Decisions:
    """Return all decisions of a trace as integers, in order."""
    decisions: list[int] = []
    for instruction in trace.insts:
        decision = trace.get_decision(instruction)
        if decision is None:
            continue
        decisions += [int(value) for value in decision] if hasattr(decision, "__len__") else [int(decision)]
    return tuple(decisions)


def extract_operators(graph: Any, target: Target) -> list[tuple[Operator, Any]]:
    """Return the operators of an optimized graph with their TIR modules, those with the most work first."""
    tasks = meta_schedule().relax_integration.extract_tasks(graph, target.tvm_target(), {})
    operators = [
        (_operator(str(task.task_name), task.dispatched[0], int(task.weight)), task.dispatched[0]) for task in tasks
    ]
    return sorted(operators, key=lambda pair: (-pair[0].flops * pair[0].weight, pair[0].name))


def _operator(name: str, module: Any, weight: int) -> Operator:
    arguments = meta_schedule().arg_info.ArgInfo.from_entry_func(module, remove_preproc=True)
    shapes = tuple("x".join(str(int(size)) for size in argument.shape) or "1" for argument in arguments)
    plain_name = re.sub(r"\d+", "", name.removeprefix("fused_"))
    kind = next((kind for kind in KINDS if kind in name), plain_name.split("_")[0])
    return Operator(structural_hash(module), name, weight, kind, shapes, _flops(module))


def structural_hash(module: Any) -> str:
    """Return TVM's structural hash of a module as hexadecimal digits."""
    return f"{importlib.import_module('tvm_ffi').structural_hash(module) & (2**64 - 1):016x}"


def _instructions(trace: Any) -> list[str]:
    """Return the instructions of a trace without their decisions."""
    return [json.dumps(_to_python(instruction)) for instruction in trace.as_json()[0]]


def _flops(module: Any) -> float:
    try:
        return float(importlib.import_module("tvm.s_tir").analysis.estimate_tir_flops(module))
    except Exception:  # noqa: BLE001 - raised for an operator without arithmetic
        return 0.0


def _closest_sketch(instructions: Sequence[str], sketches: Sequence[Sequence[str]]) -> int:
    """Return the index of the sketch that shares most instructions with a trace, the shortest of equals."""
    shared = [sum(1 for instruction, other in zip(instructions, sketch) if instruction == other) for sketch in sketches]
    return max(range(len(sketches)), key=lambda at: (shared[at], -len(sketches[at]))) if sketches else 0


def _to_python(value: Any) -> Any:
    """Convert TVM's containers, strings and numbers to those of Python."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value if not isinstance(value, str) else str(value)
    if hasattr(value, "value"):  # an IntImm or FloatImm
        return value.value
    if hasattr(value, "items"):
        return {str(key): _to_python(item) for key, item in value.items()}
    return [_to_python(item) for item in value]
