"""Pretraining of the cost model on earlier operators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onefold.kernels.cost_model import CostModel
from onefold.kernels.cost_model_transfer import MAX_CANDIDATES, pack_module, pretrain, unpack_module
from onefold.kernels.schedule_space import ScheduleSpace
from onefold.kernels.targets import Target
from onefold.vocabulary.kernels import ScheduleCandidate


def test_a_packed_module_unpacks_to_the_same(space: ScheduleSpace, here: Target) -> None:
    again = ScheduleSpace(space.operator, unpack_module(pack_module(space.module)), here, seed=3)
    drawn = again.sample()
    assert drawn is not None
    made = space.replay(drawn.trace)
    assert made is not None
    assert made.key == drawn.key


def _known(space: ScheduleSpace, count: int) -> list[ScheduleCandidate]:
    drawn = [item for item in (space.sample() for _ in range(count)) if item is not None]
    return [
        ScheduleCandidate(
            space.operator.key,
            "t",
            "m",
            1,
            proposal.key,
            proposal.sketch,
            proposal.decisions,
            proposal.trace,
            1e-5 * (1 + at),
        )
        for at, proposal in enumerate(drawn)
    ]


def test_the_cost_model_is_trained_on_operators_of_the_same_kind(space: ScheduleSpace, here: Target) -> None:
    model = CostModel()
    known = _known(space, 12)
    taught = pretrain(model, [space.operator], [(space.operator, known)], lambda _: pack_module(space.module), here)
    assert 4 <= taught <= min(MAX_CANDIDATES, len(known))
    assert model.is_ready


def test_pretraining_ends_with_the_budget(space: ScheduleSpace, here: Target) -> None:
    model, known = CostModel(), [(space.operator, _known(space, 12))]
    assert pretrain(model, [space.operator], known, lambda _: pack_module(space.module), here, lambda: False) == 0
    assert not model.is_ready


@pytest.mark.parametrize("case", ["no loops", "another kind", "nothing measured"])
def test_unusable_operators_are_left_out(space: ScheduleSpace, here: Target, case: str) -> None:
    model = CostModel()
    wanted: Any = replace(space.operator, kind="softmax") if case == "another kind" else space.operator
    known = [] if case == "nothing measured" else _known(space, 6)
    loops = "" if case == "no loops" else pack_module(space.module)
    assert pretrain(model, [wanted], [(space.operator, known)], lambda _: loops, here) == 0
    assert not model.is_ready
