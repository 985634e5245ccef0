"""The search space of an operator: sampling, variation and replay."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from small_graphs import outputs_of
from torch import nn

from onefold.kernels.candidate_runner import CandidateRunner
from onefold.kernels.graph import import_onnx, optimize_graph
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.schedule_space import Proposal, ScheduleSpace, decisions_of, extract_operators
from onefold.kernels.targets import Target
from onefold.serving.export import export
from onefold.vocabulary.kernels import DEFAULT_GRAPH_LEVEL, Operator

FEW = 12


def drawn(space: ScheduleSpace, count: int = FEW) -> list[Proposal]:
    """Return the valid ones of `count` samples."""
    return [item for item in (space.sample() for _ in range(count)) if item is not None]


def tiles(proposal: Proposal) -> list[tuple[int, ...]]:
    """Return the tile sizes of each loop."""
    trace = proposal.schedule.trace
    result = [
        trace.get_decision(instruction) for instruction in trace.insts if instruction.kind.name == "SamplePerfectTile"
    ]
    return [tuple(int(part) for part in candidate) for candidate in result]


def has_decisions(space: ScheduleSpace) -> bool:
    """Return whether there is anything to choose in a schedule."""
    traces = [sketch.trace for sketch in space.sketches]
    return any(trace.get_decision(instruction) is not None for trace in traces for instruction in trace.insts)


def lengths(proposal: Proposal) -> list[int]:
    """Return the loop lengths, which no decision changes."""
    return [math.prod(parts) for parts in tiles(proposal)]


def test_samples_are_deterministic(space: ScheduleSpace, here: Target) -> None:
    def keys(seed: int) -> list[str]:
        return [proposal.key for proposal in drawn(ScheduleSpace(space.operator, space.module, here, seed))]

    assert keys(3) == keys(3)
    assert not has_decisions(space) or keys(3) != keys(4)


def test_equal_decisions_have_equal_keys(space: ScheduleSpace) -> None:
    known: dict[tuple[int, tuple[int, ...]], str] = {}
    for proposal in drawn(space, 20):
        assert known.setdefault((proposal.sketch, proposal.decisions), proposal.key) == proposal.key


def test_most_samples_of_a_large_space_differ(operators: dict[str, tuple[Operator, Any]], here: Target) -> None:
    space = ScheduleSpace(*operators["conv2d"], here)
    proposals = drawn(space, 20)
    assert len({proposal.key for proposal in proposals}) > 15
    assert {proposal.sketch for proposal in proposals} == set(range(len(space.sketches)))


def test_an_operator_without_arithmetic_has_one_schedule(
    operators: dict[str, tuple[Operator, Any]], here: Target
) -> None:
    space = ScheduleSpace(*operators["transpose"], here)
    assert not has_decisions(space)
    assert len({proposal.key for proposal in drawn(space)}) == 1


def test_warnings_about_missing_rules_are_silenced(
    tmp_path: Path, runner: CandidateRunner, here: Target, capfd: pytest.CaptureFixture[str]
) -> None:
    picture = torch.rand(1, 3, 8, 8)
    file = export(nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2)), [picture], tmp_path / "pools.onnx")
    inputs = [picture.numpy()]
    pools = ModelCompiler("pools", file, inputs, outputs_of(file, inputs), runner, DEFAULT_GRAPH_LEVEL)
    spaces = [ScheduleSpace(operator, module, here) for operator, module in pools.operators]
    assert all(space.sketches for space in spaces)
    assert capfd.readouterr().err == ""
    os.write(2, b"shown")
    assert capfd.readouterr().err == "shown"


def test_a_trace_is_json_and_replays_to_the_same_schedule(space: ScheduleSpace, here: Target) -> None:
    fresh = ScheduleSpace(space.operator, space.module, here, seed=99)
    for proposal in drawn(space):
        again = fresh.replay(proposal.trace)
        assert again is not None
        assert (again.key, again.sketch, again.decisions) == (proposal.key, proposal.sketch, proposal.decisions)
        assert again.trace == proposal.trace
        assert decisions_of(again.schedule.trace) == proposal.decisions


@pytest.mark.parametrize("trace", ["[]", "[[], []]", '[[["Unknown", [], [], []]], []]', "{}", "null"])
def test_an_invalid_trace_replays_to_nothing(trace: str, space: ScheduleSpace) -> None:
    result = space.replay(trace)
    assert result is None or result.decisions == ()


def test_a_trace_of_another_operator_cannot_be_replayed(
    operators: dict[str, tuple[Operator, Any]], here: Target
) -> None:
    conv, mean = (ScheduleSpace(*operators[kind], here) for kind in ("conv2d", "mean"))
    assert mean.replay(drawn(conv, 1)[0].trace) is None


def test_invalid_json_cannot_be_replayed(space: ScheduleSpace) -> None:
    assert space.replay("not a trace") is None


def test_mutations_stay_in_the_space(space: ScheduleSpace) -> None:
    for parent in drawn(space, 6):
        for child in (space.mutate(parent) for _ in range(3)):
            if child is not None:
                assert child.sketch == parent.sketch
                assert lengths(child) == lengths(parent)
                assert len(child.decisions) == len(parent.decisions)
                assert space.replay(child.trace).key == child.key  # type: ignore[union-attr]


def test_most_mutations_are_new(operators: dict[str, tuple[Operator, Any]], here: Target) -> None:
    space = ScheduleSpace(*operators["conv2d"], here)
    (parent,) = drawn(space, 1)
    children = {child.key for child in (space.mutate(parent) for _ in range(10)) if child is not None}
    assert len(children - {parent.key}) >= 5


def test_resampling_changes_one_decision(space: ScheduleSpace) -> None:
    result = 0
    for parent in drawn(space, 6):
        for child in (space.resample_one(parent) for _ in range(4)):
            if child is None:
                continue
            result += child.key != parent.key
            assert child.sketch == parent.sketch
            assert lengths(child) == lengths(parent)
            pairs = zip(tiles(child), tiles(parent), strict=True)
            assert sum(mine != theirs for mine, theirs in pairs) <= 1
    assert result > 0 or not has_decisions(space)


def test_crossover_takes_each_tiling_from_a_parent(space: ScheduleSpace) -> None:
    parents = drawn(space)
    cross_over = 0
    for parent in parents[:4]:
        for other in parents:
            child = space.cross_over(parent, other)
            if parent.sketch != other.sketch:
                assert child is None
            elif child is not None:
                cross_over += 1
                assert child.sketch == parent.sketch
                for mine, *theirs in zip(tiles(child), tiles(parent), tiles(other), strict=True):
                    assert mine in theirs
    assert cross_over >= 4


def test_crossover_with_itself_changes_nothing(space: ScheduleSpace) -> None:
    for proposal in drawn(space, 4):
        child = space.cross_over(proposal, proposal)
        assert child is not None
        assert child.key == proposal.key


def test_a_proposal_converts_to_a_measure_candidate(space: ScheduleSpace) -> None:
    for proposal in drawn(space, 2):
        shapes = ["x".join(str(int(size)) for size in each.shape) for each in proposal.measure_candidate.args_info]
        assert tuple(shapes) == space.operator.shapes
        assert json.loads(proposal.trace)


class TestOperators:
    """Of the tiny model: a convolution 3>8 at 8x8, a global mean, a linear layer 8>4."""

    def test_they_have_kinds(self, operators: dict[str, tuple[Operator, Any]]) -> None:
        assert set(operators) == {"conv2d", "mean", "matmul", "transpose"}
        assert operators["conv2d"][0].name == "fused_conv2d_add_relu"

    def test_shapes_are_of_inputs_and_outputs(self, operators: dict[str, tuple[Operator, Any]]) -> None:
        assert operators["conv2d"][0].shapes == ("1x8x8x3", "3x3x3x8", "1x1x1x8", "1x8x8x8")
        assert operators["matmul"][0].shapes == ("1x8", "8x4", "4", "1x4")
        assert operators["transpose"][0].shapes == ("1x3x8x8", "1x8x8x3")

    def test_flops_are_counted(self, operators: dict[str, tuple[Operator, Any]]) -> None:
        multiplied = 2 * 8 * 8 * 8 * 27  # two operations for each of 27 weights of each of 8x8x8 answers
        assert operators["conv2d"][0].flops == multiplied + 2 * 8 * 8 * 8  # the bias and the ReLU of each
        assert operators["matmul"][0].flops == 2 * 8 * 4 + 4
        assert operators["transpose"][0].flops == 0.0

    def test_operators_with_the_most_work_come_first(self, compiler: ModelCompiler) -> None:
        work = [operator.flops * operator.weight for operator, _ in compiler.operators]
        assert work == sorted(work, reverse=True)

    def test_keys_are_stable(self, compiler: ModelCompiler, here: Target) -> None:
        again = extract_operators(optimize_graph(import_onnx(compiler.model), here), here)
        assert [operator for operator, _ in again] == [operator for operator, _ in compiler.operators]
        assert len({operator.key for operator, _ in again}) == len(again)


def test_its_own_decisions_give_the_same_schedule(space: ScheduleSpace) -> None:
    for proposal in drawn(space, 6):
        again = space.apply_decisions(proposal.sketch, proposal.decisions)
        assert again is not None
        assert again.key == proposal.key


def test_decisions_of_other_sizes_are_adapted(operators: dict[str, tuple[Operator, Any]], here: Target) -> None:
    space = ScheduleSpace(*operators["conv2d"], here)
    one = drawn(space)[0]
    trace = one.schedule.trace
    decided = [trace.get_decision(step) for step in trace.insts]
    odd = tuple(
        int(part) * 7 if hasattr(each, "__len__") else int(part)
        for each in decided
        if each is not None
        for part in (each if hasattr(each, "__len__") else [each])
    )
    assert len(odd) == len(one.decisions)
    other = space.apply_decisions(one.sketch, odd)
    assert other is not None
    assert lengths(other) == lengths(one)


def test_decisions_of_another_sketch_cannot_be_applied(space: ScheduleSpace) -> None:
    one = drawn(space)[0]
    assert space.apply_decisions(len(space.sketches), one.decisions) is None
    assert space.apply_decisions(one.sketch, (*one.decisions, 1)) is None
    assert not one.decisions or space.apply_decisions(one.sketch, one.decisions[:-1]) is None
