"""Pretrains the cost model on candidates of earlier operators, before the first candidate of a new one is measured."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onefold.kernels.cost_model import CostModel
from onefold.kernels.schedule_space import ScheduleSpace
from onefold.kernels.schedule_transfer import operator_distance
from onefold.kernels.targets import Target
from onefold.kernels.toolchain import tvm
from onefold.vocabulary.kernels import Operator, ScheduleCandidate

MAX_CANDIDATES, MAX_PER_OPERATOR = 240, 16
MIN_PER_OPERATOR = 4  # fewer do not tell fast from slow


def pack_module(module: Any) -> str:
    """Return a TIR module as compressed text for the store."""
    return base64.b64encode(zlib.compress(tvm().ir.save_json(module).encode())).decode()


def unpack_module(text: str) -> Any:
    """Return the TIR module of `pack_module`."""
    return tvm().ir.load_json(zlib.decompress(base64.b64decode(text)).decode())


def pretrain(
    model: CostModel,
    operators: Iterable[Operator],
    known: Iterable[tuple[Operator, Sequence[ScheduleCandidate]]],
    packed_module: Callable[[str], str],
    target: Target,
    is_affordable: Callable[[], bool] = lambda: True,
) -> int:
    """Train the cost model on candidates of the operators that are most similar to the given ones.

    Args:
        model: The cost model to train.
        operators: The operators that will be tuned.
        known: Other operators with their measured candidates.
        packed_module: Returns the packed module of an operator's key, empty if it is not known.
        target: What candidates are compiled for.
        is_affordable: Whether the budget allows to learn from one more operator.

    Returns:
        The number of candidates it was trained on.
    """
    tuned = list(operators)
    trained = 0

    def distance(pair: tuple[Operator, Sequence[ScheduleCandidate]]) -> float:
        return min((operator_distance(pair[0], operator) for operator in tuned), default=math.inf)

    for operator, candidates in sorted(known, key=distance):
        if trained >= MAX_CANDIDATES or not is_affordable():
            break
        text = packed_module(operator.key)
        if not text or math.isinf(distance((operator, candidates))):
            continue
        space = ScheduleSpace(operator, unpack_module(text), target)
        chosen = _spread([candidate for candidate in candidates if candidate.latency_s is not None])
        replayed = [
            (proposal, candidate) for candidate in chosen if (proposal := space.replay(candidate.trace)) is not None
        ]
        if len(replayed) >= MIN_PER_OPERATOR:
            model.update(
                space, [proposal for proposal, _ in replayed], [candidate.latency_s for _, candidate in replayed]
            )
            trained += len(replayed)
    return trained


def _spread(candidates: Sequence[ScheduleCandidate]) -> list[ScheduleCandidate]:
    """Return up to MAX_PER_OPERATOR candidates, evenly spaced from the fastest to the slowest."""
    ranked = sorted(candidates, key=lambda candidate: candidate.latency_s or 0.0)
    step = max(1.0, (len(ranked) - 1) / (MAX_PER_OPERATOR - 1))
    return [ranked[min(len(ranked) - 1, round(at * step))] for at in range(min(MAX_PER_OPERATOR, len(ranked)))]
