"""The ways to implement an operator: drawn, changed and remade."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from small_graphs import answers_of
from torch import nn

from onefold.kernels.bench import Bench
from onefold.kernels.graph import USUAL_LEVEL
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.schedule_space import Proposal, ScheduleSpace, decisions_of, operators_of
from onefold.kernels.targets import Target
from onefold.serving.export import export
from onefold.vocabulary.kernels import Operator

FEW = 12


def drawn(space: ScheduleSpace, count: int = FEW) -> list[Proposal]:
    """So many that are valid."""
    return [one for one in (space.random() for _ in range(count)) if one is not None]


def tiles(proposal: Proposal) -> list[tuple[int, ...]]:
    """Into what parts each loop is cut."""
    trace = proposal.schedule.trace
    found = [trace.get_decision(one) for one in trace.insts if one.kind.name == "SamplePerfectTile"]
    return [tuple(int(part) for part in one) for one in found]


def lengths(proposal: Proposal) -> list[int]:
    """What those parts multiply to: the same whatever was decided."""
    return [math.prod(parts) for parts in tiles(proposal)]


def test_draws_follow_from_the_seed(space: ScheduleSpace, here: Target) -> None:
    def keys(seed: int) -> list[str]:
        return [one.key for one in drawn(ScheduleSpace(space.operator, space.module, here, seed))]

    assert keys(3) == keys(3)
    assert space.size == 0.0 or keys(3) != keys(4)


def test_the_same_decisions_are_the_same_loops(space: ScheduleSpace) -> None:
    known: dict[tuple[int, tuple[int, ...]], str] = {}
    for one in drawn(space, 20):
        assert known.setdefault((one.sketch, one.decisions), one.key) == one.key


def test_most_draws_from_a_large_space_are_different(operators: dict[str, tuple[Operator, Any]], here: Target) -> None:
    space = ScheduleSpace(*operators["conv2d"], here)
    assert space.size > 5
    proposals = drawn(space, 20)
    assert len({one.key for one in proposals}) > 15
    assert {one.sketch for one in proposals} == set(range(len(space.sketches)))


def test_of_an_operator_that_only_moves_numbers_there_is_one(
    operators: dict[str, tuple[Operator, Any]], here: Target
) -> None:
    space = ScheduleSpace(*operators["transpose"], here)
    assert space.size == 0.0
    assert len({one.key for one in drawn(space)}) == 1


def test_what_the_compiler_has_no_rule_for_is_not_told(
    tmp_path: Path, bench: Bench, here: Target, capfd: pytest.CaptureFixture[str]
) -> None:
    picture = torch.rand(1, 3, 8, 8)
    file = export(nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2)), [picture], tmp_path / "pools.onnx")
    inputs = [picture.numpy()]
    pools = ModelCompiler("pools", file, inputs, answers_of(file, inputs), bench, USUAL_LEVEL)
    spaces = [ScheduleSpace(operator, module, here) for operator, module in pools.operators]
    assert all(space.sketches for space in spaces)
    assert capfd.readouterr().err == ""
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"


def test_a_trace_is_json_and_makes_the_same_again(space: ScheduleSpace, here: Target) -> None:
    fresh = ScheduleSpace(space.operator, space.module, here, seed=99)
    for one in drawn(space):
        again = fresh.remade(one.trace)
        assert again is not None
        assert (again.key, again.sketch, again.decisions) == (one.key, one.sketch, one.decisions)
        assert again.trace == one.trace
        assert decisions_of(again.schedule.trace) == one.decisions


@pytest.mark.parametrize("trace", ["[]", "[[], []]", '[[["Unheard", [], [], []]], []]', "{}", "null"])
def test_a_trace_that_cannot_be_followed_makes_nothing_else(trace: str, space: ScheduleSpace) -> None:
    found = space.remade(trace)
    assert found is None or found.decisions == ()


def test_a_trace_of_another_operator_makes_nothing(operators: dict[str, tuple[Operator, Any]], here: Target) -> None:
    conv, mean = (ScheduleSpace(*operators[kind], here) for kind in ("conv2d", "mean"))
    assert mean.remade(drawn(conv, 1)[0].trace) is None


def test_text_that_is_no_json_makes_nothing(space: ScheduleSpace) -> None:
    assert space.remade("not a trace") is None


def test_mutants_stay_in_the_space(space: ScheduleSpace) -> None:
    for parent in drawn(space, 6):
        for child in (space.mutated(parent) for _ in range(3)):
            if child is not None:
                assert child.sketch == parent.sketch
                assert lengths(child) == lengths(parent)
                assert len(child.decisions) == len(parent.decisions)
                assert space.remade(child.trace).key == child.key  # type: ignore[union-attr]


def test_mutants_are_mostly_new(operators: dict[str, tuple[Operator, Any]], here: Target) -> None:
    space = ScheduleSpace(*operators["conv2d"], here)
    (parent,) = drawn(space, 1)
    children = {child.key for child in (space.mutated(parent) for _ in range(10)) if child is not None}
    assert len(children - {parent.key}) >= 5


def test_one_decision_is_drawn_anew(space: ScheduleSpace) -> None:
    found = 0
    for parent in drawn(space, 6):
        for child in (space.redrawn(parent) for _ in range(4)):
            if child is None:
                continue
            found += child.key != parent.key
            assert child.sketch == parent.sketch
            assert lengths(child) == lengths(parent)
            pairs = zip(tiles(child), tiles(parent), strict=True)
            assert sum(mine != theirs for mine, theirs in pairs) <= 1
    assert found > 0 or space.size == 0.0


def test_children_cut_each_loop_as_one_of_their_parents_does(space: ScheduleSpace) -> None:
    parents = drawn(space)
    crossed = 0
    for one in parents[:4]:
        for other in parents:
            child = space.crossed(one, other)
            if one.sketch != other.sketch:
                assert child is None
            elif child is not None:
                crossed += 1
                assert child.sketch == one.sketch
                for mine, *theirs in zip(tiles(child), tiles(one), tiles(other), strict=True):
                    assert mine in theirs
    assert crossed >= 4


def test_one_crossed_with_itself_is_itself(space: ScheduleSpace) -> None:
    for one in drawn(space, 4):
        child = space.crossed(one, one)
        assert child is not None
        assert child.key == one.key


def test_a_proposal_is_as_tvm_takes_it(space: ScheduleSpace) -> None:
    for one in drawn(space, 2):
        shapes = ["x".join(str(int(size)) for size in each.shape) for each in one.measurable.args_info]
        assert tuple(shapes) == space.operator.shapes
        assert json.loads(one.trace)


class TestOperators:
    """Of the tiny model: a convolution of 3 channels to 8 at 8x8, a mean over places, 8 numbers to 4."""

    def test_they_are_told_apart_by_what_they_do(self, operators: dict[str, tuple[Operator, Any]]) -> None:
        assert set(operators) == {"conv2d", "mean", "matmul", "transpose"}
        assert operators["conv2d"][0].name == "fused_conv2d_add_relu"

    def test_shapes_are_of_inputs_and_outputs(self, operators: dict[str, tuple[Operator, Any]]) -> None:
        assert operators["conv2d"][0].shapes == ("1x8x8x3", "3x3x3x8", "1x1x1x8", "1x8x8x8")
        assert operators["matmul"][0].shapes == ("1x8", "8x4", "4", "1x4")
        assert operators["transpose"][0].shapes == ("1x3x8x8", "1x8x8x3")

    def test_work_is_counted(self, operators: dict[str, tuple[Operator, Any]]) -> None:
        multiplied = 2 * 8 * 8 * 8 * 27  # two operations for each of 27 weights of each of 8x8x8 answers
        assert operators["conv2d"][0].flops == multiplied + 2 * 8 * 8 * 8  # the bias and the ReLU of each
        assert operators["matmul"][0].flops == 2 * 8 * 4 + 4
        assert operators["transpose"][0].flops == 0.0

    def test_those_with_the_most_work_come_first(self, whole: ModelCompiler) -> None:
        work = [operator.flops * operator.weight for operator, _ in whole.operators]
        assert work == sorted(work, reverse=True)

    def test_keys_are_the_same_whenever_the_model_is_read(self, whole: ModelCompiler, here: Target) -> None:
        again = operators_of(whole.loops, here)
        assert [operator for operator, _ in again] == [operator for operator, _ in whole.operators]
        assert len({operator.key for operator, _ in again}) == len(again)


def test_its_own_decisions_come_to_the_same_loops(space: ScheduleSpace) -> None:
    for one in drawn(space, 6):
        again = space.like(one.sketch, one.decisions)
        assert again is not None
        assert again.key == one.key


def test_decisions_for_other_sizes_are_made_to_fit(operators: dict[str, tuple[Operator, Any]], here: Target) -> None:
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
    other = space.like(one.sketch, odd)
    assert other is not None
    assert lengths(other) == lengths(one)


def test_decisions_of_another_outline_are_of_no_use(space: ScheduleSpace) -> None:
    one = drawn(space)[0]
    assert space.like(len(space.sketches), one.decisions) is None
    assert space.like(one.sketch, (*one.decisions, 1)) is None
    assert not one.decisions or space.like(one.sketch, one.decisions[:-1]) is None
